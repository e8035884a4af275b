"""Records of what sandboxes reached, collected for a moment so that many connections make one record."""

from __future__ import annotations

from collections import Counter

from replwire.network import TrafficOutcome, TrafficRecord

_MAX_KINDS = 1000  # records that wait; further hosts are counted as one
_MAX_KINDS_PER_SESSION = 20  # so that names without end do not become events without end
_OTHERS = "(others)"
_MAX_REASON = 400
_Key = tuple[str, str, int, TrafficOutcome, str]


class Ledger:
    """Records that wait for the broker."""

    def __init__(self) -> None:
        self._waiting: dict[_Key, tuple[int, int, int]] = {}
        self._kinds: Counter[str] = Counter()  # by session

    def add(
        self, session: str, host: str, port: int, outcome: TrafficOutcome, reason: str, sent: int, received: int
    ) -> None:
        """Add one connection, or one lookup that was refused."""
        self.put_back(TrafficRecord(session, host[:255], port, outcome, reason[:_MAX_REASON], 1, sent, received))

    def put_back(self, record: TrafficRecord) -> None:
        """Add a record."""
        key: _Key = (record.session, record.host, record.port, record.outcome, record.reason)
        full = len(self._waiting) >= _MAX_KINDS or self._kinds[record.session] >= _MAX_KINDS_PER_SESSION
        if key not in self._waiting and full:
            key = (record.session, _OTHERS, 0, record.outcome, "")
        if key not in self._waiting:
            self._kinds[record.session] += 1
        count, sent, received = self._waiting.get(key, (0, 0, 0))
        self._waiting[key] = (count + record.count, sent + record.sent, received + record.received)

    def take(self, most: int) -> list[TrafficRecord]:
        """Return some of the records, oldest first, and forget them."""
        keys = list(self._waiting)[:most]
        self._kinds.subtract(key[0] for key in keys)
        self._kinds = +self._kinds  # without those that have none
        return [TrafficRecord(*key, *self._waiting.pop(key)) for key in keys]

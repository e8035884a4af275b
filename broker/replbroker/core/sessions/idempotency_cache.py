"""Idempotency keys: which eval a key stands for, so that a repeat never runs the code twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from replbroker.core.limits.quotas import IDEMPOTENCY_KEYS, Holder, Quotas
from replbroker.core.sessions.session import EvalTask
from replwire.faults import RequestError

_Entries = OrderedDict[tuple[Holder, str], tuple[bytes, EvalTask]]


class IdempotencyCache:
    """Bounded by number. Keys of different agents never meet, and where there are too many, the oldest one goes of the
    identity that has them: nobody's keys push out another's."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._entries: dict[str, _Entries] = {}  # by identity

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def get(self, holder: Holder, key: str, session: str, code: str) -> EvalTask | None:
        """The eval that this key ran, or None. Raises Refusal `idempotency-conflict` for other code or session."""
        found = self._entries.get(holder.identity, _Entries()).get((holder, key))
        if found is None:
            return None
        if found[0] != _digest(session, code):
            raise RequestError("idempotency-conflict", f"idempotency-key {key} was used for other code")
        return found[1]

    def put(self, holder: Holder, key: str, session: str, code: str, job: EvalTask) -> None:
        """Remember it."""
        while not self._quotas.has_room(IDEMPOTENCY_KEYS, holder):
            mine = self._entries.get(holder.identity)
            if mine is None:  # there are as many identities as keys
                return
            self._remove(next(iter(mine)))
        self._entries.setdefault(holder.identity, _Entries())[holder, key] = (_digest(session, code), job)
        self._quotas.charge(IDEMPOTENCY_KEYS, holder)

    def forget(self, job: EvalTask) -> None:
        """Forget the key of an eval that was not let run: it may be sent again."""
        mine = self._entries.get(job.turn.holder.identity, _Entries())
        for entry in [entry for entry, (_, kept) in mine.items() if kept is job]:
            self._remove(entry)

    def _remove(self, entry: tuple[Holder, str]) -> None:
        holder, _ = entry
        del self._entries[holder.identity][entry]
        if not self._entries[holder.identity]:
            del self._entries[holder.identity]
        self._quotas.release(IDEMPOTENCY_KEYS, holder)


def _digest(session: str, code: str) -> bytes:
    text = f"{session}\0{code}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()

"""Idempotency keys: which eval a key stands for, so that a repeat never runs the code twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from replbroker.core.session import Job
from replwire.faults import Refusal


class Keys:
    """Bounded by number, the oldest key goes first. Keys of different clients (identity and agent) never meet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._jobs: OrderedDict[tuple[str, str], tuple[bytes, Job]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def seen(self, client: str, key: str, session: str, code: str) -> Job | None:
        """The eval that this key ran, or None. Raises Refusal `idempotency-conflict` for other code or session."""
        found = self._jobs.get((client, key))
        if found is None:
            return None
        if found[0] != _digest(session, code):
            raise Refusal("idempotency-conflict", f"idempotency-key {key} was used for other code")
        return found[1]

    def keep(self, client: str, key: str, session: str, code: str, job: Job) -> None:
        """Remember it."""
        self._jobs[client, key] = (_digest(session, code), job)
        while len(self._jobs) > self.limit:
            self._jobs.popitem(last=False)

    def drop(self, job: Job) -> None:
        """Forget the key of an eval that was not let run: it may be sent again."""
        for key in [key for key, (_, kept) in self._jobs.items() if kept is job]:
            del self._jobs[key]


def _digest(session: str, code: str) -> bytes:
    text = f"{session}\0{code}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()

"""Idempotency keys: which eval a key stands for, so that a repeat never runs the code twice."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from replbroker.core.quotas import KEYS, Holder, Quotas
from replbroker.core.session import Job
from replwire.faults import Refusal

_Entries = OrderedDict[tuple[Holder, str], tuple[bytes, Job]]


class Keys:
    """Bounded by number. Keys of different agents never meet, and where there are too many, the oldest one goes of the
    identity that has them: nobody's keys push out another's."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._jobs: dict[str, _Entries] = {}  # by identity

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def seen(self, holder: Holder, key: str, session: str, code: str) -> Job | None:
        """The eval that this key ran, or None. Raises Refusal `idempotency-conflict` for other code or session."""
        found = self._jobs.get(holder.identity, _Entries()).get((holder, key))
        if found is None:
            return None
        if found[0] != _digest(session, code):
            raise Refusal("idempotency-conflict", f"idempotency-key {key} was used for other code")
        return found[1]

    def keep(self, holder: Holder, key: str, session: str, code: str, job: Job) -> None:
        """Remember it."""
        while not self._quotas.has_room(KEYS, holder):
            mine = self._jobs.get(holder.identity)
            if mine is None:  # there are as many identities as keys
                return
            self._forget(next(iter(mine)))
        self._jobs.setdefault(holder.identity, _Entries())[holder, key] = (_digest(session, code), job)
        self._quotas.charge(KEYS, holder)

    def drop(self, job: Job) -> None:
        """Forget the key of an eval that was not let run: it may be sent again."""
        mine = self._jobs.get(job.turn.holder.identity, _Entries())
        for entry in [entry for entry, (_, kept) in mine.items() if kept is job]:
            self._forget(entry)

    def _forget(self, entry: tuple[Holder, str]) -> None:
        holder, _ = entry
        del self._jobs[holder.identity][entry]
        if not self._jobs[holder.identity]:
            del self._jobs[holder.identity]
        self._quotas.release(KEYS, holder)


def _digest(session: str, code: str) -> bytes:
    text = f"{session}\0{code}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()

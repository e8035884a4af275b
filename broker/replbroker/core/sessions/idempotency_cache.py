"""The idempotency cache: the eval of each idempotency key, so that a repeated request never runs the code twice."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator

from replbroker.core.limits.quotas import IDEMPOTENCY_KEYS, Holder, Quotas
from replbroker.core.sessions.change_log import ChangeLog
from replbroker.core.sessions.eval_task import EvalTask, IdempotencyKey
from replwire.faults import RequestError

_Entries = OrderedDict[tuple[Holder, str], EvalTask]


class IdempotencyCache:
    """A cache bounded by number, with keys per agent.

    When an identity has too many keys, its own oldest one is dropped, never that of another; first those that are the
    id of their request, which clients give to each eval and which are of use for a short time.

    Attributes:
        dropped: By identity, the moment when its latest key that was dropped for lack of room was put.
    """

    def __init__(self, quotas: Quotas, changes: ChangeLog) -> None:
        self._quotas = quotas
        self._changes = changes
        self.dropped: dict[str, float] = {}
        self._entries: dict[str, _Entries] = {}  # by identity

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def get(self, holder: Holder, key: str, session: str, code: str) -> EvalTask | None:
        """Return the eval that was run with this key, or None.

        Args:
            holder: The account that sent the key.
            key: The key.
            session: The session of the request.
            code: The code of the request.

        Raises:
            RequestError: `idempotency-conflict` for other code or another session, or when the eval was undone.
        """
        task = self._entries.get(holder.identity, _Entries()).get((holder, key))
        if task is None:
            return None
        assert task.key is not None, "a cached eval has its key"
        if task.key.digest != _digest(session, code):
            raise RequestError("idempotency-conflict", f"idempotency-key {key} was used for other code")
        if task.undone:
            err = f"idempotency-key {key} was used for eval {task.eval_id}, which was undone"
            raise RequestError("idempotency-conflict", err, eval_id=task.eval_id)
        return task

    def put(self, holder: Holder, key: str, session: str, code: str, task: EvalTask) -> None:
        """Remember the eval of a key; see `get`."""
        self.restore(IdempotencyKey(holder, key, _digest(session, code)), task)

    def restore(self, key: IdempotencyKey, task: EvalTask) -> None:
        """Remember the eval of a key that was put into the cache of the broker before this one."""
        identity = key.holder.identity
        while not self._quotas.has_room(IDEMPOTENCY_KEYS, key.holder):
            mine = self._entries.get(identity)
            if mine is None:  # there are as many identities as keys
                self._note_drop(identity, task)
                return
            oldest = next((each for each, other in mine.items() if _is_own(each[1], other)), next(iter(mine)))
            self._note_drop(identity, mine[oldest])
            self._remove(oldest)
        task.key = key
        self._entries.setdefault(key.holder.identity, _Entries())[key.holder, key.text] = task
        self._quotas.charge(IDEMPOTENCY_KEYS, key.holder)

    def find(self, holder: Holder, key: str) -> EvalTask | None:
        """Return the eval of a key, whatever its code, or None."""
        return self._entries.get(holder.identity, _Entries()).get((holder, key))

    def may_have_dropped(self, identity: str, sent_at: float) -> bool:
        """Return whether a key that an identity sent at this moment may have been dropped."""
        return identity in self.dropped and sent_at <= self.dropped[identity]

    def _note_drop(self, identity: str, task: EvalTask) -> None:
        self.dropped[identity] = max(self.dropped.get(identity, -math.inf), task.submitted_at)

    def tasks(self) -> Iterator[EvalTask]:
        """Yield the evals that have a key, the oldest of each identity first."""
        for entries in self._entries.values():
            yield from entries.values()

    def forget(self, task: EvalTask) -> None:
        """Forget the key of an eval that did not run, so that it may be sent again."""
        if task.key is not None:
            self._remove((task.key.holder, task.key.text))

    def _remove(self, entry: tuple[Holder, str]) -> None:
        holder, _ = entry
        task = self._entries[holder.identity].pop(entry)
        task.key = None
        if task.is_saved:
            self._changes.evals[task] = None
        if not self._entries[holder.identity]:
            del self._entries[holder.identity]
        self._quotas.release(IDEMPOTENCY_KEYS, holder)


def _is_own(key: str, task: EvalTask) -> bool:
    """Return whether a client gave this key to one request of its own accord."""
    return key == task.request_id


def _digest(session: str, code: str) -> bytes:
    text = f"{session}\0{code}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()

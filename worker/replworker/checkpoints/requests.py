"""Operations on checkpoints: `checkpoint`, `ls-checkpoints`, `drop-checkpoint` and `rollback`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from replwire.faults import RequestError
from replwire.link import AssignBody, BranchedBody, FrameKind, Header, Outcome, encode
from replwire.replies import CheckpointEntry, Reply
from replworker.checkpoints.recovery import Recovery
from replworker.checkpoints.session_files import SessionFiles
from replworker.checkpoints.taker import CheckpointKeeper, TakenCheckpoint
from replworker.checkpoints.tree import CheckpointNode
from replworker.interpreter import InterpreterBroken
from replworker.reply_sender import ReplySender

_HINT = "`ls-checkpoints` lists them"
_MAX_LISTED_EVALS = 100  # evals listed in a reply
_SHARED_FILES = "checkpoints of files: the branch shares the directory, and only its source brings back files"
_MOST_OF_BRANCH = 10_000  # evals that a branch contains, for the event


class _CheckpointRequest(msgspec.Struct):
    id: str
    name: str | None = None


class _ReferenceRequest(msgspec.Struct):
    id: str
    checkpoint: int | str | None = None
    to: int | str | None = None


class _BranchRequest(msgspec.Struct):
    id: str
    at: int | str | None = None


@dataclass(slots=True)
class _CheckpointInProgress:
    header: Header
    request_id: str
    name: str | None
    started: float = field(default_factory=time.monotonic)
    reply: Reply | None = None
    outcome: Outcome = Outcome.OK


_decode_checkpoint = msgspec.json.Decoder(_CheckpointRequest).decode
_decode_branch = msgspec.json.Decoder(_BranchRequest).decode
_decode_reference = msgspec.json.Decoder(_ReferenceRequest).decode


class CheckpointRequests:
    """Answers requests about the checkpoints of one session. `off` says why there are none, or is empty."""

    def __init__(
        self,
        taker: CheckpointKeeper,
        recovery: Recovery,
        files: SessionFiles,
        replies: ReplySender,
    ) -> None:
        self._taker = taker
        self._recovery = recovery
        self._files = files
        self._replies = replies
        self._assignment: AssignBody | None = None
        self._last: _CheckpointInProgress | None = None
        self.off = ""

    def assign(self, assignment: AssignBody, off: str) -> None:
        """Note the session, and why it has no checkpoints."""
        self._assignment = assignment
        self.off = off

    def handle_checkpoint(self, header: Header, body: bytes) -> None:
        """Keep the state of this moment; an automatic checkpoint of the same state gets the name."""
        request = _decode_checkpoint(body)
        asked = self._last = _CheckpointInProgress(header, request.id, request.name)
        refusal = self._refuse_checkpoint(request.name)
        if refusal is not None:
            self._refuse(asked, refusal)
            return
        self._obtain(lambda made, result: self._finish(asked, made, result), automatic_only=True)

    def _obtain(self, then: Callable[[CheckpointNode, TakenCheckpoint], None], *, automatic_only: bool) -> None:
        """Take a checkpoint of the present state, or use one of the same state; `then` is called when it waits."""
        tree, taker = self._taker.tree, self._taker

        def take() -> None:
            made = taker.take(lambda result: then(made, result), automatic=False)

        def use(same: CheckpointNode, result: TakenCheckpoint) -> None:
            if result.error is None:
                then(same, result)
            else:  # threads run: an automatic one is refused
                take()

        same = tree.find(tree.base) if tree.base is not None and not tree.changed else None
        if same is None or (automatic_only and not same.automatic) or self._files.is_on:  # files change without evals
            take()
        elif taker.is_complete(same.number):
            use(same, TakenCheckpoint(None, taker.not_restored.get(same.number, [])))
        else:
            taker.join(same.number, lambda result: use(same, result))

    def handle_branch(self, header: Header, body: bytes) -> None:
        """Tell the broker from which checkpoint a branch can begin: one that was named, or one of this moment."""
        request, taker = _decode_branch(body), self._taker
        asked = self._last = _CheckpointInProgress(header, request.id, None)
        if self.off:
            self._refuse(asked, RequestError("not-supported", f"branch: {self.off}"))
            return
        if request.at is None:
            self._obtain(lambda made, result: self._send_branched(asked, made, result), automatic_only=False)
            return
        wanted = taker.tree.find(request.at)
        if wanted is not None and taker.is_pending(wanted.number):
            taker.join(wanted.number, lambda result: self._send_branched(asked, wanted, result))
        elif wanted is None or not taker.is_complete(wanted.number):
            text = f"the session has no checkpoint {request.at}"
            self._refuse(asked, RequestError("checkpoint-not-found", text, hint=_HINT))
        else:
            missing = taker.not_restored.get(wanted.number, [])
            self._send_branched(asked, wanted, TakenCheckpoint(None, missing))

    def _send_branched(self, asked: _CheckpointInProgress, made: CheckpointNode, result: TakenCheckpoint) -> None:
        if result.error is not None:
            error = RequestError("checkpoint-failed", f"no checkpoint was taken: {result.error}")
            self._refuse(asked, error)
            return
        evals = self._taker.tree.line(made.number)[-_MOST_OF_BRANCH:]
        missing = [*result.not_restored, *([_SHARED_FILES] if self._files.is_on else [])]
        branched = BranchedBody(checkpoint=made.number, evals=evals, not_restored=missing)
        self._replies.send_control(FrameKind.BRANCHED, encode(branched), route=asked.header.route)
        text = "the broker has ended before the branch began"  # if the next one does not know of it
        asked.reply, asked.outcome = self._error_reply(asked, RequestError("checkpoint-failed", text)), Outcome.ERROR

    def _refuse_checkpoint(self, name: str | None) -> RequestError | None:
        most = self._taker.limits.max_checkpoints
        if self.off:
            return RequestError("not-supported", f"checkpoint: {self.off}")
        if name is not None and self._taker.tree.find(name) is not None:
            return RequestError("checkpoint-already-exists", f"the session has a checkpoint named {name}")
        if sum(each.name is not None for each in self._taker.tree) >= most:
            text = f"the session has {most} checkpoints with a name (max-checkpoints = {most})"
            hint = "drop one that is not needed"
            return RequestError("checkpoint-limit-reached", text, limit="max-checkpoints", limit_value=most, hint=hint)
        return None

    def _finish(self, asked: _CheckpointInProgress, made: CheckpointNode, result: TakenCheckpoint) -> None:
        if result.error is not None:
            error = RequestError("checkpoint-failed", f"no checkpoint was taken: {result.error}")
            self._refuse(asked, error)
            return
        assert self._assignment is not None
        made.automatic, made.name = False, asked.name
        reply = Reply(
            id=asked.request_id,
            status=["done"],
            checkpoint=made.number,
            checkpoint_name=made.name,
            session=self._assignment.session,
            name=self._assignment.name,
            epoch=self._replies.epoch,
            state="kept",
            eval_id=asked.header.eval,
            duration_ms=round((time.monotonic() - asked.started) * 1000, 3),
            not_restored=result.not_restored or None,
        )
        self._answer(asked, reply, Outcome.OK)

    def _refuse(self, asked: _CheckpointInProgress, error: RequestError) -> None:
        self._answer(asked, self._error_reply(asked, error), Outcome.ERROR)

    def _error_reply(self, asked: _CheckpointInProgress, error: RequestError) -> Reply:
        return Reply(
            id=asked.request_id,
            status=["done", "error", error.code],
            err=error.message,
            eval_id=asked.header.eval,
            epoch=self._replies.epoch,
            state="kept",
            **error.fields,
        )

    def _answer(self, asked: _CheckpointInProgress, reply: Reply, outcome: Outcome) -> None:
        asked.reply, asked.outcome = reply, outcome
        self._replies.send_reply(asked.header.route, reply, outcome)

    def resend(self, eval_id: int) -> bool:
        """Send the answer to a `checkpoint` again, if there is one yet. Return False if it was not the last one."""
        asked = self._last
        if asked is None or asked.header.eval != eval_id:
            return False
        if asked.reply is not None:
            self._replies.send_reply(asked.header.route, asked.reply, asked.outcome)
        return True

    def handle_list(self, route: int, body: bytes) -> None:
        """List the checkpoints."""
        request, tree = _decode_reference(body), self._taker.tree
        entries = [
            CheckpointEntry(
                checkpoint=each.number,
                checkpoint_name=each.name,
                eval_id=each.eval_id,
                parent=each.parent,
                created=each.created,
                automatic=each.automatic,
                current=each.number == tree.base,
                memory_bytes=self._taker.copies[each.number].own_bytes(),
            )
            for each in tree
            if self._taker.is_complete(each.number)
        ]
        dropped = self._taker.dropped or None
        off = self.off or self._taker.off or None
        self._replies.send_done(route, request.id, checkpoints=entries, dropped=dropped, checkpoints_off=off)

    def handle_drop(self, route: int, body: bytes) -> None:
        """Drop a checkpoint."""
        request = _decode_reference(body)
        assert request.checkpoint is not None
        found = self._find(request.checkpoint)
        if found is None:
            self._send_not_found(route, request.id, request.checkpoint)
            return
        self._taker.drop(found.number)
        self._replies.send_done(route, request.id, checkpoint=found.number, checkpoint_name=found.name)

    def handle_rollback(self, route: int, body: bytes) -> None:
        """Go back to a checkpoint, by default to right before the last eval. One that is being taken is awaited.

        Raises:
            InterpreterBroken: the copy has ended meanwhile
        """
        request, taker = _decode_reference(body), self._taker
        wanted = taker.tree.find_undo()[0] if request.to is None else taker.tree.find(request.to)
        if wanted is not None and taker.is_pending(wanted.number):
            taker.run_after(wanted.number, lambda: self.handle_rollback(route, body))
            return
        if request.to is not None:
            found = self._find(request.to)
            if found is None:
                self._send_not_found(route, request.id, request.to)
                return
        else:
            found, undone = taker.tree.find_undo()
            if found is None or len(undone) > 1 or not taker.is_complete(found.number):
                self._refuse_undo(route, request.id, found, undone)
                return
        if not self._recovery.roll_back(found.number, route):
            raise InterpreterBroken(f"its checkpoint {found.number} could not be restored")

    def _find(self, reference: int | str) -> CheckpointNode | None:
        found = self._taker.tree.find(reference)
        return found if found is not None and self._taker.is_complete(found.number) else None

    def _refuse_undo(self, route: int, request_id: str, found: CheckpointNode | None, undone: list[int]) -> None:
        if not undone:
            text = "there is no eval to undo"
        elif found is None:
            text = f"there is no checkpoint before eval {undone[-1]}" + (f": {self.off}" if self.off else "")
        else:
            evals = ", ".join(map(str, undone[-_MAX_LISTED_EVALS:]))
            text = (
                f"there is no checkpoint right before eval {undone[-1]}: "
                f"the newest before it is {found.number}, which would undo the evals {evals}"
            )
        listed = undone[-_MAX_LISTED_EVALS:] or None
        self._send_error(route, request_id, "checkpoint-not-found", text, undone_evals=listed, hint=_HINT)

    def _send_not_found(self, route: int, request_id: str, reference: int | str) -> None:
        text = f"the session has no checkpoint {reference}"
        self._send_error(route, request_id, "checkpoint-not-found", text, hint=_HINT)

    def _send_error(self, route: int, request_id: str, code: str, err: str, **more: Any) -> None:
        self._replies.send_error(route, request_id, code, err, epoch=self._replies.epoch, state="kept", **more)

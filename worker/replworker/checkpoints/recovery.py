"""The way back: another interpreter takes the place of the present one, started from a checkpoint's copy."""

from __future__ import annotations

import time

import msgspec

from replwire.deadlines import Deadline, Deadlines
from replwire.link import FrameKind, RolledBackBody, encode
from replwire.replies import Reply
from replworker.checkpoints.first_checkpoint import FirstCheckpoint
from replworker.checkpoints.sentences import killed_processes
from replworker.checkpoints.session_files import UNCHANGED, SessionFiles
from replworker.checkpoints.taker import CheckpointKeeper
from replworker.interpreter import Interpreter, InterpreterBroken
from replworker.reply_sender import ReplySender
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.sandbox_family import SandboxFamily
from replworker.session_streams import SessionStreams

NOT_STARTED = "the interpreter did not start from its checkpoint"
_START_S = 5.0  # for an interpreter to report that it was started from a copy


class Recovery:
    """Replaces the interpreter of a session.

    `void_epoch` is the epoch that ended with the last replacement: frames of it were sent before the broker knew.
    """

    def __init__(
        self,
        process: InterpreterProcess,
        interpreter: Interpreter,
        replies: ReplySender,
        streams: SessionStreams,
        timers: Deadlines,
        taker: CheckpointKeeper,
        family: SandboxFamily,
        files: SessionFiles,
        first: FirstCheckpoint,
    ) -> None:
        self._family = family
        self.member = family.join(process, taker.copies)
        self._process = process
        self._interpreter = interpreter
        self._replies = replies
        self._streams = streams
        self._timers = timers
        self._taker = taker
        self._files = files
        self._first = first
        self._unsent: tuple[RolledBackBody, int] | None = None  # with its route: files are being brought back
        self._deadline: Deadline | None = None  # for the interpreter to report its start
        self._delayed_cause: str | None = None  # it failed before the broker knew of it
        self.void_epoch = -1
        self.last: RolledBackBody | None = None

    @property
    def is_starting(self) -> bool:
        """True until the interpreter has reported that it was started from a copy."""
        return self._deadline is not None

    def recover(self, cause: str) -> bool:
        """Go on from the newest checkpoint of the present state after a crash. Return False if there is none."""
        self._send_unsent(["files were not restored: the interpreter ended"])
        if self.is_starting:
            assert self._taker.tree.base is not None
            self._end_start()
            self._taker.drop(self._taker.tree.base)  # its copy does not come up
        if self.void_epoch >= self._replies.epoch:
            self._delayed_cause = cause
            return True
        self._end_interpreter()
        tree = self._taker.tree
        while (number := tree.base) is not None:
            if number in self._taker.copies and self._go_to(number, 0, cause):
                return True
            self._taker.drop(number)
        return False

    def roll_back(self, number: int, route: int) -> bool:
        """Go to a checkpoint by request. Return False if its copy has ended; then the present interpreter has, too."""
        self._end_interpreter()
        return number in self._taker.copies and self._go_to(number, route, None)

    def resume(self, epoch: int) -> str | None:
        """Begin the epoch after a replacement. Return the cause for which the interpreter has failed meanwhile."""
        self._replies.epoch = epoch
        cause, self._delayed_cause = self._delayed_cause, None
        return cause

    def on_start(self) -> None:
        """Note that the interpreter has started."""
        self._end_start()

    def _end_start(self) -> None:
        self._timers.cancel(self._deadline)
        self._deadline = None

    def _end_interpreter(self) -> None:
        self._process.kill_interpreter()
        self._taker.on_interpreter_killed()
        self._interpreter.forget_requests()
        self._streams.drain()

    def _go_to(self, number: int, route: int, cause: str | None) -> bool:
        taker = self._taker
        killed = self._family.kill_leftovers(self.member)
        if not self._process.start_from(taker.copies[number].wake):
            return False
        self._deadline = self._timers.call_at(time.monotonic() + _START_S, self._on_start_timeout)
        self._first.assign_again(number)
        target = taker.tree.find(number)
        assert target is not None
        last_eval = self._streams.evals.last_id
        change = taker.tree.go_to(number)
        body = RolledBackBody(
            checkpoint=number,
            name=target.name,
            eval_id=target.eval_id,
            last_eval=last_eval,
            undone=change.undone,
            redone=change.redone,
            cause=cause,
            not_restored=[*taker.not_restored.get(number, []), *killed_processes(killed)],
        )
        self._end_eval(body)
        self._streams.evals.mark_undone(change.undone, True)
        self._streams.evals.mark_undone(change.redone, False)
        self.void_epoch = self._replies.epoch
        self._unsent = body, route
        if not self._files.is_on:
            self._send_unsent([])
        elif cause is not None:  # what the crashed eval has written may be all that is left of its work
            self._send_unsent([UNCHANGED])
        else:
            self._files.restore(number, self._send_unsent)
        return True

    def _send_unsent(self, more: list[str]) -> None:
        """Tell the broker, if it is not told yet; `more` is not restored either."""
        if self._unsent is not None:
            (body, route), self._unsent = self._unsent, None
            self.last = body = msgspec.structs.replace(body, not_restored=[*body.not_restored, *more])
            self._replies.send_control(FrameKind.ROLLED_BACK, encode(body), route=route)

    def _on_start_timeout(self, _: float) -> None:
        raise InterpreterBroken(NOT_STARTED)

    def _end_eval(self, body: RolledBackBody) -> None:
        """End the running eval's record, for `read`; the broker answers its client."""
        streams = self._streams
        streams.clear_stdin()
        record = streams.evals.running
        if record is None:
            return
        streams.finish_output(record)
        self._timers.cancel(record.resend_timer)
        for waiter in record.waiters:
            self._timers.cancel(waiter.deadline)
        record.waiters.clear()
        done = Reply(id=record.request_id, eval_id=record.eval_id, epoch=self._replies.epoch)
        if body.cause is None:
            done.status = ["done", "interrupted"]
        else:
            done.status = ["done", "error", "worker-lost" if record.limit_ms is None else "timeout"]
            done.err = done.cause = body.cause
        done.state, done.checkpoint = "rolled-back", body.checkpoint
        record.done = done
        streams.evals.end()

"""A fake worker for the core's harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from replwire.link import (
    HEADER_BYTES,
    AdoptedBody,
    AssignedBody,
    BranchedBody,
    ExitedBody,
    FrameKind,
    Header,
    HelloBody,
    Outcome,
    RolledBackBody,
    SnapshotBody,
    pack,
    unpack,
)
from replwire.replies import SkippedName

if TYPE_CHECKING:
    from core_harness import CoreHarness

_encode = msgspec.json.encode


class FakeWorker:
    """A fake worker: records the frames it gets, and sends any frame. `process` serves it, perhaps among others."""

    def __init__(self, harness: CoreHarness, number: int, process: int) -> None:
        self.harness = harness
        self.number = number
        self.process = process
        self.is_connected = True  # False: the broker it knew has ended
        harness.processes.add(process)
        self.received: list[tuple[Header, Any]] = []
        self.finals: dict[int, bytes] = {}  # what ended an eval, to be sent again
        self.rolled_back: bytes | None = None  # until it is acknowledged
        self.exited: bytes | None = None
        self.is_reactive = harness.auto and not harness.checkpoints  # kills its interpreter when it has to

    def send(self, kind: int, body: object = b"", **header: int) -> None:
        """Send any frame."""
        raw = body if isinstance(body, bytes) else _encode(body)
        frame = pack(kind, raw, **header)
        if kind == FrameKind.REPLY and header.get("outcome"):
            self.finals[header.get("eval", 0)] = frame
        elif kind == FrameKind.ROLLED_BACK:
            self.rolled_back = frame
        elif kind == FrameKind.INTERPRETER_EXITED:
            self.exited = frame
        self.harness.send_worker_frame(self.number, frame)

    # --- another broker ---

    @property
    def last_eval(self) -> int:
        """The highest eval that it has got."""
        return max((header.eval for header, _ in self.frames(FrameKind.REQUEST)), default=0)

    def come_back(self) -> None:
        """Connect to the broker that has taken the place of another."""
        self.is_connected = True
        (_, assigned), *_ = self.frames(FrameKind.ASSIGN)
        self.send(FrameKind.HELLO, HelloBody("t", 2, assigned["session"], self.epoch, self.last_eval))

    def on_adopt(self, header: Header) -> None:
        """Forget a rollback that the broker before this one has counted."""
        if self.rolled_back is not None and header.epoch > unpack(self.rolled_back).epoch:
            self.rolled_back = None

    def on_cancel(self) -> None:
        """Kill the interpreter if the last frame says so."""
        cause = self.received[-1][1]["kill"]
        if self.is_reactive and cause is not None:
            self.send_interpreter_exited(cause)

    def send_adopted(self) -> None:
        """Answer the last ADOPT, and send again what the broker does not know."""
        header, sent = self.frames(FrameKind.ADOPT)[-1]
        self.send(FrameKind.ADOPTED, AdoptedBody(sent["eval"] > self.last_eval), epoch=header.epoch)
        if self.exited is not None:
            self.send(FrameKind.INTERPRETER_EXITED, self.exited[HEADER_BYTES:])
        elif self.rolled_back is not None:
            self.send(FrameKind.ROLLED_BACK, self.rolled_back[HEADER_BYTES:], epoch=header.epoch)
        elif final := self.finals.get(sent["eval"]):
            at = unpack(final)
            where = {"outcome": at.outcome, "eval": at.eval, "route": sent["route"], "first": at.first}
            self.send(FrameKind.REPLY, final[HEADER_BYTES:], epoch=header.epoch, **where)

    @property
    def epoch(self) -> int:
        """The epoch of the last frame that had one."""
        return max(header.epoch for header, _ in self.received)

    def send_ready(self) -> None:
        self.send(FrameKind.READY)

    def send_assigned(self, error: str | None = None) -> None:
        """Answer the last ASSIGN."""
        header, assigned = self.frames(FrameKind.ASSIGN)[-1]
        restored = 3 if assigned["restore"] else 0
        body = AssignedBody(error, checkpoints_off="" if self.harness.checkpoints else "no", restored=restored)
        self.send(FrameKind.ASSIGNED, body, epoch=header.epoch)

    def send_snapshot(self, request_id: str, path: str = "/shelf/1", count: int = 2, left: Sequence[str] = ()) -> None:
        """Send that the session's snapshot is written, for a clone."""
        header = self.header_of(request_id)
        failed = {"id": request_id, "status": ["done", "error", "clone-failed"]}
        where = {"epoch": header.epoch, "eval": header.eval, "route": header.route}
        self.finals[header.eval] = pack(FrameKind.REPLY, _encode(failed), outcome=Outcome.ERROR, **where)
        body = SnapshotBody(path=path, count=count, bytes=10, skipped=[SkippedName(name, "no") for name in left])
        self.send(FrameKind.SNAPSHOT, body, epoch=header.epoch, route=header.route)

    def send_branched(self, request_id: str, checkpoint: int = 1, **fields: Any) -> None:
        """Send that a checkpoint waits to be the beginning of a branch."""
        header = self.header_of(request_id)
        body = BranchedBody(checkpoint=checkpoint, **fields)
        self.send(FrameKind.BRANCHED, body, epoch=header.epoch, route=header.route)

    def send_rolled_back(self, request_id: str | None = None, *, to: int = 1, last: int = 0, **fields: Any) -> None:
        """Send that the session goes on from a checkpoint, for a request or after a crash."""
        route = 0 if request_id is None else self.header_of(request_id).route
        epoch = self.epoch
        body = RolledBackBody(checkpoint=to, eval_id=fields.pop("eval_id", 0), last_eval=last, **fields)
        self.send(FrameKind.ROLLED_BACK, body, epoch=epoch, route=route)

    def send_interpreter_exited(self, cause: str) -> None:
        """Send that its interpreter has exited."""
        self.send(FrameKind.INTERPRETER_EXITED, ExitedBody(cause))

    def exit(self, cause: str = "killed by SIGKILL") -> None:
        """Let the worker process die, with all sessions that it serves."""
        harness = self.harness
        harness.end_process(self.process)
        harness.apply(harness.core.handle_worker_exit(self.process, cause, harness.now))

    def frames(self, kind: int) -> list[tuple[Header, Any]]:
        """Return the frames of a kind that it got, with their bodies."""
        return [(header, body) for header, body in self.received if header.kind == kind]

    def op_of(self, request_id: str) -> str:
        """Return the operation of a request that it got."""
        return str(next(body["op"] for _, body in self.frames(FrameKind.REQUEST) if body["id"] == request_id))

    def header_of(self, request_id: str) -> Header:
        """Return the header of a request that it got."""
        return next(header for header, body in self.frames(FrameKind.REQUEST) if body["id"] == request_id)

    def reply(self, request_id: str, outcome: int = Outcome.OK, kind: int = FrameKind.REPLY, **fields: Any) -> None:
        """Reply to a request; finally unless `outcome` is NONE."""
        header = self.header_of(request_id)
        body = {"id": request_id, "worker": self.number, "epoch": header.epoch} | fields
        if outcome != Outcome.NONE:
            body.setdefault("status", ["done"])
        self.send(kind, body, outcome=outcome, epoch=header.epoch, eval=header.eval, route=header.route)

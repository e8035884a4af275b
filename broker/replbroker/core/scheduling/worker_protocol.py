"""Frames from workers: replies on their way to clients, and reports about the worker itself."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from replbroker.core.effects import DeleteSnapshot, Effect, LeaveWorker, Peer, ToClient
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.scheduling.memory_pressure import MemoryPressure
from replbroker.core.scheduling.outcomes import STATUS_OF
from replbroker.core.scheduling.worker import Worker
from replbroker.core.sessions.eval_task import EvalTask, WorkerRequest
from replbroker.core.sessions.session import ADOPTING, BUSY, IDLE
from replbroker.core.state import BrokerState
from replwire.faults import clip
from replwire.link import (
    HEADER_BYTES,
    AdoptedBody,
    AssignedBody,
    BranchedBody,
    CheckpointedBody,
    ExitedBody,
    FrameKind,
    Header,
    HeartbeatBody,
    HelloBody,
    Outcome,
    RolledBackBody,
    SnapshotBody,
    unpack,
)
from replwire.ops import Branch, Checkpoint, Clone, Hibernate, Save

_decode_branched = msgspec.json.Decoder(BranchedBody).decode
_decode_checkpointed = msgspec.json.Decoder(CheckpointedBody).decode
_decode_hello = msgspec.json.Decoder(HelloBody).decode
_decode_adopted = msgspec.json.Decoder(AdoptedBody).decode
_decode_exited = msgspec.json.Decoder(ExitedBody).decode
_decode_assigned = msgspec.json.Decoder(AssignedBody).decode
_decode_snapshot = msgspec.json.Decoder(SnapshotBody).decode
_decode_rolled_back = msgspec.json.Decoder(RolledBackBody).decode
_decode_heartbeat = msgspec.json.Decoder(HeartbeatBody).decode
_VIEW_ABOVE_BYTES = 4096  # bodies above this are forwarded as a view of the frame; below it a copy is cheaper


class _Status(msgspec.Struct):
    status: list[str]


class _TakenCheckpoint(msgspec.Struct, rename="kebab"):
    checkpoint: int
    checkpoint_name: str | None = None


class _SavedSnapshot(msgspec.Struct):
    count: int
    bytes: int


class _WrittenFile(msgspec.Struct):
    file: str
    bytes: int = 0
    sha256: str | None = None  # with the last part


_decode_checkpoint = msgspec.json.Decoder(_TakenCheckpoint).decode
_decode_written = msgspec.json.Decoder(_WrittenFile).decode
_decode_saved = msgspec.json.Decoder(_SavedSnapshot).decode
_decode_status = msgspec.json.Decoder(_Status).decode


def _status_in(frame: bytes, first: int) -> list[str]:
    """Return the status of a final message that names a fault: the frame's header only says that there is one."""
    try:
        return _decode_status(memoryview(frame)[HEADER_BYTES + first :]).status
    except msgspec.MsgspecError:
        return STATUS_OF[Outcome.ERROR]


class SnapshotReady(NamedTuple):
    """A snapshot of a session's variables, for a clone or for hibernation."""

    task: EvalTask
    body: SnapshotBody


class BranchReady(NamedTuple):
    """A checkpoint that a branch is to begin with."""

    task: EvalTask
    body: BranchedBody


class WorkerProtocol:
    """Handles the frames of all workers."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler, memory: MemoryPressure) -> None:
        self._state = state
        self._scheduler = scheduler
        self._memory = memory

    def handle(self, worker: Worker, frame: bytes, now: float) -> SnapshotReady | BranchReady | None:
        """Handle one frame.

        Returns:
            The snapshot or checkpoint that the frame announces, for the clone or branch that asked for it.

        Raises:
            ValueError: The frame is malformed.
            MsgspecError: Its body is malformed.
        """
        header = unpack(frame)
        kind = header.kind
        if kind == FrameKind.OUTPUT or kind == FrameKind.REPLY:
            self._forward(worker, header, frame, now)
        elif kind == FrameKind.READY:
            self._scheduler.pool.on_ready(worker, now)
        elif kind == FrameKind.ASSIGNED:
            session = worker.session
            if session is not None and header.epoch == session.epoch:
                self._scheduler.on_assigned(session, _decode_assigned(frame[HEADER_BYTES:]), now)
        elif kind == FrameKind.SNAPSHOT:
            return self._on_snapshot(worker, header, frame)
        elif kind == FrameKind.BRANCHED:
            return self._on_branched(worker, header, _decode_branched(frame[HEADER_BYTES:]))
        elif kind == FrameKind.ROLLED_BACK:
            self._on_rolled_back(worker, header, _decode_rolled_back(frame[HEADER_BYTES:]), now)
        elif kind == FrameKind.INTERPRETER_EXITED:
            cause = clip(_decode_exited(frame[HEADER_BYTES:]).cause)
            self._scheduler.teardown.on_worker_lost(worker, cause, now, dead=False)
        elif kind == FrameKind.HEARTBEAT:
            if len(frame) > HEADER_BYTES:
                self._record_usage(worker, _decode_heartbeat(frame[HEADER_BYTES:]), now)
        elif kind == FrameKind.CHECKPOINTED:
            if worker.session is not None and header.epoch == worker.session.epoch:
                self._state.emitter.emit_auto_checkpoints(worker.session, _decode_checkpointed(frame[HEADER_BYTES:]))
        elif kind == FrameKind.HELLO:
            self._scheduler.adoption.on_hello(worker, _decode_hello(frame[HEADER_BYTES:]), now)
        elif kind == FrameKind.ADOPTED:
            self._scheduler.adoption.on_adopted(worker, header, _decode_adopted(frame[HEADER_BYTES:]), now)
        else:
            raise ValueError(f"a worker does not say {kind}")
        return None

    @staticmethod
    def answer_unknown(number: int, frame: bytes) -> list[Effect]:
        """End a worker that connects although no session has it any more, in a process that serves others."""
        try:
            is_hello = unpack(frame).kind == FrameKind.HELLO
        except ValueError:
            return []
        return [LeaveWorker(number)] if is_hello else []

    def _record_usage(self, worker: Worker, usage: HeartbeatBody, now: float) -> None:
        """Record what a worker's session has used. It may be less than before, because processes have ended."""
        if worker.session is not None:
            seconds = usage.cpu_seconds - worker.usage.cpu_seconds
            self._state.emitter.metrics.add_cpu(worker.session.agent, max(0.0, seconds))
            self._memory.on_usage(worker.usage, usage, now)
        worker.usage = usage

    def _on_rolled_back(self, worker: Worker, header: Header, body: RolledBackBody, now: float) -> None:
        session = worker.session
        if session is not None and session.state is ADOPTING:
            return  # it is sent again after ADOPTED
        if session is None or session.state not in (IDLE, BUSY):
            raise ValueError("a worker that is not assigned has no checkpoint")
        if header.epoch != session.epoch:
            return
        target = self._state.routes.get(header.route)
        request = target if isinstance(target, WorkerRequest) and target.session is session else None
        self._scheduler.rollbacks.on_rolled_back(worker, session, request, body, now)

    def _forward(self, worker: Worker, header: Header, frame: bytes, now: float) -> None:
        """Send a reply on to its client, unless its route is not this worker's in this epoch."""
        state, outcome = self._state, header.outcome
        target = state.routes.get(header.route)
        if target is None or target.session.worker != worker.number or header.epoch != target.session.epoch:
            return
        if isinstance(target, EvalTask) and (target.state is not EvalTask.RUNNING or target.session.state is not BUSY):
            return
        if outcome and outcome not in STATUS_OF:
            raise ValueError(f"an answer does not end with {outcome}")
        if state.bus.has_listeners and isinstance(target, EvalTask):
            state.emitter.observe_reply(target, header, memoryview(frame)[HEADER_BYTES:])
        if target.peer is not None:
            body = memoryview(frame)[HEADER_BYTES:] if len(frame) > _VIEW_ABOVE_BYTES else frame[HEADER_BYTES:]
            output_of = target.request_id if header.kind == FrameKind.OUTPUT else None
            if header.first:
                if header.first >= len(body):
                    raise ValueError("the first of two messages is longer than both")
                state.effects.append(ToClient(target.peer, body[: header.first], output_of, more=True))
                body = body[header.first :]
            if outcome and state.ignored_fields:
                body = self._with_ignored_fields(target.peer, target.request_id, body)
            state.effects.append(ToClient(target.peer, body, output_of))
        if outcome == Outcome.NONE:
            return
        if target.peer is not None:
            status = STATUS_OF[outcome] if outcome != Outcome.ERROR else _status_in(frame, header.first)
            state.audit.finish(target.peer, target.request_id, status, None)
        if isinstance(target, EvalTask):
            if isinstance(target.request, Checkpoint) and outcome == Outcome.OK:
                taken = _decode_checkpoint(memoryview(frame)[HEADER_BYTES:])
                state.emitter.emit_session_checkpoint(target, taken.checkpoint, taken.checkpoint_name)
            elif isinstance(target.request, Save) and outcome == Outcome.OK:
                saved = _decode_saved(memoryview(frame)[HEADER_BYTES:])
                state.emitter.emit_session_saved(target, saved.count, saved.bytes)
            self._scheduler.lifecycle.on_eval_finished(target, outcome, now)
        else:
            if target.op == "put-file" and outcome == Outcome.OK:
                self._emit_written(target, memoryview(frame)[HEADER_BYTES:])
            self._scheduler.lifecycle.on_request_finished(target, now)

    def _emit_written(self, request: WorkerRequest, body: memoryview) -> None:
        reply = _decode_written(body)
        if reply.sha256 is not None:
            self._state.emitter.emit_file_written(request.session, request.agent_label, reply.file, reply.bytes)

    def _with_ignored_fields(self, peer: Peer, request_id: str, body: bytes | memoryview) -> bytes | memoryview:
        """Add the names of the request's unknown fields to its final message."""
        ignored = self._state.ignored_fields.pop((peer, request_id), None)
        if ignored is None:
            return body
        return bytes(body[:-1]) + b',"ignored-fields":' + msgspec.json.encode(ignored) + b"}"

    def _on_snapshot(self, worker: Worker, header: Header, frame: bytes) -> SnapshotReady | None:
        snapshot = _decode_snapshot(frame[HEADER_BYTES:])
        task = self._find_running(worker, header)
        if task is not None and isinstance(task.request, Clone | Hibernate):
            return SnapshotReady(task, snapshot)
        self._state.effects.append(DeleteSnapshot(snapshot.path))
        return None

    def _on_branched(self, worker: Worker, header: Header, body: BranchedBody) -> BranchReady | None:
        task = self._find_running(worker, header)
        return BranchReady(task, body) if task is not None and isinstance(task.request, Branch) else None

    def _find_running(self, worker: Worker, header: Header) -> EvalTask | None:
        """Return the running eval of a frame's route, if it is this worker's in this epoch."""
        target = self._state.routes.get(header.route)
        if not isinstance(target, EvalTask) or target.state is not EvalTask.RUNNING:
            return None
        session = target.session
        is_current = session.worker == worker.number and header.epoch == session.epoch and session.state is BUSY
        return target if is_current else None

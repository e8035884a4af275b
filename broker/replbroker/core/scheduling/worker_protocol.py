"""What a worker says, frame by frame: answers on their way to clients, and news of itself."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from replbroker.core.effects import DeleteSnapshot, Peer, ToClient
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.scheduling.memory_pressure import MemoryPressure
from replbroker.core.scheduling.outcomes import STATUS_OF
from replbroker.core.scheduling.worker_pool import Worker
from replbroker.core.sessions.session import EvalTask, WorkerRequest
from replbroker.core.state import BrokerState
from replwire.faults import clip
from replwire.link import (
    HEADER_BYTES,
    AssignedBody,
    ExitedBody,
    FrameKind,
    Header,
    HeartbeatBody,
    Outcome,
    SnapshotBody,
    unpack,
)
from replwire.ops import Clone

_decode_gone = msgspec.json.Decoder(ExitedBody).decode
_decode_claimed = msgspec.json.Decoder(AssignedBody).decode
_decode_dumped = msgspec.json.Decoder(SnapshotBody).decode
_decode_usage = msgspec.json.Decoder(HeartbeatBody).decode
_VIEW_ABOVE_BYTES = 4096  # bodies above this are passed on as a view of the frame, below it a copy is cheaper


class _Status(msgspec.Struct):
    status: list[str]


_decode_status = msgspec.json.Decoder(_Status).decode


def _status_in(frame: bytes, first: int) -> list[str]:
    """Which fault an answer names: the header of a frame says no more than that there is one."""
    try:
        return _decode_status(memoryview(frame)[HEADER_BYTES + first :]).status
    except msgspec.MsgspecError:
        return STATUS_OF[Outcome.ERROR]


class WorkerProtocol:
    """`snapshot` is told of a dump that a clone asked for, `lost` of a worker that is gone."""

    def __init__(
        self,
        state: BrokerState,
        evals: EvalScheduler,
        memory: MemoryPressure,
        snapshot: Callable[[EvalTask, SnapshotBody, float], None],
        lost: Callable[..., None],
    ) -> None:
        self._state = state
        self._evals = evals
        self._memory = memory
        self._handle_snapshot = snapshot
        self._on_worker_lost = lost

    def handle(self, worker: Worker, frame: bytes, now: float) -> None:
        """One frame. Raises ValueError or MsgspecError for a malformed one."""
        header = unpack(frame)
        kind = header.kind
        if kind == FrameKind.OUTPUT or kind == FrameKind.REPLY:
            self._forward(worker, header, frame, now)
        elif kind == FrameKind.READY:
            self._evals.pool.on_ready(worker, now)
        elif kind == FrameKind.ASSIGNED:
            session = worker.session
            if session is not None and header.epoch == session.epoch:
                self._evals.on_assigned(session, _decode_claimed(frame[HEADER_BYTES:]), now)
        elif kind == FrameKind.SNAPSHOT:
            self._on_snapshot(worker, header, frame, now)
        elif kind == FrameKind.INTERPRETER_EXITED:
            self._on_worker_lost(worker, clip(_decode_gone(frame[HEADER_BYTES:]).cause), now, dead=False)
        elif kind == FrameKind.HEARTBEAT:
            if len(frame) > HEADER_BYTES:
                self._record_usage(worker, _decode_usage(frame[HEADER_BYTES:]), now)
        elif kind != FrameKind.HELLO:
            raise ValueError(f"a worker does not say {kind}")

    def _record_usage(self, worker: Worker, usage: HeartbeatBody, now: float) -> None:
        """What a worker's session has used so far; its processes may have ended, so that it is less than before."""
        if worker.session is not None:
            more = usage.cpu_seconds - worker.usage.cpu_seconds
            self._state.emitter.metrics.add_cpu(worker.session.agent, max(0.0, more))
            self._memory.on_usage(worker.usage, usage, now)
        worker.usage = usage

    def _forward(self, worker: Worker, header: Header, frame: bytes, now: float) -> None:
        """An answer on its way to a client. Its route must be this worker's, in this epoch, else it is dropped."""
        target = self._target(worker, header)
        if target is None:
            return
        if header.outcome and header.outcome not in STATUS_OF:
            raise ValueError(f"an answer does not end with {header.outcome}")
        if self._state.bus.has_listeners and isinstance(target, EvalTask):
            self._observe(target, header, memoryview(frame)[HEADER_BYTES:])
        if target.peer is not None:
            body = memoryview(frame)[HEADER_BYTES:] if len(frame) > _VIEW_ABOVE_BYTES else frame[HEADER_BYTES:]
            output_of = target.request_id if header.kind == FrameKind.OUTPUT else None
            if header.first:
                if header.first >= len(body):
                    raise ValueError("the first of two messages is longer than both")
                self._state.effects.append(ToClient(target.peer, body[: header.first], output_of, more=True))
                body = body[header.first :]
            if header.outcome and self._state.ignored_fields:
                body = self._with_ignored(target.peer, target.request_id, body)
            self._state.effects.append(ToClient(target.peer, body, output_of))
        if header.outcome == Outcome.NONE:
            return
        if target.peer is not None:
            status = STATUS_OF[header.outcome] if header.outcome != Outcome.ERROR else _status_in(frame, header.first)
            self._state.audit.finish(target.peer, target.request_id, status, None)
        if isinstance(target, EvalTask):
            self._evals.on_eval_finished(target, header.outcome, now)
        else:
            self._evals.on_request_finished(target, now)

    def _with_ignored(self, peer: Peer, request_id: str, body: bytes | memoryview) -> bytes | memoryview:
        """The last message of a request, and in it the names of fields that had no effect."""
        ignored = self._state.ignored_fields.pop((peer, request_id), None)
        if ignored is None:
            return body
        return bytes(body[:-1]) + b',"ignored-fields":' + msgspec.json.encode(ignored) + b"}"

    def _observe(self, job: EvalTask, header: Header, body: memoryview) -> None:
        """What events say of an eval is what its client is told."""
        news, value, last = self._state.emitter, body[: header.first], body[header.first :]
        if header.outcome != Outcome.NONE:
            news.record_final(job, last, value)
            return
        for each in (value, last) if header.first else (last,):
            news.emit_output(job, each, text=header.kind == FrameKind.OUTPUT)

    def _target(self, worker: Worker, header: Header) -> EvalTask | WorkerRequest | None:
        """What a worker's answer is for, if it may answer that."""
        target = self._state.routes.get(header.route)
        if target is None or target.session.worker != worker.number or header.epoch != target.session.epoch:
            return None
        return None if isinstance(target, EvalTask) and target.state is not EvalTask.RUNNING else target

    def _on_snapshot(self, worker: Worker, header: Header, frame: bytes, now: float) -> None:
        """A session's names are in a file: what a clone asked for."""
        target = self._target(worker, header)
        dumped = _decode_dumped(frame[HEADER_BYTES:])
        if isinstance(target, EvalTask) and isinstance(target.request, Clone):
            self._handle_snapshot(target, dumped, now)
        else:
            self._state.effects.append(DeleteSnapshot(dumped.path))

"""What a worker says, frame by frame: answers on their way to clients, and news of itself."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from replbroker.core.effects import Discard, Peer, ToClient
from replbroker.core.evals import Evals
from replbroker.core.memory_pressure import MemoryPressure
from replbroker.core.outcomes import STATUS_OF
from replbroker.core.session import Ask, Job
from replbroker.core.staff import Worker
from replbroker.core.state import State
from replwire.faults import clip
from replwire.link import HEADER_BYTES, Claimed, Dumped, Gone, Header, Kind, Outcome, Usage, unpack
from replwire.ops import Clone

_decode_gone = msgspec.json.Decoder(Gone).decode
_decode_claimed = msgspec.json.Decoder(Claimed).decode
_decode_dumped = msgspec.json.Decoder(Dumped).decode
_decode_usage = msgspec.json.Decoder(Usage).decode
_BIG = 4096  # bodies above this are passed on as a view of the frame, below it a copy is cheaper


class _Status(msgspec.Struct):
    status: list[str]


_decode_status = msgspec.json.Decoder(_Status).decode


def _status_in(frame: bytes, first: int) -> list[str]:
    """Which fault an answer names: the header of a frame says no more than that there is one."""
    try:
        return _decode_status(memoryview(frame)[HEADER_BYTES + first :]).status
    except msgspec.MsgspecError:
        return STATUS_OF[Outcome.ERROR]


class WorkerFrames:
    """`snapshot` is told of a dump that a clone asked for, `lost` of a worker that is gone."""

    def __init__(
        self,
        state: State,
        evals: Evals,
        memory: MemoryPressure,
        snapshot: Callable[[Job, Dumped, float], None],
        lost: Callable[..., None],
    ) -> None:
        self._state = state
        self._evals = evals
        self._memory = memory
        self._snapshot = snapshot
        self._lost = lost

    def take(self, worker: Worker, frame: bytes, now: float) -> None:
        """One frame. Raises ValueError or MsgspecError for a malformed one."""
        header = unpack(frame)
        kind = header.kind
        if kind == Kind.OUT or kind == Kind.SAY:
            self._pass_on(worker, header, frame, now)
        elif kind == Kind.READY:
            self._evals.staff.ready(worker, now)
        elif kind == Kind.CLAIMED:
            session = worker.session
            if session is not None and header.epoch == session.epoch:
                self._evals.claimed(session, _decode_claimed(frame[HEADER_BYTES:]), now)
        elif kind == Kind.DUMPED:
            self._dumped(worker, header, frame, now)
        elif kind == Kind.GONE:
            self._lost(worker, clip(_decode_gone(frame[HEADER_BYTES:]).cause), now, dead=False)
        elif kind == Kind.BEAT:
            if len(frame) > HEADER_BYTES:
                self._used(worker, _decode_usage(frame[HEADER_BYTES:]), now)
        elif kind != Kind.HELLO:
            raise ValueError(f"a worker does not say {kind}")

    def _used(self, worker: Worker, usage: Usage, now: float) -> None:
        """What a worker's session has used so far; its processes may have ended, so that it is less than before."""
        if worker.session is not None:
            more = usage.cpu_seconds - worker.usage.cpu_seconds
            self._state.news.figures.used(worker.session.agent, max(0.0, more))
            self._memory.told(worker.usage, usage, now)
        worker.usage = usage

    def _pass_on(self, worker: Worker, header: Header, frame: bytes, now: float) -> None:
        """An answer on its way to a client. Its route must be this worker's, in this epoch, else it is dropped."""
        target = self._target(worker, header)
        if target is None:
            return
        if header.outcome and header.outcome not in STATUS_OF:
            raise ValueError(f"an answer does not end with {header.outcome}")
        if self._state.bus.wanted and isinstance(target, Job):
            self._overhear(target, header, memoryview(frame)[HEADER_BYTES:])
        if target.peer is not None:
            body = memoryview(frame)[HEADER_BYTES:] if len(frame) > _BIG else frame[HEADER_BYTES:]
            output_of = target.request_id if header.kind == Kind.OUT else None
            if header.first:
                if header.first >= len(body):
                    raise ValueError("the first of two messages is longer than both")
                self._state.out.append(ToClient(target.peer, body[: header.first], output_of, more=True))
                body = body[header.first :]
            if header.outcome and self._state.ignored:
                body = self._with_ignored(target.peer, target.request_id, body)
            self._state.out.append(ToClient(target.peer, body, output_of))
        if header.outcome == Outcome.NONE:
            return
        if target.peer is not None:
            status = STATUS_OF[header.outcome] if header.outcome != Outcome.ERROR else _status_in(frame, header.first)
            self._state.trail.end(target.peer, target.request_id, status, None)
        if isinstance(target, Job):
            self._evals.ended(target, header.outcome, now)
        else:
            self._evals.asked(target, now)

    def _with_ignored(self, peer: Peer, request_id: str, body: bytes | memoryview) -> bytes | memoryview:
        """The last message of a request, and in it the names of fields that had no effect."""
        ignored = self._state.ignored.pop((peer, request_id), None)
        if ignored is None:
            return body
        return bytes(body[:-1]) + b',"ignored-fields":' + msgspec.json.encode(ignored) + b"}"

    def _overhear(self, job: Job, header: Header, body: memoryview) -> None:
        """What events say of an eval is what its client is told."""
        news, value, last = self._state.news, body[: header.first], body[header.first :]
        if header.outcome != Outcome.NONE:
            news.ends(job, last, value)
            return
        for each in (value, last) if header.first else (last,):
            news.shown(job, each, text=header.kind == Kind.OUT)

    def _target(self, worker: Worker, header: Header) -> Job | Ask | None:
        """What a worker's answer is for, if it may answer that."""
        target = self._state.routes.get(header.route)
        if target is None or target.session.worker != worker.number or header.epoch != target.session.epoch:
            return None
        return None if isinstance(target, Job) and target.state is not Job.RUNNING else target

    def _dumped(self, worker: Worker, header: Header, frame: bytes, now: float) -> None:
        """A session's names are in a file: what a clone asked for."""
        target = self._target(worker, header)
        dumped = _decode_dumped(frame[HEADER_BYTES:])
        if isinstance(target, Job) and isinstance(target.request, Clone):
            self._snapshot(target, dumped, now)
        else:
            self._state.out.append(Discard(dumped.path))

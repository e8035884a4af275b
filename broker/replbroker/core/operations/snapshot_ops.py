"""Operations on saved snapshots. The broker stores their bytes in a file, and reads no more than the header."""

from __future__ import annotations

from replbroker.core.effects import Peer, WriteSnapshot
from replbroker.core.operations.eval_ops import EvalOps
from replbroker.core.operations.query_ops import QueryOps
from replbroker.core.sessions.snapshot_uploads import SnapshotUpload
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.snapshot_file import SnapshotRefused, decode_header


class SnapshotOps:
    """Each method takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, evals: EvalOps, queries: QueryOps) -> None:
        self._state = state
        self._evals = evals
        self._queries = queries

    def save(self, request: wire.Save, peer: Peer, body: bytes, now: float) -> None:
        """Have the worker write a snapshot, in its turn."""
        self._evals.submit_request(request, peer, body, now)

    def get_snapshot(self, request: wire.GetSnapshot, peer: Peer, body: bytes, now: float) -> None:
        """Have the worker send a part of its snapshot. No worker is started for this."""
        session = self._state.lookup.get(request, peer)
        if session.worker is None or session.start_deadline is not None:
            err = f"session {session.label} has no snapshot: it ended with the session's worker"
            raise RequestError("snapshot-not-found", err, cause=session.lost_cause)
        self._queries.forward(request, peer, body, now)

    def put_snapshot(self, request: wire.PutSnapshot, peer: Peer, _: bytes, now: float) -> None:
        """Have a part written. `on_written` replies."""
        state, limits = self._state, self._state.limits
        if state.draining:
            raise RequestError("shutdown", "server is shutting down")
        if len(request.data) > limits.max_part_bytes:
            raise state.limit_error("message-too-large", "max-part-bytes", f"a part of {len(request.data)} bytes")
        upload = self._find_or_begin(request, peer)
        if request.offset != upload.size:
            raise RequestError("invalid-request", f"offset: the next part begins at {upload.size}")
        upload.add(request.data)
        if state.uploads.bytes_of(upload.identity) > limits.max_snapshot_bytes:
            state.uploads.drop(upload)
            raise state.limit_error("message-too-large", "max-snapshot-bytes", "the snapshot is too long")
        if request.last and (damage := upload.find_damage()) is not None:
            state.uploads.drop(upload)
            raise RequestError("snapshot-failed", f"the snapshot cannot be used: {damage}")
        state.uploads.expect_more(upload, now + limits.transfer_idle_ms / 1000)
        state.effects.append(WriteSnapshot(upload.id, request.data, peer, request.id, request.last))

    def _find_or_begin(self, request: wire.PutSnapshot, peer: Peer) -> SnapshotUpload:
        state = self._state
        if request.snapshot is not None:
            upload = state.uploads.find(peer, request.snapshot)
            if upload is None or upload.is_complete:
                raise RequestError("snapshot-not-found", "this connection does not send such a snapshot")
            return upload
        try:
            header, length = decode_header(request.data)
        except SnapshotRefused as refused:
            raise RequestError("snapshot-failed", f"the snapshot cannot be used: {refused}") from None
        upload = SnapshotUpload(state.config.new_id(), peer, state.access.identity_of(peer), header, length)
        state.uploads.add(upload)
        return upload

    def on_written(self, effect: WriteSnapshot, path: str, error: str | None) -> None:
        """Reply to the sender of a part that was written, or could not be."""
        state = self._state
        upload = state.uploads.find(effect.peer, effect.snapshot)
        if upload is None:  # its sender has left, and is not answered
            return
        upload.path = path
        if error is not None:
            state.uploads.drop(upload)
            failed = RequestError("snapshot-failed", f"the snapshot cannot be stored: {error}")
            state.reply_error(effect.peer, effect.request_id, failed)
            return
        upload.is_complete = effect.last
        state.reply(effect.peer, effect.request_id, status=["done"], snapshot=upload.id, bytes=upload.size)

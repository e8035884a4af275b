"""Operations about checkpoints. The worker keeps them and decides; a session without one has none."""

from __future__ import annotations

from replbroker.core.effects import Peer
from replbroker.core.operations.eval_ops import EvalOps
from replbroker.core.operations.query_ops import QueryOps
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError


class CheckpointOps:
    """Each method takes the typed request, its sender, its bytes and the moment."""

    def __init__(self, state: BrokerState, evals: EvalOps, queries: QueryOps) -> None:
        self._state = state
        self._evals = evals
        self._queries = queries

    def checkpoint(self, request: wire.Checkpoint, peer: Peer, body: bytes, now: float) -> None:
        """Have the worker keep the session's state, in its turn."""
        self._evals.submit_request(request, peer, body, now)

    def ls_checkpoints(self, request: wire.LsCheckpoints, peer: Peer, body: bytes, now: float) -> None:
        """Reply with the checkpoints of a session. No worker is started for this."""
        session = self._state.lookup.get(request, peer)
        if self._has_worker(session):
            self._queries.forward(request, peer, body, now)
        else:
            self._state.reply(peer, request.id, status=["done"], checkpoints=[])

    def forward(
        self, request: wire.Rollback | wire.DropCheckpoint | wire.Diff, peer: Peer, body: bytes, now: float
    ) -> None:
        """Have the worker roll back to a checkpoint, drop one, or compare files with one."""
        session = self._state.lookup.get(request, peer)
        if session.replacement is not None:
            raise RequestError("busy", f"session {session.label} changes its environment: wait")
        if not self._has_worker(session):
            err = f"session {session.label} has no checkpoint: they end with the session's worker"
            raise RequestError("checkpoint-not-found", err, cause=session.lost_cause)
        self._queries.forward(request, peer, body, now)

    @staticmethod
    def _has_worker(session: Session) -> bool:
        return session.worker is not None and session.start_deadline is None

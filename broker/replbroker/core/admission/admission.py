"""Admission: which requests are looked at at all, and the errors for all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replbroker.core.admission.connection_admission import ConnectionAdmission
from replbroker.core.admission.delayed_errors import DelayedErrors
from replbroker.core.admission.disconnects import detach_peer, end_connection
from replbroker.core.admission.protocol_errors import count_protocol_error
from replbroker.core.admission.rate_limits import check_rate
from replbroker.core.effects import Peer
from replbroker.core.limits.quotas import CONNECTIONS
from replbroker.core.scheduling.session_teardown import SessionTeardown
from replbroker.core.scheduling.subscription_ends import end_subscriptions
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.identities import ANONYMOUS
from replwire.requests import extract_id


class Admission:
    """Admits connections and requests, and forgets clients that have left or lost their key."""

    def __init__(self, state: BrokerState, teardown: SessionTeardown) -> None:
        self._state = state
        self._teardown = teardown
        self._connection_admission = ConnectionAdmission(state)
        self._delayed_errors = DelayedErrors(state)

    # --- connections ---

    def on_connect(self, peer: Peer, identity: str, now: float, groups: tuple[int, ...]) -> bytes | None:
        """Handle a new connection; see `BrokerCore.on_connect`."""
        return self._connection_admission.admit(peer, identity, now, groups)

    def on_identified(self, peer: Peer, identity: str) -> None:
        """Handle that a connection has shown a key."""
        self._state.access.register(peer, identity)
        self._state.connections.identify(peer, self._state.access.identity_of(peer))

    def on_unreachable(self, peer: Peer, now: float) -> None:
        """Handle that nothing can be sent to a client any more. Its evals in sessions go on."""
        state = self._state
        state.greetings.forget(peer)
        state.bus.forget_peer(peer)
        self._delayed_errors.drop(peer)
        state.uploads.forget_peer(peer)
        if state.audit.has_used(peer):  # else nothing of it is anywhere
            end_connection(state, self._teardown, peer, now)
        state.audit.on_peer_lost(peer)
        if peer not in state.connections:  # else requests that it has sent by now are still its own
            state.access.forget(peer)
            state.rate_windows.pop(peer, None)  # that of an identity stays: it has other connections, or comes back
        state.protocol_errors.pop(peer, None)
        if state.ignored_fields:
            state.ignored_fields = {key: names for key, names in state.ignored_fields.items() if key[0] != peer}

    def revoke(self, peers: Iterable[Peer]) -> None:
        """Make peers anonymous whose key or token is no longer valid, and end everything they wait for."""
        state = self._state
        why = "this key or token was revoked"
        for peer in peers:
            end_subscriptions(state, state.bus.subscriptions_of(peer), ["done", "error", "unauthorized"], why)
            detach_peer(state, self._teardown, peer)
            state.uploads.forget_peer(peer)
            for request_id in state.audit.pending_ids(peer):
                state.reply_error(peer, request_id, RequestError("unauthorized", why))
            state.access.register(peer, ANONYMOUS)
            state.connections.identify(peer, ANONYMOUS)

    # --- requests ---

    def admit(self, peer: Peer, body: bytes, now: float) -> bool:
        """Return whether a request is looked at. The error for one that comes too often is sent after a pause.

        Raises:
            RequestError: The error for one that is refused at once.
        """
        state, connections = self._state, self._state.connections
        if connections.rejected and (error := connections.rejected.get(peer)) is not None:
            raise error
        if peer in state.access.credentials and not state.access.is_valid(peer):
            self.revoke([peer])
        try:
            if connections.unsettled or connections.silent:
                connections.check(peer)
            check_rate(state, peer, body, now)
        except RequestError as error:
            self._delayed_errors.add(peer, body, error, now)
            self._on_rejected(peer, error, None, now)
            return False
        if len(body) > state.limits.max_message_bytes:
            text = f"message exceeds maximum size of {state.limits.max_message_bytes} bytes"
            raise state.limit_error("message-too-large", "max-message-bytes", text)
        return True

    def _on_rejected(self, peer: Peer, error: RequestError, agent: str | None, now: float) -> None:
        self._state.emitter.emit_rejection(error, agent, now)
        if error.code == CONNECTIONS.code:
            self._connection_admission.close_excess(peer, now)

    def reject(self, peer: Peer, body: bytes, raw: dict[str, Any], error: RequestError, now: float) -> None:
        """Refuse a request.

        Args:
            peer: The connection.
            body: The request as it came.
            raw: Its fields, empty if it could not be parsed.
            error: The error.
            now: Seconds, monotonic.
        """
        request_id = error.fields["id"] if "id" in error.fields else raw.get("id") or extract_id(body)
        self._state.reply_error(peer, request_id, error)
        agent = raw.get("agent")
        self._on_rejected(peer, error, agent if isinstance(agent, str) else None, now)
        count_protocol_error(self._state, peer, error.code, now)

    def has_pending(self, peer: Peer) -> bool:
        """Return whether a request of this peer has no final reply yet."""
        return self._state.audit.has_pending(peer) or self._delayed_errors.has_pending(peer)

    def answer_all(self, now: float) -> None:
        """Send all errors that are still waiting: the broker ends."""
        self._delayed_errors.answer_all(now)

"""Records of the egress proxy on their way to events, audit, metrics and counts of sessions."""

from __future__ import annotations

from typing import Any

from replbroker.core.effects import Audit
from replbroker.core.observing.audit_trail import BROKER
from replbroker.core.state import BrokerState
from replwire import events
from replwire.network import TrafficRecord


def observe_traffic(state: BrokerState, record: TrafficRecord) -> None:
    """Take in a record of the egress proxy. The session may have ended meanwhile."""
    metrics = state.emitter.metrics
    metrics.connections[record.outcome] += record.count
    metrics.network_bytes["sent"] += record.sent
    metrics.network_bytes["received"] += record.received
    session = state.sessions.find_by_id(record.session)
    if state.config.audit:
        owner = BROKER if session is None else session.owner
        agent, name = (None, record.session) if session is None else (session.agent, session.name or session.id)
        now, reason = state.clock.now, record.reason or None
        state.effects.append(Audit(b"", owner, now, "", "network", agent, name, record.outcome, reason, 0.0, 1, record))
    if session is None:
        return
    session.traffic.add(record)
    fields: dict[str, Any] = {"host": record.host, "port": record.port, "count": record.count}
    if record.outcome == "reached":
        state.bus.emit(events.NetworkReached, session, sent_bytes=record.sent, received_bytes=record.received, **fields)
    else:
        state.bus.emit(
            events.NetworkRefused, session, reason=record.reason, by_policy=record.outcome == "refused", **fields
        )

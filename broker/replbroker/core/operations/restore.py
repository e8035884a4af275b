"""The takeover of session records from the broker before this one."""

from __future__ import annotations

from replbroker.core.effects import SavedSessions, SessionRecord
from replbroker.core.sessions.session_registry import NameKey
from replbroker.core.state import BrokerState


def restore_sessions(state: BrokerState, saved: SavedSessions) -> list[str]:
    """Take over session records, so that names keep their epochs and the causes of their ends.

    Args:
        state: The state of a broker that has not started.
        saved: The records of the broker before this one.

    Returns:
        The sessions that were lost with it, as the broker's own user calls them.
    """
    lost = state.records.restore(saved)
    for record in (*lost, *(each for each in saved.records if not each.open)):
        if record.cause is not None:
            name = NameKey(record.owner, record.name or record.id, record.scope)
            state.sessions.record_end(NameKey(record.owner, record.id), record.cause)
            state.sessions.record_end(name, record.cause)
    return [_display_name(state, record) for record in lost]


def _display_name(state: BrokerState, record: SessionRecord) -> str:
    owner = "" if record.owner == state.config.broker_user else f"{record.owner}/"
    scope = f" ({record.scope})" if record.scope else ""
    return f"{owner}{record.name or record.id}{scope}"

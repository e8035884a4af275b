"""The causes of the ends of sessions that the registry remembers."""

from __future__ import annotations

from replbroker.core.sessions.session_registry import NameKey, SessionRegistry
from replwire.limits import MAX_CLOSED_SESSIONS


def test_nobodys_closed_sessions_make_anothers_forgotten() -> None:
    sessions = SessionRegistry()
    sessions.record_end(NameKey("ada", "work"), "closed after 5 s without an eval")
    for number in range(3 * MAX_CLOSED_SESSIONS):
        sessions.record_end(NameKey("eve", f"s{number}"), "closed", asked=True)
        sessions.record_end(NameKey("eve", "again"), "closed", asked=True)
    assert sessions.unexpected_end_cause(NameKey("ada", "work")) == "closed after 5 s without an eval"
    assert sessions.end_cause(NameKey("eve", "s0")) is None
    kept = [number for number in range(3 * MAX_CLOSED_SESSIONS) if sessions.end_cause(NameKey("eve", f"s{number}"))]
    assert len(kept) == 2 * MAX_CLOSED_SESSIONS - 2
    assert kept[-1] == 3 * MAX_CLOSED_SESSIONS - 1

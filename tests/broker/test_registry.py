"""What the registry remembers of sessions that are gone."""

from __future__ import annotations

from replbroker.core.registry import NameKey, Registry
from replwire.limits import MAX_CLOSED_SESSIONS


def test_nobodys_closed_sessions_make_anothers_forgotten() -> None:
    sessions = Registry()
    sessions.note(NameKey("ada", "work"), "closed after 5 s without an eval")
    for number in range(3 * MAX_CLOSED_SESSIONS):
        sessions.note(NameKey("eve", f"s{number}"), "closed", asked=True)
        sessions.note(NameKey("eve", "again"), "closed", asked=True)
    assert sessions.gone(NameKey("ada", "work")) == "closed after 5 s without an eval"
    assert sessions.cause(NameKey("eve", "s0")) is None
    kept = [number for number in range(3 * MAX_CLOSED_SESSIONS) if sessions.cause(NameKey("eve", f"s{number}"))]
    assert len(kept) == 2 * MAX_CLOSED_SESSIONS - 2
    assert kept[-1] == 3 * MAX_CLOSED_SESSIONS - 1

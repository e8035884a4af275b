"""What ends by itself: idle sessions, an unused broker, and the orderly end that a shutdown asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import Outcome


@pytest.fixture
def brief(new_table: Callable[..., CoreHarness]) -> CoreHarness:
    """Sessions live ten seconds without use."""
    return new_table(session_idle_timeout_ms=10_000)


def test_a_session_that_nobody_uses_is_closed_with_a_note(brief: CoreHarness) -> None:
    brief.open()
    brief.wait(9)
    assert len(brief.state.sessions) == 1
    brief.wait(5)
    assert len(brief.state.sessions) == 0
    assert brief.killed == [1]
    assert brief.saved_sessions() == []
    why = "closed after 10 s without an eval"
    assert brief.request("jobs", session="work")["cause"] == why
    assert brief.replies[brief.eval()][0]["cause"] == why


def test_use_keeps_a_session(brief: CoreHarness) -> None:
    brief.open()
    for _ in range(5):
        brief.wait(8)
        brief.finish(brief.eval())
    for _ in range(5):
        brief.wait(8)
        brief.worker().reply(brief.send("stdin", session="work", input=""))
    assert len(brief.state.sessions) == 1


def test_a_session_that_is_busy_is_never_swept(brief: CoreHarness) -> None:
    asked = brief.eval(wait_ms=0)
    brief.wait(1000)
    brief.finish_abandoned(asked)
    brief.wait(9)
    assert len(brief.state.sessions) == 1
    brief.wait(5)
    assert len(brief.state.sessions) == 0


def test_a_session_that_waits_for_a_slot_or_is_being_read_is_never_swept(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(session_idle_timeout_ms=10_000, max_concurrent_evals=1, max_queue_wait_ms=1_000_000)
    table.open("read")
    reading = table.send("read", session="read", eval_id=0, wait_ms=1_000_000)
    table.eval("busy", wait_ms=0)
    waiting = table.eval("waits")
    table.wait(900)
    assert len(table.state.sessions) == 3
    assert table.is_pending(waiting)
    assert table.is_pending(reading)


def test_a_vacant_session_is_swept_too(brief: CoreHarness) -> None:
    brief.open()
    brief.worker().exit()
    brief.wait(15)
    assert len(brief.state.sessions) == 0


def test_zero_means_that_sessions_stay(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(session_idle_timeout_ms=0)
    table.open()
    table.wait(100_000)
    assert len(table.state.sessions) == 1


def test_a_broker_that_nobody_uses_ends(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(idle_exit_ms=60_000)
    table.open()
    table.wait(300)
    assert table.exits == []
    table.request("close", session="work")
    table.wait(59)
    assert table.exits == []
    table.wait(30)
    assert table.exits == ["drained"]
    assert "no sessions and no requests for 60 s" in table.log_lines


def test_any_request_keeps_the_broker(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(idle_exit_ms=60_000)
    for _ in range(10):
        table.wait(50)
        table.request("ping")
    assert table.exits == []


def test_a_shutdown_lets_what_runs_end_and_refuses_what_is_new(table: CoreHarness) -> None:
    running, queued, other = table.eval(), table.eval(), table.eval("other")
    assert table.request("shutdown", agent="ada")["status"] == ["done", "shutdown-started"]
    assert table.final_reply(queued)["status"] == ["done", "error", "shutdown"]
    assert "shutdown asked by ada" in table.log_lines
    for asked in (table.eval(), table.eval("new"), table.eval(None), table.send("new-session")):
        assert table.final_reply(asked)["status"] == ["done", "error", "shutdown"]
        assert table.final_reply(asked)["err"] == "server is shutting down"
    assert table.request("ping")["status"] == ["done", "pong"]
    assert table.finish(running)["status"] == ["done"]
    assert table.exits == []
    table.finish(other)
    assert table.exits == ["drained"]
    assert len(table.state.sessions) == 0
    assert table.workers == {}
    assert table.is_idle()


def test_a_shutdown_with_nothing_to_wait_for_is_immediate(table: CoreHarness) -> None:
    table.open()
    table.request("shutdown")
    assert table.exits == ["drained"]
    assert table.killed == [1]


def test_what_outlives_the_grace_is_ended(table: CoreHarness) -> None:
    asked = table.eval()
    read = table.send("read", session="work", eval_id=1, wait_ms=60_000)
    table.request("shutdown", agent="ada")
    table.request("shutdown", agent="bob")
    table.wait(4.999)
    assert (table.is_pending(asked), table.exits) == (True, [])
    table.wait(0.001)
    assert table.final_reply(asked)["status"] == ["done", "interrupted", "session-closed"]
    assert table.final_reply(asked)["cause"] == "shutdown asked by ada"
    assert table.final_reply(read)["status"] == ["done", "error", "session-not-found"]
    assert table.exits == ["shutdown asked by ada"]
    assert table.workers == {}


def test_the_end_comes_once(table: CoreHarness) -> None:
    table.eval()
    table.apply(table.core.drain("SIGTERM", table.now))
    table.wait(5)
    table.request("ping")
    table.wait(100)
    assert table.exits == ["SIGTERM"]


def test_no_worker_is_started_for_an_end(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(warm=2)
    asked = table.eval()
    spawned = len(table.spawned)
    table.request("shutdown")
    table.finish(asked, Outcome.ERROR)
    assert len(table.spawned) == spawned

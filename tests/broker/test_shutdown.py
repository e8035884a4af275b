"""Ends without a client: idle sessions, an idle broker; and the orderly end after `shutdown`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import Outcome


@pytest.fixture
def brief(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    """A harness where sessions end after ten seconds without use."""
    return new_harness(session_idle_timeout_ms=10_000)


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


def test_a_session_that_waits_for_a_slot_or_is_being_read_is_never_swept(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(session_idle_timeout_ms=10_000, max_concurrent_evals=1, max_queue_wait_ms=1_000_000)
    harness.open("read")
    reading = harness.send("read", session="read", eval_id=0, wait_ms=1_000_000)
    harness.eval("busy", wait_ms=0)
    waiting = harness.eval("waits")
    harness.wait(900)
    assert len(harness.state.sessions) == 3
    assert harness.is_pending(waiting)
    assert harness.is_pending(reading)


def test_a_vacant_session_is_swept_too(brief: CoreHarness) -> None:
    brief.open()
    brief.worker().exit()
    brief.wait(15)
    assert len(brief.state.sessions) == 0


def test_zero_means_that_sessions_stay(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(session_idle_timeout_ms=0)
    harness.open()
    harness.wait(100_000)
    assert len(harness.state.sessions) == 1


def test_a_broker_that_nobody_uses_ends(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(idle_exit_ms=60_000)
    harness.open()
    harness.wait(300)
    assert harness.exits == []
    harness.request("close", session="work")
    harness.wait(59)
    assert harness.exits == []
    harness.wait(30)
    assert harness.exits == ["drained"]
    assert "no sessions and no requests for 60 s" in harness.log_lines


def test_any_request_keeps_the_broker(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(idle_exit_ms=60_000)
    for _ in range(10):
        harness.wait(50)
        harness.request("ping")
    assert harness.exits == []


def test_a_shutdown_lets_what_runs_end_and_refuses_what_is_new(harness: CoreHarness) -> None:
    running, queued, other = harness.eval(), harness.eval(), harness.eval("other")
    assert harness.request("shutdown", agent="ada")["status"] == ["done", "shutdown-started"]
    assert harness.final_reply(queued)["status"] == ["done", "error", "shutdown"]
    assert "shutdown asked by ada" in harness.log_lines
    for asked in (harness.eval(), harness.eval("new"), harness.eval(None), harness.send("new-session")):
        assert harness.final_reply(asked)["status"] == ["done", "error", "shutdown"]
        assert harness.final_reply(asked)["err"] == "server is shutting down"
    assert harness.request("ping")["status"] == ["done", "pong"]
    assert harness.finish(running)["status"] == ["done"]
    assert harness.exits == []
    harness.finish(other)
    assert harness.exits == ["drained"]
    assert len(harness.state.sessions) == 0
    assert harness.workers == {}
    assert harness.is_idle()


def test_a_shutdown_with_nothing_to_wait_for_is_immediate(harness: CoreHarness) -> None:
    harness.open()
    harness.request("shutdown")
    assert harness.exits == ["drained"]
    assert harness.killed == [1]


def test_what_outlives_the_grace_is_ended(harness: CoreHarness) -> None:
    asked = harness.eval()
    read = harness.send("read", session="work", eval_id=1, wait_ms=60_000)
    harness.request("shutdown", agent="ada")
    harness.request("shutdown", agent="bob")
    harness.wait(4.999)
    assert (harness.is_pending(asked), harness.exits) == (True, [])
    harness.wait(0.001)
    assert harness.final_reply(asked)["status"] == ["done", "interrupted", "session-closed"]
    assert harness.final_reply(asked)["cause"] == "shutdown asked by ada"
    assert harness.final_reply(read)["status"] == ["done", "error", "session-not-found"]
    assert harness.exits == ["shutdown asked by ada"]
    assert harness.workers == {}


def test_the_end_comes_once(harness: CoreHarness) -> None:
    harness.eval()
    harness.apply(harness.core.drain("SIGTERM", harness.now))
    harness.wait(5)
    harness.request("ping")
    harness.wait(100)
    assert harness.exits == ["SIGTERM"]


def test_no_worker_is_started_for_an_end(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(warm=2)
    asked = harness.eval()
    spawned = len(harness.spawned)
    harness.request("shutdown")
    harness.finish(asked, Outcome.ERROR)
    assert len(harness.spawned) == spawned

"""Memory in sum: decides from reports of workers and the machine what may begin, and which session ends."""

from __future__ import annotations

import pytest

from core_harness import CoreHarness
from replbroker.core.limits.memory_totals import AvailableMemory
from replwire.link import FrameKind, HeartbeatBody

MIB = 1 << 20
GIB = 1 << 30
GUEST = b"p9"


def harness(total: int = 8 * GIB, left: int = 6 * GIB, **limits: int) -> CoreHarness:
    """Return a harness whose machine was measured."""
    made = CoreHarness(**limits)
    report_machine(made, left, total)
    return made


def report_machine(harness: CoreHarness, left: int, total: int = 8 * GIB) -> None:
    harness.memory_reading = AvailableMemory(total, left)
    harness.apply(harness.core.on_memory_measured(harness.memory_reading, harness.now))


def report_usage(harness: CoreHarness, name: str, used: int) -> None:
    """Report the memory of a session, and let the broker sum up."""
    harness.worker(name).send(FrameKind.HEARTBEAT, HeartbeatBody(1.0, used))
    harness.wait(0.1)


def open_guest_session(harness: CoreHarness, name: str) -> None:
    """Open a session of another user."""
    harness.core.set_identity(GUEST, "uid:1001")
    harness.final_reply(harness.send("new-session", GUEST, name=name))


def test_a_session_and_an_eval_need_memory_that_is_really_free() -> None:
    broker = harness(min_free_memory_bytes=GIB)
    broker.open("there")
    report_machine(broker, left=900 * MIB)
    for asked in (
        broker.request("new-session", name="more"),
        broker.final_reply(broker.eval("there")),
        broker.final_reply(broker.eval(None)),
    ):
        assert asked["status"] == ["done", "error", "memory-limit-reached"]
        assert (asked["limit"], asked["limit-value"]) == ("min-free-memory-bytes", GIB)
        assert asked["retry-after-ms"]
        assert "900 MiB" in asked["err"]
    assert [session.name for session in broker.state.sessions] == ["there"], "nothing half-opened is left"
    report_machine(broker, left=2 * GIB)
    broker.finish(broker.eval("there"))
    broker.open("more")


def test_while_memory_is_short_sessions_can_be_asked_about_reset_and_closed() -> None:
    broker = harness(min_free_memory_bytes=GIB)
    broker.open("a")
    broker.open("b")
    report_machine(broker, left=900 * MIB)
    assert broker.request("reset", session="a")["status"] == ["done"]
    assert broker.request("close", session="b")["status"] == ["done", "session-closed"]
    assert broker.request("ls-sessions")["sessions"]


def test_no_worker_is_kept_warm_while_memory_is_short() -> None:
    broker = CoreHarness(warm=2, min_free_memory_bytes=GIB)
    assert len(broker.spawned) == 2
    report_machine(broker, left=900 * MIB)
    for worker in list(broker.workers.values()):
        worker.exit()
    assert len(broker.spawned) == 2
    report_machine(broker, left=2 * GIB)
    broker.open("a")
    assert len(broker.spawned) > 2


def test_an_identity_over_its_bound_loses_its_largest_session_and_others_none() -> None:
    broker = harness(max_identity_memory_bytes=300 * MIB)
    for name in ("mine", "small"):
        broker.open(name)
    open_guest_session(broker, "theirs")
    running = broker.eval("mine")
    report_usage(broker, "theirs", 290 * MIB)
    report_usage(broker, "small", 110 * MIB)
    assert not broker.killed
    report_usage(broker, "mine", 200 * MIB)
    end = broker.final_reply(running)
    assert end["status"] == ["done", "error", "worker-lost"]
    assert end["state"] == "lost"
    text = "killed: the sessions of self used 310 MiB, limit 300 MiB, and this is the largest session of the identity that used most: 200 MiB"
    assert end["cause"] == text
    assert len(broker.killed) == 1
    assert broker.session("mine").worker is None
    assert broker.session("small").worker is not None
    assert broker.session("theirs").worker is not None


def test_an_identity_at_its_bound_begins_nothing_and_others_do() -> None:
    broker = harness(max_identity_memory_bytes=300 * MIB)
    broker.open("mine")
    open_guest_session(broker, "theirs")
    report_usage(broker, "mine", 300 * MIB)
    refused = broker.final_reply(broker.eval("mine"))
    assert (refused["limit"], refused["limit-value"]) == ("max-identity-memory-bytes", 300 * MIB)
    broker.finish(broker.eval("theirs", peer=GUEST))
    report_usage(broker, "mine", 100 * MIB)
    broker.finish(broker.eval("mine"))


def test_all_sessions_together_are_bounded_and_the_largest_goes_first() -> None:
    broker = harness(max_memory_bytes=500 * MIB)
    for name in ("a", "b", "c"):
        broker.open(name)
    for name, used in (("a", 100 * MIB), ("b", 260 * MIB), ("c", 150 * MIB)):
        report_usage(broker, name, used)
    assert broker.session("b").worker is None
    assert broker.session("b").lost_cause == (
        "killed: all sessions used 510 MiB, limit 500 MiB, and this is the largest session of the identity that used most: 260 MiB"
    )
    assert len(broker.killed) == 1


def test_who_divides_its_memory_over_many_sessions_is_ended_before_who_has_one_that_is_larger() -> None:
    broker = harness(max_memory_bytes=500 * MIB, max_identity_memory_bytes=400 * MIB)
    broker.open("large")
    for number in range(4):
        open_guest_session(broker, f"small{number}")
    report_usage(broker, "large", 200 * MIB)
    for number in range(4):
        report_usage(broker, f"small{number}", (80 + number) * MIB)
    assert [session.name for session in broker.state.sessions if session.worker is None] == ["small3"]
    assert broker.state.memory.used == 443 * MIB


def test_where_the_machine_runs_out_the_largest_is_ended_and_its_memory_waited_for() -> None:
    broker = harness(min_free_memory_bytes=GIB)
    for name, used in (("a", 300 * MIB), ("b", 200 * MIB)):
        broker.open(name)
        report_usage(broker, name, used)
    report_machine(broker, left=400 * MIB)
    assert broker.session("a").worker is None
    assert broker.session("a").lost_cause == (
        "killed: the machine had 400 MiB of memory left, and this is the largest session of the identity that used most: 300 MiB"
    )
    report_machine(broker, left=400 * MIB)  # it is not free yet
    assert broker.session("b").worker is not None
    broker.wait(0.6)
    report_machine(broker, left=400 * MIB)
    assert broker.session("b").worker is None


def test_an_end_for_memory_is_told_by_event_log_and_audit() -> None:
    broker = CoreHarness(audit=True, max_memory_bytes=100 * MIB)
    broker.open("work", agent="ada")
    report_usage(broker, "work", 200 * MIB)
    assert "session/lost" in broker.event_types()
    assert any("session work of self is ended: killed: all sessions used 200 MiB" in note for note in broker.log_lines)
    line = broker.audited[-1]
    assert (line.identity, line.agent, line.session, line.outcome) == ("broker", "ada", "work", "memory-limit-reached")
    assert str(line.err).startswith("killed: all sessions used 200 MiB")


@pytest.mark.parametrize(
    ("total", "most", "others", "free"),
    [
        (32 * GIB, 32 * GIB * 9 // 10, 32 * GIB * 9 // 10 // 2, 512 * MIB),
        (8 * GIB, 8 * GIB * 9 // 10, 8 * GIB * 9 // 10 // 2, 256 * MIB),
        (GIB, GIB * 9 // 10, GIB * 9 // 10 // 2, 64 * MIB),
    ],
)
def test_bounds_that_are_not_set_come_from_the_machine(total: int, most: int, others: int, free: int) -> None:
    memory = harness(total, total).state.memory
    assert (memory.max_bytes, memory.max_bytes_of("self"), memory.max_bytes_of("uid:7"), memory.min_free) == (
        most,
        None,
        others,
        free,
    )


def test_a_broker_that_has_not_seen_its_machine_bounds_nothing_by_it() -> None:
    broker = CoreHarness()
    broker.open("work")
    report_usage(broker, "work", 900 * GIB)
    broker.finish(broker.eval("work"))


def test_the_machine_is_looked_at_oftener_when_little_is_left() -> None:
    broker = harness(min_free_memory_bytes=GIB)
    broker.open("work")
    before = broker.memory_checks
    broker.wait(10)
    assert broker.memory_checks - before <= 6
    broker.memory_reading = AvailableMemory(8 * GIB, 3 * GIB)
    broker.wait(3)
    before = broker.memory_checks
    broker.wait(10)
    assert 30 <= broker.memory_checks - before <= 45


def test_a_worker_that_is_gone_counts_no_more() -> None:
    broker = harness(max_memory_bytes=500 * MIB)
    broker.open("a")
    broker.open("b")
    report_usage(broker, "a", 400 * MIB)
    broker.request("close", session="a")
    report_usage(broker, "b", 400 * MIB)
    assert broker.session("b").worker is not None
    assert broker.request("stats")["stats"]["memory"]["used"] == 400 * MIB


def test_info_says_what_is_left_for_a_session_and_stats_what_all_use() -> None:
    broker = harness(max_memory_bytes=500 * MIB)
    broker.open("work")
    broker.open("other")
    report_usage(broker, "other", 100 * MIB)
    asked = broker.send("info", session="work")
    known = next(body for _, body in broker.worker("work").frames(FrameKind.REQUEST) if body["id"] == asked)["base"][
        "memory"
    ]
    assert known == {"used": 0, "limit": None, "available": 400 * MIB}
    reply = broker.request("stats")["stats"]["memory"]
    assert (reply["used"], reply["limit"], reply["available"]) == (100 * MIB, 500 * MIB, 6 * GIB)

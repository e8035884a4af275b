"""Silent workers, clients that vanish, and defects of the broker: one session is lost, the rest goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness import CoreHarness
from replbroker.core.sessions.session import TRANSITIONS, InvalidTransition
from replwire.ops import OPS, Ping


def pass_without_heartbeats(harness: CoreHarness, seconds: float, step: float) -> None:
    """Let time pass with ticks and without heartbeats."""
    until = harness.now + seconds
    while harness.now < until:
        harness.now = min(until, harness.now + step)
        harness.apply(harness.core.tick(harness.now))


def test_a_worker_that_falls_silent_is_taken_for_dead(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(worker_silence_ms=60_000)
    harness.open("idle")
    asked = harness.eval(wait_ms=10**9, timeout_ms=10**9)
    pass_without_heartbeats(harness, 60, 1)
    assert harness.killed == []
    pass_without_heartbeats(harness, 25, 1)
    assert sorted(harness.killed) == [1, 2]
    assert harness.final_reply(asked)["status"] == ["done", "error", "worker-lost"]
    assert harness.final_reply(asked)["cause"] == "silent for 60000 ms"
    harness.finish(harness.eval())


def test_any_frame_is_a_sign_of_life(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(worker_silence_ms=60_000, warm=1)
    harness.open()
    for _ in range(10):
        pass_without_heartbeats(harness, 50, 1)
        harness.beat()
    assert harness.killed == []


def test_a_starting_worker_has_its_own_limit(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False, warm=1, worker_silence_ms=1000, worker_start_ms=30_000)
    pass_without_heartbeats(harness, 29, 0.1)
    assert harness.killed == []


def test_a_broker_that_was_stopped_blames_no_worker(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(worker_silence_ms=60_000)
    harness.open()
    pass_without_heartbeats(harness, 20, 1)
    harness.now += 600  # SIGSTOP, a suspended machine
    harness.apply(harness.core.tick(harness.now))
    assert harness.killed == []
    pass_without_heartbeats(harness, 59, 1)
    assert harness.killed == []
    pass_without_heartbeats(harness, 30, 1)
    assert harness.killed == [1]


def test_a_client_that_vanishes_hears_nothing_more_and_its_eval_goes_on(harness: CoreHarness) -> None:
    asked, queued = harness.eval(), harness.eval(agent="ada")
    harness.eval(peer=b"p2")
    info = harness.send("info", session="work")
    reset = harness.send("new-session", name="other")
    harness.disconnect(b"p1")
    before = len(harness.replies[asked])
    worker = harness.worker()
    worker.reply(asked)
    worker.reply(info)
    worker.reply(queued)
    assert len(harness.replies[asked]) == before
    assert harness.is_pending(queued)
    assert info not in harness.replies
    harness.final_reply(reset)
    assert [job["state"] for job in harness.request("jobs", session="work")["jobs"]] == ["done", "done", "running"]
    read = harness.send("read", peer=b"p2", session="work", eval_id=1)
    worker.reply(read)
    harness.final_reply(read)


def test_who_vanishes_before_the_session_is_ready_is_not_answered(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    opening = harness.send("new-session", name="work")
    harness.disconnect(b"p1")
    harness.workers[1].send_ready()
    harness.workers[1].send_assigned()
    assert opening not in harness.replies
    assert harness.session().state == "idle"


def test_one_id_may_be_used_for_two_evals_at_once(harness: CoreHarness) -> None:
    harness.eval("a", id="same")
    harness.eval("b", id="same")
    harness.worker("a").reply("same")
    assert harness.request("interrupt", request_id="same")["interrupted"] == ["b"]
    harness.disconnect(b"p1")
    before = len(harness.received)
    harness.worker("b").reply("same")
    assert len(harness.received) == before
    assert harness.is_idle()


def test_a_defect_in_an_operation_is_answered_and_everything_goes_on(
    harness: CoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = harness.eval()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(harness.core._operations.table, Ping, broken)
    answer = harness.request("ping")
    assert answer["status"] == ["done", "error", "internal-error"]
    number = answer["correlation-id"]
    assert answer["err"] == f"Internal server error: look for {number} in the broker's log"
    assert any(number in note and "ZeroDivisionError: oh" in note for note in harness.log_lines)
    assert harness.finish(asked)["status"] == ["done"]
    monkeypatch.undo()
    assert harness.request("ping")["status"] == ["done", "pong"]


def test_the_wall_clock_may_be_set_without_harm() -> None:
    harness = CoreHarness(max_queue_wait_ms=1000)
    harness.eval()
    harness.state.clock._monotonic_to_unix = lambda: -1e9
    queued = harness.eval()
    harness.wait(1)
    assert harness.final_reply(queued)["status"] == ["done", "error", "timeout"]
    assert harness.request("ls-sessions")["sessions"][0]["created"].startswith("1938-")


def test_no_move_leaves_a_closed_session_and_every_state_can_be_closed() -> None:
    states = {before for before, _ in TRANSITIONS} | set(TRANSITIONS.values())
    assert states == {"vacant", "hibernated", "starting", "adopting", "idle", "busy", "closed"}
    assert {before for before, _ in TRANSITIONS} == states - {"closed"}
    assert {before for before, move in TRANSITIONS if move == "close"} == states - {"closed"}


def test_an_invalid_transition_names_session_state_and_move_and_what_led_there() -> None:
    harness = CoreHarness()
    harness.finish(harness.eval("work"))
    session = harness.session("work")
    with pytest.raises(InvalidTransition) as raised:
        session.transition("finish")
    text = str(raised.value)
    assert f"session work ({session.id}), epoch 1, is idle and cannot finish" in text
    assert "moves before: take assigned dispatch finish" in text
    assert "2:eval/accepted 3:eval/started 4:eval/finished" in text
    assert session.state == "idle"


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_get_exactly_one_answer(body: bytes) -> None:
    harness = CoreHarness()
    harness.send_raw(body)
    [(_, answer)] = harness.received
    assert answer["status"][:2] == ["done", "error"]
    assert harness.is_idle()


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES |= st.lists(VALUES, max_size=3) | st.sampled_from(["work", "A=1", "/", "python", "create", "reuse", "out"])
FIELDS = sorted({field for op in OPS.values() for field in op.__struct_encode_fields__} - {"id", "op"})


@given(st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.dictionaries(st.sampled_from(FIELDS), VALUES)), max_size=8))
def test_no_field_of_any_operation_breaks_the_broker(requests: list[tuple[str, dict[str, object]]]) -> None:
    harness = CoreHarness()
    for op, fields in requests:
        harness.send(op, **fields)
    assert [note for note in harness.log_lines if "internal error" in note] == []


def test_what_the_broker_did_not_listen_to_is_no_workers_silence(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(worker_silence_ms=60_000)
    harness.open()
    begun = harness.now
    for _ in range(200):
        harness.now += 1
        harness.apply(harness.core.tick(harness.now, begun))
    assert harness.killed == []
    for _ in range(30):
        harness.now += 1
        harness.apply(harness.core.tick(harness.now, harness.now))
    assert harness.killed

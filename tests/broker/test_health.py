"""Silence of workers, clients that vanish, defects of the broker itself: one goes down, the rest goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness import CoreHarness
from replbroker.core.sessions.session import TRANSITIONS, InvalidTransition
from replwire.ops import OPS, Ping


def pass_without_heartbeats(table: CoreHarness, seconds: float, step: float) -> None:
    """Time passes with ticks and without a beat of anybody."""
    until = table.now + seconds
    while table.now < until:
        table.now = min(until, table.now + step)
        table.apply(table.core.tick(table.now))


def test_a_worker_that_falls_silent_is_taken_for_dead(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(worker_silence_ms=60_000)
    table.open("idle")
    asked = table.eval(wait_ms=10**9, timeout_ms=10**9)
    pass_without_heartbeats(table, 60, 1)
    assert table.killed == []
    pass_without_heartbeats(table, 25, 1)
    assert sorted(table.killed) == [1, 2]
    assert table.final_reply(asked)["status"] == ["done", "error", "worker-lost"]
    assert table.final_reply(asked)["cause"] == "silent for 60000 ms"
    table.finish(table.eval())


def test_any_frame_is_a_sign_of_life(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(worker_silence_ms=60_000, warm=1)
    table.open()
    for _ in range(10):
        pass_without_heartbeats(table, 50, 1)
        table.beat()
    assert table.killed == []


def test_a_starting_worker_has_its_own_limit(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False, warm=1, worker_silence_ms=1000, worker_start_ms=30_000)
    pass_without_heartbeats(table, 29, 0.1)
    assert table.killed == []


def test_a_broker_that_was_stopped_blames_no_worker(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(worker_silence_ms=60_000)
    table.open()
    pass_without_heartbeats(table, 20, 1)
    table.now += 600  # SIGSTOP, a suspended machine
    table.apply(table.core.tick(table.now))
    assert table.killed == []
    pass_without_heartbeats(table, 59, 1)
    assert table.killed == []
    pass_without_heartbeats(table, 30, 1)
    assert table.killed == [1]


def test_a_client_that_vanishes_hears_nothing_more_and_its_eval_goes_on(table: CoreHarness) -> None:
    asked, queued = table.eval(), table.eval(agent="ada")
    table.eval(peer=b"p2")
    info = table.send("info", session="work")
    reset = table.send("new-session", name="other")
    table.disconnect(b"p1")
    before = len(table.replies[asked])
    worker = table.worker()
    worker.reply(asked)
    worker.reply(info)
    worker.reply(queued)
    assert len(table.replies[asked]) == before
    assert table.is_pending(queued)
    assert info not in table.replies
    table.final_reply(reset)
    assert [job["state"] for job in table.request("jobs", session="work")["jobs"]] == ["done", "done", "running"]
    read = table.send("read", peer=b"p2", session="work", eval_id=1)
    worker.reply(read)
    table.final_reply(read)


def test_who_vanishes_before_the_session_is_ready_is_not_answered(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    opening = table.send("new-session", name="work")
    table.disconnect(b"p1")
    table.workers[1].send_ready()
    table.workers[1].send_assigned()
    assert opening not in table.replies
    assert table.session().state == "idle"


def test_one_id_may_be_used_for_two_evals_at_once(table: CoreHarness) -> None:
    table.eval("a", id="same")
    table.eval("b", id="same")
    table.worker("a").reply("same")
    assert table.request("interrupt", request_id="same")["interrupted"] == ["b"]
    table.disconnect(b"p1")
    before = len(table.received)
    table.worker("b").reply("same")
    assert len(table.received) == before
    assert table.is_idle()


def test_a_defect_in_an_operation_is_answered_and_everything_goes_on(
    table: CoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = table.eval()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setitem(table.core._operations.table, Ping, broken)
    answer = table.request("ping")
    assert answer["status"] == ["done", "error", "internal-error"]
    number = answer["correlation-id"]
    assert answer["err"] == f"Internal server error: look for {number} in the broker's log"
    assert any(number in note and "ZeroDivisionError: oh" in note for note in table.log_lines)
    assert table.finish(asked)["status"] == ["done"]
    monkeypatch.undo()
    assert table.request("ping")["status"] == ["done", "pong"]


def test_the_wall_clock_may_be_set_without_harm() -> None:
    table = CoreHarness(max_queue_wait_ms=1000)
    table.eval()
    table.state.clock._monotonic_to_unix = lambda: -1e9
    queued = table.eval()
    table.wait(1)
    assert table.final_reply(queued)["status"] == ["done", "error", "timeout"]
    assert table.request("ls-sessions")["sessions"][0]["created"].startswith("1938-")


def test_no_move_leaves_a_closed_session_and_every_state_can_be_closed() -> None:
    states = {before for before, _ in TRANSITIONS} | set(TRANSITIONS.values())
    assert states == {"vacant", "starting", "idle", "busy", "closed"}
    assert {before for before, _ in TRANSITIONS} == states - {"closed"}
    assert {before for before, move in TRANSITIONS if move == "close"} == states - {"closed"}


def test_an_invalid_transition_names_session_state_and_move_and_what_led_there() -> None:
    table = CoreHarness()
    table.finish(table.eval("work"))
    session = table.session("work")
    with pytest.raises(InvalidTransition) as raised:
        session.transition("finish")
    text = str(raised.value)
    assert f"session work ({session.id}), epoch 1, is idle and cannot finish" in text
    assert "moves before: take claimed dispatch finish" in text
    assert "2:eval/accepted 3:eval/started 4:eval/finished" in text
    assert session.state == "idle"


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_get_exactly_one_answer(body: bytes) -> None:
    table = CoreHarness()
    table.send_raw(body)
    [(_, answer)] = table.received
    assert answer["status"][:2] == ["done", "error"]
    assert table.is_idle()


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES |= st.lists(VALUES, max_size=3) | st.sampled_from(["work", "A=1", "/", "python", "create", "reuse", "out"])
FIELDS = sorted({field for op in OPS.values() for field in op.__struct_encode_fields__} - {"id", "op"})


@given(st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.dictionaries(st.sampled_from(FIELDS), VALUES)), max_size=8))
def test_no_field_of_any_operation_breaks_the_broker(requests: list[tuple[str, dict[str, object]]]) -> None:
    table = CoreHarness()
    for op, fields in requests:
        table.send(op, **fields)
    assert [note for note in table.log_lines if "internal error" in note] == []


def test_what_the_broker_did_not_listen_to_is_no_workers_silence(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(worker_silence_ms=60_000)
    table.open()
    begun = table.now
    for _ in range(200):
        table.now += 1
        table.apply(table.core.tick(table.now, begun))
    assert table.killed == []
    for _ in range(30):
        table.now += 1
        table.apply(table.core.tick(table.now, table.now))
    assert table.killed

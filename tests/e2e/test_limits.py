"""Every limit over the wire: what is refused, in which words, and that all is well afterwards."""

from __future__ import annotations

from collections.abc import Callable

from kit import BrokerProcess, CollectedReplies, wait_until
from live_processes import read_each

Start = Callable[..., BrokerProcess]


def _refused(answer: CollectedReplies, code: str, limit: str, value: int) -> None:
    assert answer.status == ["done", "error", code]
    assert (answer["limit"], answer["limit-value"]) == (limit, value)
    assert str(value) in answer["err"]


def test_a_full_queue_refuses_and_everything_works_after_the_burst(start: Start) -> None:
    broker = start("limits.max-concurrent-evals=3", "limits.max-queued-evals=6", "limits.rate-limit-per-min=0")
    with broker.wire() as wire:
        requests = [
            wire.send("eval", code="input()", session=f"s{n}", if_missing="create", agent="a") for n in range(12)
        ]
        refused = [wire.answer(request) for request in requests[9:]]
        for answer in refused:
            _refused(answer, "concurrency-limit-reached", "max-queued-evals", 6)
            assert answer["retry-after-ms"] > 0
        for n in range(9):
            wire.ask("stdin", session=f"s{n}", input="go\n")
        assert [wire.answer(request).value for request in requests[:9]] == ["'go'"] * 9
        assert wire.run("while True: pass", timeout_ms=100).status == ["done", "error", "timeout"]
        assert wire.run("print('x')").out == "x\n"
        stats = wire.ask("stats")["stats"]
        assert (stats["slots"]["taken"], stats["queued"]["total"], stats["routes"]) == (0, 0, 0)


def test_a_wait_says_how_many_go_first(start: Start) -> None:
    broker = start("limits.max-concurrent-evals=1")
    with broker.wire() as wire:
        first = wire.send("eval", code="input()", session="a", if_missing="create")
        wire.until(first, "need-input")
        positions = []
        for name in ("b", "c"):
            request = wire.send("eval", code="1", session=name, if_missing="create")
            positions.append(wire.until(request, "queued")["queue-position"])
        assert positions == [1, 2]
        wire.ask("stdin", session="a", input="\n")
        assert wire.answer(request).value == "1"


def test_one_agent_with_many_sessions_does_not_starve_another(start: Start) -> None:
    broker = start("limits.max-concurrent-evals=1", "limits.rate-limit-per-min=0")
    with broker.wire() as busy, broker.wire() as quick:
        first = busy.send("eval", code="input()", session="b0", if_missing="create", agent="busy")
        busy.until(first, "need-input")
        flood = [
            busy.send("eval", code="import time; time.time()", session=f"b{n}", if_missing="create", agent="busy")
            for n in range(1, 11)
        ]
        one = quick.send("eval", code="import time; time.time()", session="q", if_missing="create", agent="quick")
        quick.until(one, "queued")
        busy.ask("stdin", session="b0", input="\n")
        mine = float(quick.answer(one).value or 0)
        theirs = sorted(float(busy.answer(request).value or 0) for request in flood)
        assert mine < theirs[1]


def test_an_eval_that_waited_past_its_timeout_never_runs_and_its_successor_does(start: Start) -> None:
    broker = start("limits.max-concurrent-evals=1")
    with broker.wire() as wire:
        first = wire.send("eval", code="input()", session="s", if_missing="create")
        wire.until(first, "need-input")
        late = wire.send("eval", code="ran = True", session="s", timeout_ms=100)
        after = wire.send("eval", code="'ran' in globals()", session="s")
        answer = wire.answer(late)
        assert answer.status == ["done", "error", "timeout"]
        assert "never ran" in answer["err"]
        assert answer["state"] == "kept"
        wire.ask("stdin", session="s", input="\n")
        assert wire.answer(after).value == "False"


def test_the_rate_limit_refuses_one_connection_and_no_other(start: Start) -> None:
    broker = start("limits.rate-limit-per-min=5")
    with broker.wire() as wire, broker.wire() as other:
        assert [wire.ask("ping").status for _ in range(5)] == [["done", "pong"]] * 5
        answer = wire.ask("ping")
        _refused(answer, "rate-limited", "rate-limit-per-min", 5)
        assert 0 < answer["retry-after-ms"] <= 60_001
        assert other.run("1+1").value == "2"


def test_a_request_that_is_too_long_is_answered(start: Start) -> None:
    broker = start("limits.max-message-bytes=2000")
    with broker.wire() as wire:
        wire.send("eval", code="x" * 2000)
        message = wire.receive()
        assert message["id"] == "r1"
        assert message["status"] == ["done", "error", "message-too-large"]
        assert "2000" in message["err"]
        assert wire.run("1+1").value == "2"


def test_connections_beyond_the_limit_are_answered_and_places_come_back(start: Start) -> None:
    broker = start("limits.max-connections=3")
    wires = [broker.wire() for _ in range(3)]
    assert [wire.ask("ping").status for wire in wires] == [["done", "pong"]] * 3
    with broker.wire() as fourth:
        _refused(fourth.ask("ping"), "connection-limit-reached", "max-connections", 3)
    for wire in wires:
        wire.close()

    def served() -> bool:
        with broker.wire() as later:
            return later.ask("ping").status == ["done", "pong"]

    wait_until(served, "places come back")


def test_input_beyond_the_buffer_is_refused_whole(start: Start) -> None:
    broker = start("limits.max-stdin-bytes=1000")
    with broker.wire() as wire:
        wire.run("1")
        assert wire.ask("stdin", session="s", input="x" * 900).status == ["done"]
        answer = wire.ask("stdin", session="s", input="y" * 200)
        _refused(answer, "stdin-buffer-full", "max-stdin-bytes", 1000)
        assert answer["retry-after-ms"] > 0
        assert wire.ask("stdin", session="s", input="\n").status == ["done"]
        assert wire.run("len(input())").value == "900"
        assert wire.ask("stdin", session="s", input="y" * 200).status == ["done"]


def test_input_longer_than_a_pipe_arrives_whole(start: Start) -> None:
    broker = start("limits.max-stdin-bytes=1000000")
    with broker.wire() as wire:
        wire.run("1")
        assert wire.ask("stdin", session="s", input="x" * 500_000 + "\n").status == ["done"]
        assert wire.run("len(input())").value == "500000"


def test_values_and_tracebacks_are_bounded(start: Start) -> None:
    broker = start("limits.max-value-bytes=100", "limits.max-trace-bytes=2000")
    with broker.wire() as wire:
        answer = wire.run("'x' * 10_000_000")
        assert len((answer.value or "").encode()) <= 100 + len("…[truncated]".encode())
        assert (answer.value or "").endswith("…[truncated]")
        assert answer["truncated"] is True
        answer = wire.run("def f(): f()\nf()")
        assert answer["ex"]["type"] == "RecursionError"
        assert len(answer["traceback"]) <= 2100
        assert len(answer["stacktrace"]) <= 20


def test_the_servers_time_limit_caps_what_is_asked_for_and_says_so(start: Start) -> None:
    broker = start("limits.max-eval-time-ms=200")
    with broker.wire() as wire:
        answer = wire.run("while True: pass", timeout_ms=60_000)
        assert answer.status == ["done", "error", "timeout"]
        assert answer["max-eval-time-ms"] == 200


def test_no_slots_and_no_sessions_refuse_everything_and_answer_ping(start: Start) -> None:
    broker = start("limits.max-concurrent-evals=0")
    with broker.wire() as wire:
        _refused(wire.run("1"), "concurrency-limit-reached", "max-concurrent-evals", 0)
        assert wire.ask("ls-sessions")["sessions"] == []
    broker = start("limits.max-sessions=0")
    with broker.wire() as wire:
        _refused(wire.run("1", session=None), "session-limit-reached", "max-sessions", 0)
        assert wire.ask("ping").status == ["done", "pong"]


def test_idle_sessions_are_swept_and_busy_ones_are_not(start: Start) -> None:
    broker = start("limits.session-idle-timeout-ms=400")
    with broker.wire() as wire:
        wire.run("1", session="idle")
        request = wire.send("eval", code="input()", session="busy", if_missing="create", timeout_ms=20_000)
        wire.until(request, "need-input")
        names = wait_until(
            lambda: (n := [e["name"] for e in wire.ask("ls-sessions")["sessions"]]) == ["busy"] and n, "swept"
        )
        assert names == ["busy"]
        answer = wire.ask("eval", code="1", session="idle")
        assert "without an eval" in answer["cause"]
        wire.ask("stdin", session="busy", input="\n")
        assert wire.answer(request).status == ["done"]


def test_code_that_floods_what_stacks_come_by_fills_no_memory_but_its_own(start: Start) -> None:
    flood = """
import os
print("on", flush=True)
while True:
    try:
        os.write(5, bytes(65536))
    except BlockingIOError:
        pass
"""
    broker = start()
    with broker.wire() as wire:
        running = wire.send("eval", code=flood, session="s", if_missing="create")
        assert next(message for message in wire.messages(running) if message.get("out") == "on\n")
        assert wire.ask("stack", session="s").status == ["done"]
        statuses = read_each(broker.process_tree(), "status", at_least=4)
        assert max(map(_most_kib, statuses.values())) < 200 * 1024
        wire.ask("interrupt", session="s")
        assert wire.answer(running).status == ["done", "interrupted"]


def _most_kib(status: bytes) -> int:
    """The most memory that a process ever had; 0 of a zombie."""
    result = status.partition(b"VmHWM:")[2].split()
    return int(result[0]) if result else 0

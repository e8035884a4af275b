"""Time limits, slots, the queue, refusals and how all is well afterwards (scenarios 70 to 92)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit import wait_until
from replwire.limits import limit_rows
from scenarios import scenario
from transports import ONE_SESSION, ONE_SLOT, SMALL, BrokerSite

Open = Callable[..., BrokerSite]
NO_RATE = "limits.rate-limit-per-min=0"
DEAF = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: time.sleep(.01)"
DEAF_MS = 500  # it has to have come as far as to ignore the interrupt, also on a busy machine


def _hold(wire: Any, session: str, **fields: Any) -> str:
    """An eval that runs until it gets a line of input."""
    request = wire.send("eval", code="input()", session=session, if_missing="create", **fields)
    wire.until(request, "need-input")
    return str(request)


def _let_go(wire: Any, session: str) -> None:
    assert wire.ask("stdin", session=session, input="go\n")["delivered"] == [session]


def _calm(wire: Any) -> None:
    """Check that no slot is in use and no request waits."""

    def counts() -> tuple[int, int, int]:
        stats = wire.ask("stats")["stats"]
        return stats["slots"]["taken"], stats["queued"]["total"], stats["routes"]

    wait_until(lambda: counts() == (0, 0, 0), "everything is given back")


def _refused(answer: Any, word: str, limit: str, value: int) -> None:
    assert answer.status == ["done", "error", word]
    assert (answer["limit"], answer["limit-value"]) == (limit, value)
    assert answer["retry-after-ms"] > 0


@scenario(70)
def test_a_timeout_says_what_happened_and_what_to_do(wire: Any) -> None:
    """There is no quarantine: the interrupt came first, the state is kept, and the session goes on."""
    wire.run("x = 1")
    answer = wire.run("print('so far', flush=True)\nimport time\ntime.sleep(600)", timeout_ms=300)
    assert answer.status == ["done", "error", "timeout"]
    assert answer["err"] == "eval timed out after 300 ms"
    assert (answer["max-eval-time-ms"], answer["state"], answer.out) == (300, "kept", "so far\n")
    assert "timeout-ms" in answer["hint"]
    assert wire.run("x").value == "1"


@scenario(71)
def test_the_servers_limit_caps_the_requests(site: Open) -> None:
    with site(*SMALL).wire() as wire:
        answer = wire.run("while True: pass", timeout_ms=60_000)
        assert answer.status == ["done", "error", "timeout"]
        assert answer["max-eval-time-ms"] == 300


@scenario(73)
def test_forty_timeouts_leave_no_stale_interrupt(wire: Any) -> None:
    """REPLy quarantines the session at each; here the very next eval of the same session must run clean."""
    epoch = wire.run("1")["epoch"]
    for number in range(40):
        assert wire.run("while True: pass", timeout_ms=1).status == ["done", "error", "timeout"]
        answer = wire.run(f"sum(range(1000)) * 0 + {number}")
        assert (answer.value, answer["state"], answer["epoch"]) == (str(number), "kept", epoch)
    wire.ask("close", session="s")
    assert wire.run("1+1").value == "2"


@scenario(74, 79)
def test_code_that_ignores_its_limit_is_killed_and_its_slot_goes_on(site: Open) -> None:
    """REPLy's zombie keeps its slot until it ends by itself; here its worker is killed after the grace."""
    with site(*ONE_SLOT).wire() as wire:
        deaf = wire.send("eval", code=DEAF, timeout_ms=DEAF_MS)
        queued = wire.send("eval", code="6*7", session="s", if_missing="create")
        answer = wire.answer(deaf)
        assert (answer.out, answer.status) == ("deaf\n", ["done", "error", "timeout"])
        assert answer["state"] == "lost"
        other = wire.answer(queued)
        assert other.value == "42"
        answer = wire.run(DEAF, timeout_ms=DEAF_MS)
        assert (answer.status, answer["epoch"]) == (["done", "error", "timeout"], other["epoch"] + 1)
        assert wire.run("1+1").value == "2"
        _calm(wire)


@scenario(76)
def test_an_eval_whose_time_runs_out_in_the_queue_never_runs(site: Open) -> None:
    with site(*ONE_SLOT).wire() as wire:
        first = _hold(wire, "s")
        late = wire.send("eval", code="ran = True", session="s", timeout_ms=300)
        after = wire.send("eval", code="'ran' in globals()", session="s")
        answer = wire.answer(late)
        assert answer.status == ["done", "error", "timeout"]
        assert (answer["state"], answer.get("duration-ms")) == ("kept", None)
        _let_go(wire, "s")
        assert (wire.answer(first).value, wire.answer(after).value) == ("'go'", "False")


@scenario(77)
def test_an_interrupt_ends_an_eval_once_whether_it_obeys_or_not(wire: Any) -> None:
    willing = wire.send("eval", code="print('in', flush=True)\nwhile True: pass", session="s", if_missing="create")
    assert next(message for message in wire.messages(willing) if "out" in message)
    assert wire.ask("interrupt", session="s")["interrupted"] == ["s"]
    assert wire.answer(willing).status == ["done", "interrupted"]
    deaf = wire.send("eval", code=DEAF, session="s", timeout_ms=400)
    assert next(message for message in wire.messages(deaf) if "out" in message)
    assert wire.ask("interrupt", session="s")["interrupted"] == ["s"]
    assert wire.answer(deaf).status == ["done", "error", "timeout"]
    assert wire.run("1+1").value == "2"


@scenario(80)
def test_slots_go_to_who_waits_longest_and_the_third_who_waits_is_refused(site: Open) -> None:
    with site(*ONE_SLOT).wire() as wire:
        first = _hold(wire, "a")
        waiting = [
            wire.send("eval", code="import time; time.time()", session=name, if_missing="create") for name in ("b", "c")
        ]
        _refused(wire.run("1", session="d"), "concurrency-limit-reached", "max-queued-evals", 2)
        _let_go(wire, "a")
        assert wire.answer(first).value == "'go'"
        times = [float(wire.answer(request).value) for request in waiting]
        assert times == sorted(times)
        _calm(wire)


@scenario(82)
def test_without_slots_every_eval_is_refused(site: Open) -> None:
    with site("limits.max-concurrent-evals=0").wire() as wire:
        for session in (None, "s"):
            _refused(wire.run("1", session=session), "concurrency-limit-reached", "max-concurrent-evals", 0)
        assert wire.ask("ls-sessions")["sessions"] == []


@scenario(83)
def test_without_sessions_even_a_throw_away_eval_is_refused(site: Open) -> None:
    with site("limits.max-sessions=0").wire() as wire:
        _refused(wire.run("1", session=None), "session-limit-reached", "max-sessions", 0)
        _refused(wire.ask("new-session"), "session-limit-reached", "max-sessions", 0)
        assert wire.ask("ping").status == ["done", "pong"]


@scenario(85)
def test_a_session_counts_against_throw_away_evals_of_everybody(site: Open) -> None:
    with site(*ONE_SESSION).wire() as wire, site(*ONE_SESSION).wire() as other:
        assert wire.run("1").value == "1"
        for each in (wire, other):
            _refused(each.run("1", session=None), "session-limit-reached", "max-sessions", 1)
        wire.ask("close", session="s")
        assert other.run("1+1", session=None).value == "2"


@scenario(86)
def test_the_third_request_of_two_a_minute_is_refused(site: Open) -> None:
    with site("limits.rate-limit-per-min=2").wire() as wire:
        assert [wire.ask("ping").status for _ in range(2)] == [["done", "pong"]] * 2
        answer = wire.ask("ping")
        _refused(answer, "rate-limited", "rate-limit-per-min", 2)
        assert answer["err"].startswith("Rate limit exceeded")


@scenario(88)
def test_everything_works_after_a_burst(site: Open) -> None:
    settings = ("limits.max-concurrent-evals=3", "limits.max-queued-evals=6", NO_RATE)
    with site(*settings).wire() as wire:
        requests = [wire.send("eval", code="input()", session=f"s{n}", if_missing="create") for n in range(12)]
        for request in requests[9:]:
            _refused(wire.answer(request), "concurrency-limit-reached", "max-queued-evals", 6)
        for n in range(9):
            wire.ask("stdin", session=f"s{n}", input="go\n")
        assert [wire.answer(request).value for request in requests[:9]] == ["'go'"] * 9
        held = _hold(wire, "s0")
        assert wire.ask("interrupt", session="s0")["interrupted"] == ["s0"]
        assert wire.answer(held).status == ["done", "interrupted"]
        assert wire.run("while True: pass", session="s0", timeout_ms=50).status == ["done", "error", "timeout"]
        assert wire.run("42", session="s0", silent=True).value is None
        held = _hold(wire, "s0")
        _let_go(wire, "s0")
        assert wire.answer(held).value == "'go'"
        _calm(wire)


@scenario(89)
def test_evals_of_one_session_run_in_the_order_they_were_sent(wire: Any) -> None:
    wire.run("seen = []")
    requests = [wire.send("eval", code=f"seen.append({n}); seen[-1]", session="s") for n in range(10)]
    assert [wire.answer(request).value for request in requests] == [str(n) for n in range(10)]
    assert wire.run("seen").value == str(list(range(10)))


@scenario(91, 169)
def test_at_shutdown_waiting_and_new_evals_are_refused_and_a_running_one_is_told(own: Open) -> None:
    """REPLy interrupts the running eval at once; here it has the close grace first, and ends `interrupted` then."""
    site = own("limits.max-concurrent-evals=1", "limits.close-grace-ms=300", NO_RATE)
    with site.wire() as wire:
        running = _hold(wire, "a")
        queued = wire.send("eval", code="1", session="b", if_missing="create")
        wire.until(queued, "queued")
        assert wire.ask("shutdown").status == ["done", "shutdown-started"]
        assert wire.run("1", session="c").status == ["done", "error", "shutdown"]
        assert wire.answer(queued).status == ["done", "error", "shutdown"]
        assert wire.answer(running).status == ["done", "interrupted", "session-closed"]
        assert site.has_ended()


@scenario(170)
def test_an_eval_that_ends_within_the_grace_is_answered_before_the_broker_goes(own: Open) -> None:
    site = own("limits.close-grace-ms=20000")
    with site.wire() as wire:
        running = _hold(wire, "s")
        assert wire.ask("shutdown").status == ["done", "shutdown-started"]
        _let_go(wire, "s")
        answer = wire.answer(running)
        assert (answer.value, answer.status) == ("'go'", ["done"])
        assert site.has_ended()


@scenario(92)
def test_limits_are_the_defaults_but_for_the_one_that_is_set(site: Open) -> None:
    """REPLy calls a constructor; here the broker is asked. `close-grace-ms` is what these tests start with."""
    with site(*ONE_SESSION).wire() as wire:
        limits = wire.ask("describe")["limits"]
        defaults = {bound.name: bound.default for bound in limit_rows()}
        assert limits == defaults | {"max-sessions": 1, "close-grace-ms": 300}

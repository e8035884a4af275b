"""Every refusal: its word, its sentence, the limit that refused; and everything works afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness

MISSING_HINT = "send `if-missing`: `create` with the eval, or open it with `new-session`"


@pytest.mark.parametrize(
    ("request_", "word", "err"),
    [
        ({"op": "dance"}, "unknown-op", "Unknown operation: dance"),
        ({"op": "eval"}, "missing-code", "eval requires code"),
        ({"op": "close"}, "invalid-request", "close requires session"),
        ({"op": "interrupt"}, "invalid-request", "interrupt requires a non-empty string session field"),
        ({"op": "eval", "code": "1", "timeout-ms": 0}, "invalid-request", "timeout-ms: expected `int` >= 1"),
        ({"op": "eval", "code": "1", "cwd": "src"}, "invalid-request", "cwd: must be an absolute path"),
        ({"op": "eval", "code": "1", "env": ["=x"]}, "invalid-request", "env: each entry is NAME=VALUE"),
        ({"op": "new-session", "env": ["A"]}, "invalid-request", "env: each entry is NAME=VALUE"),
        ({"op": "new-session", "env": ["A=\0"]}, "invalid-request", "env: each entry is NAME=VALUE"),
        ({"op": "new-session", "name": " "}, "invalid-request", 'new-session "name": session name must not be blank'),
        ({"op": "new-session", "runtime": "cobol"}, "runtime-not-allowed", "no runtime cobol here: python"),
        ({"op": "new-session", "name": "taken"}, "session-already-exists", "Session already exists: taken"),
        ({"op": "read", "session": "taken", "eval-id": 9}, "eval-not-found", "no eval 9 in session taken"),
        (
            {"op": "eval", "code": "1", "session": "taken", "expect-epoch": 2},
            "epoch-conflict",
            "session taken is in epoch 1, not 2",
        ),
        (
            {"op": "eval", "code": "1", "expect-epoch": 2},
            "epoch-conflict",
            "session (ephemeral) is in epoch 1, not 2",
        ),
        (
            {"op": "eval", "code": "1", "session": "new", "if-missing": "create", "expect-epoch": 0},
            "epoch-conflict",
            "session new is in epoch 1, not 0",
        ),
    ],
)
def test_a_request_that_cannot_be_served_is_told_why(
    table: CoreHarness, request_: dict[str, Any], word: str, err: str
) -> None:
    table.open("taken")
    before = (table.saved_sessions(), list(table.spawned))
    answer = table.request(**request_)
    assert (answer["status"], answer["err"]) == (["done", "error", word], err)
    assert [session.name for session in table.state.sessions] == ["taken"]
    assert (table.saved_sessions(), table.spawned) == before
    assert table.is_idle()


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "eval", "code": "1"},
        {"op": "read", "eval-id": 0},
        {"op": "interrupt"},
        {"op": "stdin", "input": ""},
        {"op": "close"},
        {"op": "reset"},
        {"op": "clear-bindings"},
        {"op": "jobs"},
        {"op": "info"},
        {"op": "ls-sessions"},
    ],
)
def test_a_session_that_does_not_exist_is_named_with_a_hint(table: CoreHarness, request_: dict[str, Any]) -> None:
    answer = table.request(**request_, session="nowhere")
    assert answer["status"] == ["done", "error", "session-not-found"]
    assert answer["err"] == "Session not found: nowhere"
    assert answer["hint"] == MISSING_HINT
    assert "cause" not in answer


def test_a_session_that_is_gone_says_how_it_went(table: CoreHarness) -> None:
    opened = table.open()
    table.request("close", session="work", agent="ada")
    for key in ("work", opened["session"]):
        assert table.request("jobs", session=key)["cause"] == "closed by ada"
    again = table.eval()
    assert "cause" not in table.replies[again][0]  # whoever closed it knows
    table.finish(again)
    table.request("close", session="work")
    assert table.request("jobs", session="work")["cause"] == "closed"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"id":"\\ud800","op":"ping"}', b"{}" * 2])
def test_bytes_that_are_no_request_are_answered_under_no_id(table: CoreHarness, body: bytes) -> None:
    table.send_raw(body)
    answer = table.final_reply("")
    assert answer["status"] == ["done", "error", "malformed-request"]
    assert answer["err"].startswith("Malformed JSON: ")
    assert "retry-after-ms" not in answer


def test_an_id_that_is_too_long_is_echoed(table: CoreHarness) -> None:
    table.send_raw(b'{"id":"%s","op":"ping"}' % (b"x" * 257))
    assert table.final_reply("x" * 257)["err"] == "id exceeds maximum length of 256"


def test_a_message_over_the_limit_is_refused_with_the_limit(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_message_bytes=1024)
    table.send_raw(b" " * 1025)
    assert table.final_reply("") == {
        "id": "",
        "status": ["done", "error", "message-too-large"],
        "err": "message exceeds maximum size of 1024 bytes (max-message-bytes = 1024)",
        "limit": "max-message-bytes",
        "limit-value": 1024,
    }
    assert table.hung_up == [b"p1"]  # a stream's end cannot be found any more; where messages have ends it is kept
    table.send_raw(b'{"id":"long","op":"ping"}'.ljust(1025))
    assert table.final_reply("long")["status"] == ["done", "error", "message-too-large"]
    table.send_raw(b'{"id":"fits","op":"ping"}'.ljust(1024))
    assert table.final_reply("fits")["status"] == ["done", "pong"]


def test_the_tenth_malformed_message_in_a_row_ends_the_connection(table: CoreHarness) -> None:
    for _ in range(9):
        table.send_raw(b"{")
    table.request("ping")
    for _ in range(9):
        table.send_raw(b"[]")
    table.request("dance")  # refused, and yet a request
    for _ in range(9):
        table.send_raw(b'{"op":')
    assert table.hung_up == []
    table.send_raw(b"3")
    assert table.hung_up == [b"p1"]
    assert not table.core.state.protocol_errors


def test_other_refusals_are_no_strikes(table: CoreHarness) -> None:
    for _ in range(30):
        table.request("dance")
    assert table.hung_up == []
    assert not table.core.state.protocol_errors


def test_a_client_too_many_is_told_at_the_door(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_connections=2)
    assert [table.core.on_connect(peer, "self", table.now) for peer in (b"c1", b"c2")] == [None, None]
    refusal = table.core.on_connect(b"c3", "self", table.now)
    assert refusal is not None
    assert b'"connection-limit-reached"' in refusal
    assert table.core.tick(table.now) == []


def test_sessions_up_to_the_limit(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_sessions=2)
    table.open("a")
    table.open("b")
    for asked in (table.send("new-session", name="c"), table.eval("c"), table.eval(None)):
        assert table.final_reply(asked) == {
            "id": asked,
            "status": ["done", "error", "session-limit-reached"],
            "err": "Session limit reached (max-sessions = 2)",
            "hint": "close a session that is not needed (`ls-sessions`, `close`): open ones do not end by waiting",
            "limit": "max-sessions",
            "limit-value": 2,
            "retry-after-ms": 1000,
        }
    assert table.open("a", if_exists="reuse")["created"] is False
    table.request("close", session="a")
    table.finish(table.eval(None))
    table.finish(table.eval("c"))
    assert len(table.state.sessions) == 2


def test_clients_up_to_the_limit(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_connections=2)
    for peer in (b"p1", b"p2", b"p3"):
        table.core.on_connect(peer, "self", table.now)
    table.request("ping", peer=b"p1")
    refused = table.request("ping", peer=b"p3")
    assert refused["status"] == ["done", "error", "connection-limit-reached"]
    assert refused["err"] == "Too many clients (max-connections = 2)"
    assert (refused["limit"], refused["limit-value"], refused["retry-after-ms"]) == ("max-connections", 2, 1000)
    assert table.request("ping", peer=b"p1")["status"] == ["done", "pong"]
    table.apply(table.core.on_disconnect(b"p2", table.now))
    assert table.request("ping", peer=b"p3")["status"] == ["done", "pong"]


def test_requests_that_wait_in_one_session_up_to_the_limit(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_waiting_reads=1)
    table.open()
    table.open("other")
    first = table.send("stdin", session="work", input="x")
    refused = table.request("stdin", session="work", input="y")
    assert refused["status"] == ["done", "error", "concurrency-limit-reached"]
    assert refused["err"] == "Too many requests wait in this session (max-waiting-reads = 1)"
    assert (refused["limit"], refused["limit-value"], refused["retry-after-ms"]) == ("max-waiting-reads", 1, 1000)
    assert table.is_pending(table.send("stdin", session="other", input="z"))
    table.worker().reply(first)
    assert table.is_pending(table.send("stdin", session="work", input="y"))


def test_bindings_are_not_cleared_under_a_running_eval(table: CoreHarness) -> None:
    asked = table.eval()
    answer = table.request("clear-bindings", session="work")
    assert answer["status"] == ["done", "error", "busy"]
    assert answer["err"] == "session work runs an eval: interrupt it or wait"
    table.finish(asked)
    assert table.is_pending(table.send("clear-bindings", session="work"))


def test_the_first_eval_of_a_session_that_is_refused_takes_the_session_along(
    new_table: Callable[..., CoreHarness],
) -> None:
    table = new_table(max_concurrent_evals=0)
    for asked in (table.eval("work"), table.eval(None)):
        answer = table.final_reply(asked)
        assert answer["status"] == ["done", "error", "concurrency-limit-reached"]
        assert answer["err"] == "Too many concurrent evals (max-concurrent-evals = 0)"
        assert (answer["limit"], answer["limit-value"]) == ("max-concurrent-evals", 0)
    assert len(table.state.sessions) == 0
    assert table.request("jobs", session="work")["cause"] == "its first eval was refused"


def test_a_refused_eval_leaves_the_throw_away_session_of_another_alone(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_queued_evals=0)
    running = table.eval(None, wait_ms=0)
    table.wait(0.1)
    told = table.final_reply(running)
    assert told["status"] == ["done", "running"]
    refused = table.request("eval", code="2", session=told["session"])
    assert refused["status"] == ["done", "error", "concurrency-limit-reached"]
    assert table.running_evals(running) == [running]
    table.finish_abandoned(running)
    assert len(table.state.sessions) == 0


def test_after_a_storm_of_refusals_everything_works(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_sessions=1, max_queued_evals=1, rate_limit_per_min=50)
    running, queued = table.eval(), table.eval()
    for _ in range(60):
        table.eval()
        table.eval("other")
        table.send_raw(b"nonsense")
    table.wait(61)
    assert table.final_reply(queued)["status"] == ["done", "error", "worker-lost"]
    assert table.final_reply(running)["status"] == ["done", "error", "timeout"]
    assert table.is_idle()
    table.finish(table.eval())
    table.request("close", session="work")
    table.finish(table.eval("other"))
    assert table.is_idle()

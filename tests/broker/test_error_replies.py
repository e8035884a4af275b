"""Errors: their code, message and limit; and everything works afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness

MISSING_HINT = "send `if-missing`: `create` with the eval, or open it with `new-session`"


@pytest.mark.parametrize(
    ("request_", "code", "err"),
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
    harness: CoreHarness, request_: dict[str, Any], code: str, err: str
) -> None:
    harness.open("taken")
    before = (harness.saved_sessions(), list(harness.spawned))
    answer = harness.request(**request_)
    assert (answer["status"], answer["err"]) == (["done", "error", code], err)
    assert [session.name for session in harness.state.sessions] == ["taken"]
    assert (harness.saved_sessions(), harness.spawned) == before
    assert harness.is_idle()


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
def test_a_session_that_does_not_exist_is_named_with_a_hint(harness: CoreHarness, request_: dict[str, Any]) -> None:
    answer = harness.request(**request_, session="nowhere")
    assert answer["status"] == ["done", "error", "session-not-found"]
    assert answer["err"] == "Session not found: nowhere"
    assert answer["hint"] == MISSING_HINT
    assert "cause" not in answer


def test_a_session_that_is_gone_says_how_it_went(harness: CoreHarness) -> None:
    opened = harness.open()
    harness.request("close", session="work", agent="ada")
    for key in ("work", opened["session"]):
        assert harness.request("jobs", session=key)["cause"] == "closed by ada"
    again = harness.eval()
    assert "cause" not in harness.replies[again][0]  # whoever closed it knows
    harness.finish(again)
    harness.request("close", session="work")
    assert harness.request("jobs", session="work")["cause"] == "closed"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"id":"\\ud800","op":"ping"}', b"{}" * 2])
def test_bytes_that_are_no_request_are_answered_under_no_id(harness: CoreHarness, body: bytes) -> None:
    harness.send_raw(body)
    answer = harness.final_reply("")
    assert answer["status"] == ["done", "error", "malformed-request"]
    assert answer["err"].startswith("Malformed JSON: ")
    assert "retry-after-ms" not in answer


def test_an_id_that_is_too_long_is_echoed(harness: CoreHarness) -> None:
    harness.send_raw(b'{"id":"%s","op":"ping"}' % (b"x" * 257))
    assert harness.final_reply("x" * 257)["err"] == "id exceeds maximum length of 256"


def test_a_message_over_the_limit_is_refused_with_the_limit(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_message_bytes=1024)
    harness.send_raw(b" " * 1025)
    assert harness.final_reply("") == {
        "id": "",
        "status": ["done", "error", "message-too-large"],
        "err": "message exceeds maximum size of 1024 bytes (max-message-bytes = 1024)",
        "limit": "max-message-bytes",
        "limit-value": 1024,
    }
    assert harness.hung_up == [b"p1"]  # a stream's end cannot be found any more; where messages have ends it is kept
    harness.send_raw(b'{"id":"long","op":"ping"}'.ljust(1025))
    assert harness.final_reply("long")["status"] == ["done", "error", "message-too-large"]
    harness.send_raw(b'{"id":"fits","op":"ping"}'.ljust(1024))
    assert harness.final_reply("fits")["status"] == ["done", "pong"]


def test_the_tenth_malformed_message_in_a_row_ends_the_connection(harness: CoreHarness) -> None:
    for _ in range(9):
        harness.send_raw(b"{")
    harness.request("ping")
    for _ in range(9):
        harness.send_raw(b"[]")
    harness.request("dance")  # refused, and yet a request
    for _ in range(9):
        harness.send_raw(b'{"op":')
    assert harness.hung_up == []
    harness.send_raw(b"3")
    assert harness.hung_up == [b"p1"]
    assert not harness.core.state.protocol_errors


def test_other_refusals_are_no_strikes(harness: CoreHarness) -> None:
    for _ in range(30):
        harness.request("dance")
    assert harness.hung_up == []
    assert not harness.core.state.protocol_errors


def test_a_client_too_many_is_told_at_the_door(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_connections=2)
    assert [harness.core.on_connect(peer, "self", harness.now) for peer in (b"c1", b"c2")] == [None, None]
    refusal = harness.core.on_connect(b"c3", "self", harness.now)
    assert refusal is not None
    assert b'"connection-limit-reached"' in refusal
    assert harness.core.tick(harness.now) == []


def test_sessions_up_to_the_limit(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_sessions=2)
    harness.open("a")
    harness.open("b")
    for asked in (harness.send("new-session", name="c"), harness.eval("c"), harness.eval(None)):
        assert harness.final_reply(asked) == {
            "id": asked,
            "status": ["done", "error", "session-limit-reached"],
            "err": "Session limit reached (max-sessions = 2)",
            "hint": "`ls-sessions` lists sessions and `close` ends one; open sessions do not end by waiting",
            "limit": "max-sessions",
            "limit-value": 2,
            "retry-after-ms": 1000,
        }
    assert harness.open("a", if_exists="reuse")["created"] is False
    harness.request("close", session="a")
    harness.finish(harness.eval(None))
    harness.finish(harness.eval("c"))
    assert len(harness.state.sessions) == 2


def test_clients_up_to_the_limit(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_connections=2)
    for peer in (b"p1", b"p2", b"p3"):
        harness.core.on_connect(peer, "self", harness.now)
    harness.request("ping", peer=b"p1")
    refused = harness.request("ping", peer=b"p3")
    assert refused["status"] == ["done", "error", "connection-limit-reached"]
    assert refused["err"] == "Too many clients (max-connections = 2)"
    assert (refused["limit"], refused["limit-value"], refused["retry-after-ms"]) == ("max-connections", 2, 1000)
    assert harness.request("ping", peer=b"p1")["status"] == ["done", "pong"]
    harness.apply(harness.core.on_disconnect(b"p2", harness.now))
    assert harness.request("ping", peer=b"p3")["status"] == ["done", "pong"]


def test_requests_that_wait_in_one_session_up_to_the_limit(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_waiting_reads=1)
    harness.open()
    harness.open("other")
    first = harness.send("stdin", session="work", input="x")
    refused = harness.request("stdin", session="work", input="y")
    assert refused["status"] == ["done", "error", "concurrency-limit-reached"]
    assert refused["err"] == "Too many requests wait in this session (max-waiting-reads = 1)"
    assert (refused["limit"], refused["limit-value"], refused["retry-after-ms"]) == ("max-waiting-reads", 1, 1000)
    assert harness.is_pending(harness.send("stdin", session="other", input="z"))
    harness.worker().reply(first)
    assert harness.is_pending(harness.send("stdin", session="work", input="y"))


def test_bindings_are_not_cleared_under_a_running_eval(harness: CoreHarness) -> None:
    asked = harness.eval()
    answer = harness.request("clear-bindings", session="work")
    assert answer["status"] == ["done", "error", "busy"]
    assert answer["err"] == "session work runs an eval: interrupt it or wait"
    harness.finish(asked)
    assert harness.is_pending(harness.send("clear-bindings", session="work"))


def test_the_first_eval_of_a_session_that_is_refused_takes_the_session_along(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(max_concurrent_evals=0)
    for asked in (harness.eval("work"), harness.eval(None)):
        answer = harness.final_reply(asked)
        assert answer["status"] == ["done", "error", "concurrency-limit-reached"]
        assert answer["err"] == "Too many concurrent evals (max-concurrent-evals = 0)"
        assert (answer["limit"], answer["limit-value"]) == ("max-concurrent-evals", 0)
    assert len(harness.state.sessions) == 0
    assert harness.request("jobs", session="work")["cause"] == "its first eval was refused"


def test_a_refused_eval_leaves_the_throw_away_session_of_another_alone(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_queued_evals=0)
    running = harness.eval(None, wait_ms=0)
    harness.wait(0.1)
    reply = harness.final_reply(running)
    assert reply["status"] == ["done", "running"]
    refused = harness.request("eval", code="2", session=reply["session"])
    assert refused["status"] == ["done", "error", "concurrency-limit-reached"]
    assert harness.running_evals(running) == [running]
    harness.finish_abandoned(running)
    assert len(harness.state.sessions) == 0


def test_after_a_storm_of_refusals_everything_works(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_sessions=1, max_queued_evals=1, rate_limit_per_min=50)
    running, queued = harness.eval(), harness.eval()
    for _ in range(60):
        harness.eval()
        harness.eval("other")
        harness.send_raw(b"nonsense")
    harness.wait(61)
    assert harness.final_reply(queued)["status"] == ["done", "error", "worker-lost"]
    assert harness.final_reply(running)["status"] == ["done", "error", "timeout"]
    assert harness.is_idle()
    harness.finish(harness.eval())
    harness.request("close", session="work")
    harness.finish(harness.eval("other"))
    assert harness.is_idle()

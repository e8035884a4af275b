"""The conversation core and what it gathers: bytes in, results out, no socket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replctl import CodeError, ReplError, __version__
from replctl.client.protocol import ClientProtocol, describe_mismatch, eval_result, final_reply
from replctl.client.request_fields import eval_fields
from replctl.client.result import PendingRequest
from replwire.faults import ExitCode


def begin(**options: Any) -> tuple[ClientProtocol, PendingRequest]:
    talk = ClientProtocol("me", "p-")
    gathering, _ = talk.send("eval", {"code": "1", "session": "work"}, **options)
    return talk, gathering


def deliver(talk: ClientProtocol, gathering: PendingRequest, *messages: dict[str, Any]) -> None:
    for message in messages:
        talk.receive(json.dumps({"id": gathering.request_id, **message}).encode())


def test_a_request_is_one_flat_kebab_object_without_the_fields_that_are_none() -> None:
    _, body = ClientProtocol("me", "p-").send("eval", eval_fields("1+1", "work", timeout=1.5, wait=0))
    assert json.loads(body) == {
        "id": "p-1",
        "op": "eval",
        "agent": "me",
        "code": "1+1",
        "session": "work",
        "if-missing": "create",
        "timeout-ms": 1500,
        "wait-ms": 0,
        "client-version": __version__,
    }


def test_a_throw_away_eval_names_no_session() -> None:
    _, body = ClientProtocol(None, "p-").send("eval", eval_fields("1", "work", ephemeral=True))
    assert json.loads(body) == {"id": "p-1", "op": "eval", "code": "1", "client-version": __version__}


def test_a_connection_begins_with_the_clients_version_and_says_it_no_more_once_it_is_answered() -> None:
    results: list[str] = []
    talk = ClientProtocol(None, "p-", on_mismatch=results.append)

    def says() -> bool:
        gathering, body = talk.send("ping", {})
        if talk.broker_version is None:
            deliver(talk, gathering, {"broker-version": "99.0"}, {"status": ["done", "pong"]})
        return "client-version" in json.loads(body)

    assert [says(), says(), talk.broker_version, len(results)] == [True, False, "99.0", 1]
    talk.connection_lost(ReplError("broker-lost", "gone"))
    assert [talk.send("ping", {})[1].count(b"client-version") for _ in range(2)] == [1, 1]
    gathering, _ = talk.send("ping", {})
    deliver(talk, gathering, {"status": ["done", "pong"]})
    assert (talk.broker_version, len(results)) == (None, 1)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("0.10.0", "0.9", "the broker (replctl 0.9) is older than this client (0.10.0): `replctl shutdown`"),
        ("0.9", "1", "this client (0.9) is older than the broker (replctl 1): upgrade it"),
        ("1.0", "1.0.0rc1", "the broker is replctl 1.0.0rc1 and this client is 1.0: upgrade"),
        ("1.0", "unknown", "older than this client (1.0)"),
    ],
)
def test_two_versions_are_said_with_which_is_older_and_what_to_do(ours: str, theirs: str, expected: str) -> None:
    assert expected in describe_mismatch(ours, theirs)


def test_ids_are_never_used_twice() -> None:
    talk = ClientProtocol(None, "p-")
    assert len({talk.send("ping", {})[0].request_id for _ in range(100)}) == 100


def test_code_that_is_no_unicode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ReplError) as caught:
        ClientProtocol(None, "p-").send("eval", {"code": "'\ud800'"})
    assert caught.value.code == "invalid-request"


def test_chunks_are_joined_and_told_live_in_their_order() -> None:
    live: list[tuple[str, str]] = []
    talk, gathering = begin(on_output=lambda stream, text: live.append((stream, text)))
    deliver(
        talk,
        gathering,
        {"out": "a"},
        {"err": "b"},
        {"out": "c"},
        {"value": "1"},
        {"status": ["done"], "name": "work", "session": "u-1", "duration-ms": 1500},
    )
    got = eval_result(gathering)
    assert live == [("out", "a"), ("err", "b"), ("out", "c")]
    assert (got.out, got.err, got.value, got.session, got.session_id) == ("ac", "b", "1", "work", "u-1")
    assert (got.duration, got.ok, got.error) == (1.5, True, None)


def test_answers_of_two_requests_that_interleave_are_told_apart() -> None:
    talk, first = begin()
    second, _ = talk.send("eval", {"code": "2"})
    deliver(talk, first, {"out": "1"})
    deliver(talk, second, {"out": "2"}, {"status": ["done"]})
    deliver(talk, first, {"status": ["done"]})
    assert (eval_result(first).out, eval_result(second).out) == ("1", "2")


def test_a_message_that_nobody_waits_for_is_dropped() -> None:
    talk, gathering = begin()
    talk.forget(gathering)
    deliver(talk, gathering, {"status": ["done"]})
    assert gathering.final is None


def test_what_is_no_message_of_ours_says_that_no_broker_is_there() -> None:
    with pytest.raises(ReplError) as caught:
        begin()[0].receive(b"HTTP/1.1 400 Bad Request")
    assert caught.value.exit is ExitCode.NO_BROKER


def test_an_error_without_an_id_is_not_lost() -> None:
    with pytest.raises(ReplError) as caught:
        begin()[0].receive(b'{"id":"","status":["done","error","malformed-request"],"err":"Malformed JSON"}')
    assert caught.value.code == "malformed-request"


def test_a_refusal_raises_with_the_word_the_sentence_and_when_to_try_again() -> None:
    talk, gathering = begin()
    deliver(talk, gathering, {"status": ["done", "error", "rate-limited"], "err": "slow down", "retry-after-ms": 70})
    with pytest.raises(ReplError) as caught:
        eval_result(gathering)
    error = caught.value
    assert (error.code, error.message, error.retry_after_ms, error.exit) == ("rate-limited", "slow down", 70, 5)


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [
        (["done", "interrupted"], ExitCode.INTERRUPTED),
        (["done", "running"], ExitCode.RUNNING),
        (["done", "error", "timeout"], ExitCode.TIMED_OUT),
        (["done", "error", "worker-lost"], ExitCode.WORKER_LOST),
        (["done", "error", "session-reset"], ExitCode.WORKER_LOST),
        (["done", "error"], ExitCode.RAISED),
    ],
)
def test_how_the_code_ended_is_a_result_with_its_output_and_no_exception(
    status: list[str], exit_code: ExitCode
) -> None:
    talk, gathering = begin()
    deliver(talk, gathering, {"out": "partial"}, {"status": status, "err": "why"})
    got = eval_result(gathering)
    assert (got.out, got.exit, got.ok) == ("partial", exit_code, False)
    with pytest.raises(ReplError) as caught:
        got.raise_for_error()
    assert caught.value.exit is exit_code
    assert caught.value.result is got


def test_the_sentence_of_an_error_is_not_taken_for_text_of_stderr() -> None:
    talk, gathering = begin()
    deliver(
        talk,
        gathering,
        {"err": "warned\n"},
        {"status": ["done", "error"], "err": "ValueError: no", "ex": {"type": "ValueError", "message": "no"}},
    )
    got = eval_result(gathering)
    assert (got.err, got.error) == ("warned\n", "ValueError: no")


def test_raise_for_error_raises_what_the_code_raised_by_type_and_message() -> None:
    talk, gathering = begin()
    deliver(talk, gathering, {"status": ["done", "error"], "err": "x", "ex": {"type": "KeyError", "message": "'k'"}})
    with pytest.raises(CodeError) as caught:
        eval_result(gathering).raise_for_error()
    assert (caught.value.exception_type, caught.value.exception_message, str(caught.value)) == (
        "KeyError",
        "'k'",
        "KeyError: 'k'",
    )


def test_a_defect_of_the_broker_is_no_result_of_the_code() -> None:
    talk, gathering = begin()
    deliver(talk, gathering, {"status": ["done", "error", "internal-error"], "err": "x", "correlation-id": "c"})
    with pytest.raises(ReplError) as caught:
        eval_result(gathering)
    assert caught.value.code == "internal-error"


def test_statuses_that_are_not_the_end_are_told_and_not_merged() -> None:
    results: list[list[str] | None] = []
    talk, gathering = begin(on_status=lambda reply: results.append(reply.status))
    deliver(
        talk, gathering, {"status": ["queued"], "queue-position": 2}, {"status": ["need-input"]}, {"status": ["done"]}
    )
    assert results == [["queued"], ["need-input"]]
    assert eval_result(gathering).queue_position is None


def test_an_answer_that_is_no_eval_is_its_last_reply() -> None:
    talk = ClientProtocol(None, "p-")
    gathering, _ = talk.send("new-session", {"name": "work"})
    deliver(talk, gathering, {"status": ["done"], "session": "u-1", "name": "work", "created": True})
    assert final_reply(gathering).session == "u-1"


def test_when_the_connection_ends_every_open_request_knows_why() -> None:
    talk, gathering = begin()
    why = ReplError("broker-lost", "gone")
    assert talk.connection_lost(why) == [gathering]
    assert gathering.error is why

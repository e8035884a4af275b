"""Framing, envelope, rules of every stream (scenarios 1 to 26)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from in_memory import InMemoryBroker
from scenarios import scenario
from transports import SMALL, BrokerSite

BOTH = (
    "import sys\nfor n in range(3):\n    print('o', n, flush=True)\n    print('e', n, file=sys.stderr, flush=True)\n'v'"
)


def _put(wire: Any, request: dict[str, Any] | str) -> dict[str, Any]:
    """Send a whole request as it stands; the next message."""
    wire._put((request if isinstance(request, str) else json.dumps(request)).encode())
    message: dict[str, Any] = wire.receive()
    return message


@scenario(1, 2, 3, 4, 5)
def test_every_stream_keeps_the_rules(wire: Any) -> None:
    """The rules themselves are checked at every message that any test here receives."""
    answer = wire.run(BOTH)
    kinds = ["value" if "value" in m else "done" if m.get("status") else "text" for m in answer.messages[1:]]
    assert kinds == ["text"] * (len(kinds) - 2) + ["value", "done"]
    assert (answer.out, answer.err, answer.value) == ("o 0\no 1\no 2\n", "e 0\ne 1\ne 2\n", "'v'")
    for op, fields in (
        ("ping", {}),
        ("describe", {}),
        ("stats", {}),
        ("ls-sessions", {}),
        ("jobs", {"session": "s"}),
        ("info", {"session": "s"}),
        ("read", {"session": "s", "eval_id": 1}),
        ("eval", {"code": "1/0"}),
        ("read", {"session": "s", "eval_id": 99}),
        ("dance", {}),
        ("close", {"session": "s"}),
    ):
        assert wire.ask(op, **fields).status[0] == "done"


@scenario(6)
def test_an_answer_is_one_object_on_one_line(line: Any) -> None:
    line.raw(b'{"id":"a","op":"ping"}\n')
    text = line.line()
    assert text.count(b"\n") == 1
    assert json.loads(text.removesuffix(b"\n")) == {"id": "a", "status": ["done", "pong"]}


@scenario(7)
def test_blank_lines_are_skipped(line: Any) -> None:
    line.raw(b'\n   \n\t\r\n{"id":"a","op":"ping"}\n')
    assert line.receive()["status"] == ["done", "pong"]


@scenario(8)
def test_json_that_is_no_object_is_answered_and_the_next_request_too(wire: Any) -> None:
    """REPLy skips it in silence; here it is answered like a line that is no JSON."""
    for body in ("[]", "3", "null", '"x"'):
        message = _put(wire, body)
        assert (message["id"], message["status"]) == ("", ["done", "error", "malformed-request"])
    assert wire.ask("ping").status == ["done", "pong"]


@scenario(10)
def test_a_line_that_is_no_json_is_answered_and_the_tenth_in_a_row_ends_the_connection(line: Any) -> None:
    """REPLy closes at the first one without a word."""
    for _ in range(9):
        assert _put(line, '{"op":"eval","id":}')["status"] == ["done", "error", "malformed-request"]
    assert line.ask("ping").status == ["done", "pong"]
    line.raw(b'{"op":"eval","id":}\n' * 12)
    for _ in range(10):
        assert line.receive()["id"] == ""
    assert line.has_ended()


@scenario(11, 13)
def test_a_request_over_the_limit_is_told_the_limit(site: Callable[..., BrokerSite]) -> None:
    """On ZeroMQ, where messages have ends of their own, the request's id is known."""
    with site(*SMALL).wire() as wire:
        message = _put(wire, {"id": "long", "op": "eval", "code": "x" * 2000})
        assert message["id"] in ("", "long")
        assert message["status"] == ["done", "error", "message-too-large"]
        assert message["err"].startswith("message exceeds maximum size of 1024 bytes")


@scenario(11)
def test_a_line_over_the_limit_ends_the_connection(sites: Any, line: Any) -> None:
    """The connection ends after the answer with id "", and no other client notices."""
    for kind in ("tcp", "unix", "memory"):
        with sites.site(kind, *SMALL).wire() as wire:
            wire.raw(b"x" * 5000)
            assert wire.receive()["id"] == ""
            assert wire.has_ended()
    assert line.ask("ping").status == ["done", "pong"]


@scenario(14)
def test_an_id_that_is_too_long_is_echoed_and_refused(wire: Any) -> None:
    answer = wire.ask("ping", id="i" * 257)
    assert answer.status == ["done", "error", "invalid-request"]
    assert answer["err"] == "id exceeds maximum length of 256"
    assert wire.ask("ping", id="i" * 256).status == ["done", "pong"]


@pytest.mark.parametrize(
    ("request_", "err"),
    [
        ({"op": "ping"}, "id must not be empty"),
        ({"id": "", "op": "ping"}, "id must not be empty"),
        ({"id": None, "op": "ping"}, "id must not be empty"),
        ({"id": 123, "op": "ping"}, "id must be a string"),
        ({"id": ["a"], "op": "ping"}, "id must be a string"),
    ],
)
@scenario(16, 17, 25)
def test_a_request_without_a_usable_id_is_answered_under_an_empty_one(
    wire: Any, request_: dict[str, Any], err: str
) -> None:
    message = _put(wire, request_)
    assert (message["id"], message["err"]) == ("", err)
    assert message["status"] == ["done", "error", "invalid-request"]
    assert wire.ask("ping").status == ["done", "pong"]


@pytest.mark.parametrize(
    ("fields", "err"),
    [
        ({}, "op is required"),
        ({"op": 123}, "op must be a string"),
        ({"op": "ping", "store_history": True}, "request keys must use kebab-case"),
        ({"op": "ping", "Upper": 1}, "request keys must use kebab-case"),
        ({"op": "ping", "more": {}}, "request message must use a flat JSON envelope"),
        ({"op": "eval", "code": {"a": 1}}, "request message must use a flat JSON envelope"),
    ],
)
@scenario(19, 20)
def test_a_wrong_envelope_is_refused_under_its_id(wire: Any, fields: dict[str, Any], err: str) -> None:
    message = _put(wire, {"id": "e", **fields})
    assert (message["id"], message["err"]) == ("e", err)
    assert message["status"] == ["done", "error", "invalid-request"]
    assert wire.ask("ping").status == ["done", "pong"]


@scenario(22)
def test_a_false_option_and_an_unknown_field_are_no_trouble(wire: Any) -> None:
    wire.run("0")
    answer = wire.run("1+1", store_history=False, never_heard_of_it=[1, [2]])
    assert (answer.value, answer.status, answer["ignored-fields"]) == ("2", ["done"], ["never-heard-of-it"])


@scenario(23)
def test_an_op_that_nobody_knows_is_named(wire: Any) -> None:
    answer = wire.ask("frobnicate")
    assert len(answer.messages) == 1
    assert answer.status == ["done", "error", "unknown-op"]
    assert answer["err"] == "Unknown operation: frobnicate"


@scenario(26)
def test_an_internal_error_is_found_in_the_log_by_its_number() -> None:
    """In memory alone: no real broker has an op that fails by itself."""
    memory = InMemoryBroker()

    def defect(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    for op in (table := memory.core._operations.table):
        table[op] = defect
    with memory.wire() as wire:
        answer = wire.ask("ping")
        assert answer.status == ["done", "error", "internal-error"]
        assert answer["correlation-id"] in answer["err"]
        assert answer.get("stacktrace") is None
        number = answer["correlation-id"]
        assert wire.ask("ping").status == ["done", "error", "internal-error"]
    log = next(entry for entry in memory.log_text().split("internal error ") if entry.startswith(number))
    assert "ZeroDivisionError: a defect" in log
    memory.close()

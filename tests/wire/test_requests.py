"""Bytes to requests: every way to be wrong has its word and its sentence, and nothing else ever comes out."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.faults import RequestError
from replwire.identifiers import MAX_NAME_BYTES
from replwire.ops import OPS, Eval, Read, Request
from replwire.requests import describe_ops, extract_id, parse, to_request

LONG = "x" * (MAX_NAME_BYTES + 1)
FLAT = "request message must use a flat JSON envelope"
LETTERS = "name may only contain letters, digits, hyphens, and underscores"


def request(body: bytes) -> Request:
    return to_request(parse(body))


def refusal(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        request(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "a request is one frame with one JSON object"),
        (b"{", "Input data was truncated"),
        (b"nonsense", "JSON is malformed: "),
        (b'{"id":"a"} x', "JSON is malformed: "),
        (b"null", "Expected `object`, got `null`"),
        (b"[]", "Expected `object`, got `array`"),
        (b'"text"', "Expected `object`, got `str`"),
        (b"7", "Expected `object`, got `int`"),
        (b'{"id":"a","n":NaN}', "JSON is malformed: "),
        (b'{"id":"a","n":Infinity}', "JSON is malformed: "),
        (b'{"id":"a","n":1e999}', "Number out of range"),
    ],
)
def test_what_is_no_json_object_is_malformed(body: bytes, why: str) -> None:
    refused = refusal(body)
    assert refused.code == "malformed-request"
    assert refused.message.startswith(f"Malformed JSON: {why}")
    assert refused.fields == {"id": ""}


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"\\ud800","op":"ping"}',
        b'{"id":"a","op":"eval","code":"\\udc00"}',
        b'{"id":"\xff","op":"ping"}',
        b'{"id":"a","op":"eval","code":"\xed\xa0\x80"}',
        b'{"id":"a","x":' + b"9" * 5000 + b"}",
        b'{"id":' * 100_000,
        b'{"id":"a","x":' + b"[" * 100_000,
        b'{"id":"a","x":' + b'{"y":' * 100_000 + b"1" + b"}" * 100_001,
    ],
    ids=["high", "low", "latin-1", "cesu-8", "huge number", "deep objects", "deep arrays", "deep and whole"],
)
def test_what_no_text_or_number_can_hold_is_malformed(body: bytes) -> None:
    assert refusal(body).code == "malformed-request"


@pytest.mark.parametrize(
    ("fields", "err", "answered_to"),
    [
        ({}, "id must not be empty", ""),
        ({"id": ""}, "id must not be empty", ""),
        ({"id": None}, "id must not be empty", ""),
        ({"id": 7}, "id must be a string", ""),
        ({"id": ["a"]}, "id must be a string", ""),
        ({"id": LONG}, "id exceeds maximum length of 256", LONG),
        ({"id": "é" * 129}, "id exceeds maximum length of 256", "é" * 129),
        ({"id": "a"}, "op is required", "a"),
        ({"id": "a", "op": None}, "op is required", "a"),
        ({"id": "a", "op": 1}, "op must be a string", "a"),
        ({"id": "a", "op": "ping", "time_out": 1}, "request keys must use kebab-case", "a"),
        ({"id": "a", "op": "ping", "Time": 1}, "request keys must use kebab-case", "a"),
        ({"id": "a", "op": "ping", "": 1}, "request keys must use kebab-case", "a"),
        ({"id": "a", "op": "ping", "extra": {}}, FLAT, "a"),
    ],
)
def test_an_envelope_that_is_wrong_is_answered_under_its_id(fields: dict[str, Any], err: str, answered_to: str) -> None:
    refused = refusal(json.dumps(fields).encode())
    assert (refused.code, refused.message, refused.fields["id"]) == ("invalid-request", err, answered_to)


def test_an_id_may_have_256_bytes() -> None:
    assert request(json.dumps({"id": "é" * 128, "op": "ping"}).encode()).id == "é" * 128


@pytest.mark.parametrize(
    ("fields", "err"),
    [
        ({"op": "reset"}, "reset requires session"),
        ({"op": "read", "session": "s"}, "read requires eval-id"),
        ({"op": "stdin", "session": "s"}, "stdin requires input"),
        ({"op": "reset", "session": None}, "session: expected `str`, got `null`"),
        ({"op": "close", "session": ""}, "session name must not be blank"),
        ({"op": "close", "session": "a b"}, f"session {LETTERS}"),
        ({"op": "close", "session": "a/b b"}, f"session {LETTERS}"),
        ({"op": "close", "session": "naïve"}, f"session {LETTERS}"),
        ({"op": "close", "session": LONG}, "session name exceeds maximum length of 256"),
        ({"op": "ping", "agent": "\n"}, "agent name must not be blank"),
        ({"op": "ping", "agent": "a\n"}, f"agent {LETTERS}"),
        ({"op": "eval", "code": 1}, "code: expected `str | null`, got `int`"),
        ({"op": "eval", "code": {}}, FLAT),
        ({"op": "eval", "env": [{}]}, FLAT),
        ({"op": "eval", "env": [1]}, "env: expected `str`, got `int`"),
        ({"op": "eval", "timeout-ms": True}, "timeout-ms: expected `int | null`, got `bool`"),
        ({"op": "eval", "timeout-ms": 1.5}, "timeout-ms: expected `int | null`, got `float`"),
        ({"op": "eval", "timeout-ms": "1"}, "timeout-ms: expected `int | null`, got `str`"),
        ({"op": "eval", "timeout-ms": 0}, "timeout-ms: expected `int` >= 1"),
        ({"op": "eval", "wait-ms": -1}, "wait-ms: expected `int` >= 0"),
        ({"op": "eval", "silent": 1}, "silent: expected `bool`, got `int`"),
        ({"op": "eval", "if-missing": "perhaps"}, "if-missing: invalid enum value 'perhaps'"),
        ({"op": "eval", "idempotency-key": ""}, "idempotency-key: expected `str` of length >= 1"),
        ({"op": "eval", "idempotency-key": LONG}, "idempotency-key: expected `str` of length <= 256"),
        ({"op": "read", "session": "s", "eval-id": 1, "stream": "both "}, "stream: invalid enum value 'both '"),
        ({"op": "interrupt", "interrupt-id": -1}, "interrupt-id: expected `int` >= 0"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, Any], err: str) -> None:
    refused = refusal(json.dumps({"id": "a"} | fields).encode())
    assert (refused.code, refused.message) == ("invalid-request", err)


@pytest.mark.parametrize(("op", "err"), [("", ""), ("Eval", "Eval"), ("x" * 999, "x" * 256)])
def test_an_unknown_operation_is_named_in_short(op: str, err: str) -> None:
    refused = refusal(json.dumps({"id": "a", "op": op}).encode())
    assert (refused.code, refused.message) == ("unknown-op", f"Unknown operation: {err}")


def test_a_refusal_does_not_send_back_all_that_was_sent() -> None:
    refused = refusal(b'{"id":"a","op":"read","session":"s","eval-id":1,"stream":"' + b"x" * 100_000 + b'"}')
    assert refused.message.startswith("stream: invalid enum value 'xxx")
    assert len(refused.message) == 1001


def test_unknown_fields_are_ignored_and_the_last_of_two_counts() -> None:
    asked = request(b'{"id":"a","op":"ping","op":"eval","code":"1","new-in-2":[[{}]],"code":"2"}')
    assert isinstance(asked, Eval)
    assert asked.code == "2"


def test_a_view_of_a_buffer_is_read_as_well() -> None:
    assert parse(memoryview(b'{"id":"a","op":"ping"}')) == {"id": "a", "op": "ping"}


def test_defaults() -> None:
    asked = request(b'{"id":"a","op":"eval"}')
    assert asked == Eval(id="a", op="eval")
    assert msgspec.json.encode(request(b'{"id":"a","op":"read","session":"s","eval-id":3}')) == msgspec.json.encode(
        Read(id="a", op="read", session="s", eval_id=3)
    )


def test_every_operation_describes_itself() -> None:
    table = describe_ops()
    assert table.keys() == OPS.keys()
    for row in table.values():
        assert row["doc"].endswith(".") or row["doc"].endswith("?")
        assert not {"id", "op"} & {*row["requires"], *row["optional"]}
        assert not {*row["requires"]} & {*row["optional"]}
    assert table["eval"]["requires"] == ["code"]
    assert table["read"]["requires"] == ["session", "eval-id"]
    assert "timeout-ms" in table["eval"]["optional"]


def served_or_refused(body: bytes) -> None:
    try:
        asked = request(body)
    except RequestError as refused:
        refused.message.encode()
        msgspec.json.encode(refused.fields)
    else:
        assert type(asked) is OPS[asked.op]
        msgspec.json.encode(asked.id)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({name for op in OPS.values() for name in op.__struct_encode_fields__})


@given(st.binary(max_size=300))
def test_any_bytes_are_served_or_refused(body: bytes) -> None:
    served_or_refused(body)


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), JSON, max_size=6), st.sampled_from(sorted(OPS)))
def test_any_json_is_served_or_refused(fields: dict[str, Any], op: str) -> None:
    served_or_refused(json.dumps(fields).encode("utf-8", "surrogatepass"))
    served_or_refused(json.dumps({"id": "a", "op": op} | fields).encode("utf-8", "surrogatepass"))
    served_or_refused(json.dumps(fields | {"id": "a", "op": op}, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"id":"a","op":"ping"}', "a"),
        (b' { "id" : "\\u00e4\\"" , "code":"cut o', '\u00e4"'),
        (b'{"op":"ping","id":"a"}', "a"),
        (b'{"op":"ping","id":"a', ""),
        (b'{"id":7}', ""),
        (b"x", ""),
        (b"\xff", ""),
        (b'{"id":"' + b"x" * 300 + b'"}', ""),
    ],
)
def test_the_id_of_what_is_not_looked_at_is_found_where_there_is_one(body: bytes, found: str) -> None:
    assert extract_id(body) == found

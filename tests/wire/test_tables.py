"""The tables that docs, exit codes and refusals are made from: whole, and without contradictions."""

from __future__ import annotations

import dataclasses
from typing import get_args

import msgspec
import pytest

from replwire.config import Config, list_settings
from replwire.faults import (
    EXIT_MEANING,
    FAULTS,
    STATUSES,
    ExitCode,
    Fault,
    Origin,
    RequestError,
    exit_code_for,
    find_fault,
)
from replwire.identifiers import is_kebab, name_error
from replwire.limits import LimitRow, Limits, limit_rows
from replwire.ops import OPS
from replwire.replies import Reply, reply_fields


@pytest.mark.parametrize("bound", [*limit_rows()], ids=lambda bound: bound.name)
def test_every_bound_has_unit_reason_and_a_default_in_its_range(bound: LimitRow) -> None:
    assert bound.unit
    assert len(bound.why) > 10
    assert is_kebab(bound.name)
    assert bound.low <= bound.default <= bound.high
    for value in (bound.low, bound.high):
        assert msgspec.convert({bound.name: value}, Limits)
    for value in (bound.low - 1, bound.high + 1, float(bound.default), str(bound.default), True, None):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({bound.name: value}, Limits)


def test_bounds_are_all_there_is_in_limits() -> None:
    assert [bound.name for bound in limit_rows()] == list(Limits.__struct_encode_fields__)
    assert {bound.name: bound.default for bound in limit_rows()} == msgspec.to_builtins(Limits())


def test_the_defaults_are_those_that_the_protocol_promises() -> None:
    limits = Limits()
    assert (limits.max_eval_time_ms, limits.max_value_bytes, limits.max_output_bytes) == (30_000, 10_240, 1_000_000)
    assert (limits.max_sessions, limits.max_concurrent_evals, limits.max_queued_evals) == (100, 10, 20)
    assert (limits.rate_limit_per_min, limits.max_connections, limits.max_message_bytes) == (600, 100, 1_048_576)
    assert (limits.max_history, limits.max_stdin_bytes) == (1000, 65_536)
    assert (limits.session_idle_timeout_ms, limits.close_grace_ms) == (3_600_000, 5000)


@pytest.mark.parametrize("fault", [*FAULTS.values()], ids=lambda fault: fault.code)
def test_every_fault_has_a_word_a_meaning_and_an_exit_code_that_is_no_success(fault: Fault) -> None:
    assert is_kebab(fault.code)
    assert fault.meaning
    assert isinstance(fault.origin, Origin)
    assert fault.exit not in (ExitCode.OK, ExitCode.RUNNING)
    assert exit_code_for(["done", "error", fault.code]) is fault.exit
    assert find_fault(["done", "error", fault.code]) is fault


def test_no_word_is_a_fault_and_a_status() -> None:
    assert not FAULTS.keys() & STATUSES.keys()
    assert all(code == fault.code for code, fault in FAULTS.items())
    assert all(code == status.code and status.meaning for code, status in STATUSES.items())


def test_who_must_retry_is_not_told_to_repair_the_request() -> None:
    hopeless = {"malformed-request", "invalid-request", "missing-code", "unknown-op", "session-not-found"}
    assert not any(FAULTS[code].retry for code in hopeless)
    limits = [fault for code, fault in FAULTS.items() if code.endswith("-limit-reached") or code == "rate-limited"]
    assert len(limits) == 7
    kept = [FAULTS["environment-limit-reached"], FAULTS["checkpoint-limit-reached"]]  # nothing frees these by itself
    assert all(fault.retry is (fault not in kept) and fault.exit is ExitCode.REFUSED for fault in limits)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (["done"], ExitCode.OK),
        (["done", "pong"], ExitCode.OK),
        (["done", "error"], ExitCode.RAISED),
        (["done", "error", "timeout"], ExitCode.TIMED_OUT),
        (["done", "interrupted"], ExitCode.INTERRUPTED),
        (["done", "interrupted", "session-closed"], ExitCode.INTERRUPTED),
        (["done", "running"], ExitCode.RUNNING),
        (["done", "error", "worker-lost"], ExitCode.WORKER_LOST),
        (["done", "error", "session-not-found"], ExitCode.NAME),
        (["done", "error", "no-broker"], ExitCode.NO_BROKER),
        (["done", "error", "invalid-request"], ExitCode.USAGE),
        (["done", "error", "rate-limited"], ExitCode.REFUSED),
    ],
)
def test_exit_codes(status: list[str], code: ExitCode) -> None:
    assert exit_code_for(status) is code


def test_every_exit_code_is_explained_once() -> None:
    assert EXIT_MEANING.keys() == set(ExitCode)
    assert len(set(EXIT_MEANING.values())) == len(ExitCode) == 10
    assert [int(code) for code in ExitCode] == list(range(10))


def test_a_refusal_needs_a_word_of_the_table() -> None:
    assert RequestError("busy", "later", limit="x").fields == {"limit": "x"}
    with pytest.raises(KeyError):
        RequestError("done", "no fault")


def test_rows_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FAULTS["busy"].retry = False  # type: ignore[misc]


def test_every_key_that_an_operation_returns_is_a_key_of_replies() -> None:
    keys_of_replies = reply_fields()
    for op, kind in OPS.items():
        assert set(kind.returns) <= keys_of_replies.keys(), op
    assert all(keys_of_replies.values())
    assert list(keys_of_replies) == list(Reply.__struct_encode_fields__)


def test_every_setting_is_documented() -> None:
    sections = {field.encode_name: field.type for field in msgspec.structs.fields(Config)}
    for rows in ("agents", "identities", "extensions", "secrets"):
        del sections[rows]
    assert {section for section, _, _ in list_settings()} == sections.keys()
    for section in sections.values():
        for field in msgspec.structs.fields(section):
            assert any(isinstance(meta, msgspec.Meta) and meta.description for meta in get_args(field.type))


@pytest.mark.parametrize("name", ["a", "A-1_b", "0", "-", "x" * 256, "123e4567-e89b-12d3-a456-426614174000"])
def test_names_that_may_be_used(name: str) -> None:
    assert name_error("session", name) is None


@pytest.mark.parametrize("name", ["", " ", "\t", "a b", "a.b", "a/b", "a\n", "é", "\u0661", "x" * 257, "a\0"])
def test_names_that_may_not_be_used(name: str) -> None:
    assert str(name_error("session", name)).startswith("session name ")


@pytest.mark.parametrize(("key", "good"), [("a", True), ("timeout-ms", True), ("a1-2", True), ("", False)])
@pytest.mark.parametrize("bad", ["A", "1a", "-a", "a_b", "a b", "é", "a\n"])
def test_keys_are_kebab_case(key: str, good: bool, bad: str) -> None:
    assert is_kebab(key) is good
    assert not is_kebab(bad)

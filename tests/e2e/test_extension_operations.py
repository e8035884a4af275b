"""Operations that extensions contribute: for every client, with the rights of the caller, and harmless to others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ext_kit import config_entry, write_extension
from kit import BrokerProcess, Wire, wait_until
from replwire.ext.api import ExtensionOperation, InvalidContribution
from replwire.ext.registry import validate

EXTENSION = '''
import threading, time
import msgspec
from replctl.ext import ExtensionOperation, OperationOutput, call, hookimpl

class Count(msgspec.Struct, forbid_unknown_fields=True):
    """Count the names of a session."""
    session: str
    longer_than: int = 0

def count(args, context):
    replies = (yield from call("ls-bindings", session=args.session)).check()
    names = [each.name for each in replies.final.bindings if len(each.name) > args.longer_than]
    return {"names": names, "identity": context.identity}

class Work(msgspec.Struct, forbid_unknown_fields=True):
    """Run code twice and say so."""
    session: str
    code: str

def work(args, context):
    for number in (1, 2):
        yield OperationOutput(f"run {number}\\n")
        replies = yield from call("eval", session=args.session, code=args.code)
    return {"value": replies.value, "out": replies.out, "status": replies.final.status}

class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """Do what the name says."""

def fail(args, context):
    raise KeyError("a secret detail")

def hang(args, context):
    time.sleep(3600)

def flood(args, context):
    return "x" * 2_000_000

def stray(args, context):
    yield 1

@hookimpl
def replctl_register(register, settings):
    register(ExtensionOperation(name="count-names", args=Count, run=count, changes=False))
    register(ExtensionOperation(name="work-twice", args=Work, run=work))
    for name, run in (("fail", fail), ("hang", hang), ("flood", flood), ("stray", stray)):
        register(ExtensionOperation(name=name, args=Nothing, run=run, changes=False))
'''


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("ops")
    path = write_extension(directory, "own", EXTENSION)
    settings = ("limits.operation-time-ms=1000", "limits.max-operations=3", "broker.audit=true")
    found = BrokerProcess(directory, *settings, config=config_entry(path=path), warm=1)
    yield found
    found.stop()


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with broker.wire() as found:
        yield found


def test_an_operation_asks_the_broker_and_answers(wire: Wire) -> None:
    wire.run("first = second = 1", "s")
    answer = wire.ask("count-names", session="s", longer_than=5)
    assert answer.status == ["done"]
    assert answer["result"]["names"] == ["second"]
    assert answer["result"]["identity"].startswith("uid:")


def test_it_streams_and_its_evals_are_those_of_the_session(wire: Wire) -> None:
    wire.run("n = 0", "t")
    answer = wire.ask("work-twice", session="t", code="n += 1; print('hi'); n")
    assert answer.out == "run 1\nrun 2\n"
    assert answer["result"] == {"value": "2", "out": "hi\n", "status": ["done"]}
    assert wire.run("n", "t").value == "2"


def test_describe_lists_it_and_says_whose_it_is(wire: Wire) -> None:
    ops = wire.ask("describe")["ops"]
    assert ops["count-names"] == {
        "doc": "Count the names of a session.",
        "requires": ["session"],
        "optional": ["longer-than"],
        "returns": ["out", "result"],
        "changes": False,
        "extension": "own",
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"session": "s", "nope": 1}, "count-names: Object contains unknown field `nope`"),
        ({"session": "s", "longer_than": "x"}, "count-names: Expected `int`, got `str` - at `$.longer_than`"),
        ({}, "count-names: Object missing required field `session`"),
    ],
)
def test_its_fields_are_checked(wire: Wire, fields: dict[str, object], why: str) -> None:
    wire.run("1", "s")
    answer = wire.ask("count-names", **fields)
    assert answer.status == ["done", "error", "invalid-request"]
    assert answer["err"] == why


def test_it_has_no_more_rights_than_its_caller(wire: Wire) -> None:
    wire.run("n = 0", "p")
    refused = wire.ask("work-twice", session="p", code="n = 1", mode="plan")
    assert refused.status == ["done", "error", "plan-mode"]
    assert wire.ask("work-twice", session="p", code="n = 1", is_change=False, mode="plan").status[2] == "plan-mode"
    assert wire.ask("count-names", session="p", mode="plan").status == ["done"]
    assert wire.ask("count-names", session="nowhere").status == ["done", "error", "session-not-found"]


@pytest.mark.parametrize(
    ("op", "code", "why"),
    [
        ("fail", "operation-failed", "own/fail failed: KeyError"),
        ("flood", "operation-failed", "own/flood: the result is longer than 1048576 bytes"),
        ("stray", "operation-failed", "own/stray failed: TypeError"),
        ("hang", "timeout", "the operation took too long (operation-time-ms = 1000)"),
    ],
)
def test_one_that_misbehaves_harms_its_caller_alone(wire: Wire, op: str, code: str, why: str) -> None:
    asked = wire.send(op)
    assert wire.run("1 + 1", "s").value == "2"
    answer = wire.answer(asked)
    assert answer.status == ["done", "error", code]
    assert answer["err"] == why


def test_a_failure_is_reported_as_an_event(broker: BrokerProcess, wire: Wire) -> None:
    with broker.wire() as reader:
        watching = reader.send("subscribe", types=["extension/"])
        reader.receive()
        wire.ask("fail")
        event = wait_until(lambda: reader.receive().get("event"), "the event of the failure")
    assert watching
    assert (event["type"], event["contribution"]) == ("extension/error", "operation fail")
    assert "a secret detail" in event["error"]


def test_more_than_the_limit_are_refused(wire: Wire) -> None:
    def may_start() -> bool:
        return wire.ask("count-names", session="s").status == ["done"]

    wire.run("1", "s")
    wait_until(may_start, "room for another operation")
    asked = [wire.send("hang") for _ in range(4)]
    statuses = sorted(wire.answer(each).status[2] for each in asked)
    assert statuses == ["concurrency-limit-reached", "timeout", "timeout", "timeout"]


def test_a_caller_that_leaves_and_a_broker_that_ends_leave_no_request_open(
    tmp_path: Path,
) -> None:
    path = write_extension(tmp_path, "own", EXTENSION)
    broker = BrokerProcess(tmp_path, config=config_entry(path=path), warm=0)
    with broker.wire() as leaving:
        leaving.send("hang")
        leaving.ask("ping")
    with broker.wire() as wire:
        asked = wire.send("hang")
        wire.ask("ping")
        started = time.monotonic()
        wire.send("shutdown")
        assert wire.answer(asked).status == ["done", "error", "shutdown"]
    assert broker.stop() == 0
    assert time.monotonic() - started < 10


class Loose(msgspec.Struct):
    """Fields that nobody checks."""


class Undescribed(msgspec.Struct, forbid_unknown_fields=True):
    pass


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("eval", Undescribed, "operation eval: the broker has an operation of this name itself"),
        ("loose", Loose, "operation loose: args must be a msgspec.Struct with forbid_unknown_fields"),
        ("loose", dict, "operation loose: args must be a msgspec.Struct with forbid_unknown_fields"),
        ("short", Undescribed, "operation short: args has no docstring"),
    ],
)
def test_one_that_breaks_its_contract_is_refused(name: str, args: type, why: str) -> None:
    with pytest.raises(InvalidContribution) as refused:
        validate(ExtensionOperation(name=name, args=args, run=print))
    assert str(refused.value) == why

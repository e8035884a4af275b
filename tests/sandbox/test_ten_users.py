"""Ten users of one broker, each with a session: by no operation and through no interface does one of them get at another's.

The broker is root's, who tells users by the kernel's word, or an ordinary user's, who tells them by keys and tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from replwire.ops import OPS
from ten_users_attempts import ATTEMPTS, FILES, NOT_FOUND, OTHERS, commands, methods, request, tools, turns
from ten_users_broker import USERS, SessionOwner, TenUsersScene, references, start_scene, status, value

SOAK = os.environ.get("REPLCTL_SOAK") == "1"
INTERFACES = ("zmq", "tcp", "unix")  # of the bare wire
WHO = [
    pytest.param(
        "root",
        marks=pytest.mark.needs_root("for users of their own"),
    ),
    "user",
]


@pytest.fixture(scope="module", params=WHO)
def scene(request: pytest.FixtureRequest, report: object) -> Iterator[TenUsersScene]:
    del report
    with start_scene(request.param) as scene:
        yield scene


def test_every_operation_is_tried() -> None:
    assert set(ATTEMPTS) | set(OTHERS) == set(OPS)


@pytest.mark.parametrize("via", INTERFACES)
def test_no_operation_gets_at_anothers_session(scene: TenUsersScene, via: str) -> None:
    def attacks(attacker: int) -> list[tuple[SessionOwner, dict[str, Any], str]]:
        own = scene.owners[attacker].identity
        return [
            (owner, request(op, attempt, owner, reference, scene, own), attempt.code)
            for owner in scene.owners
            if owner.number != attacker
            for reference in (references(owner) if via == "zmq" or SOAK else references(owner)[:1])
            for op, attempt in (ATTEMPTS | {"unsubscribe": OTHERS["unsubscribe"]}).items()
        ]

    result = scene.all_do(lambda n: ["wire", via, [each for _, each, _ in attacks(n)]])
    wrong = []
    for attacker in range(USERS):
        for (owner, sent, code), messages in zip(attacks(attacker), result[attacker], strict=True):
            if code not in status(messages):
                wrong.append((attacker, sent, messages))
            scene.unheard(json.dumps(messages), owner, json.dumps(sent))
    assert not wrong, (len(wrong), wrong[:3])
    assert scene.state() == scene.before


@pytest.mark.parametrize("via", INTERFACES)
def test_what_is_about_the_broker_tells_nothing_of_anothers(scene: TenUsersScene, via: str) -> None:
    def asks(number: int) -> list[dict[str, Any]]:
        victim = scene.owners[(number + 1) % USERS]
        return [request(op, attempt, victim, references(victim)[1], scene) for op, attempt in OTHERS.items()]

    result = scene.all_do(lambda n: ["wire", via, asks(n)])
    for number in range(USERS):
        for sent, messages in zip(asks(number), result[number], strict=True):
            if code := OTHERS[sent["op"]].code:
                assert code in status(messages), (sent, messages)
            for owner in scene.owners:
                if owner.number != number:
                    scene.unheard(json.dumps(messages), owner, json.dumps(sent))
    assert scene.state() == scene.before


def test_anothers_id_as_a_name_is_a_name_of_ones_own(scene: TenUsersScene) -> None:
    victim = scene.owners[1]
    at = {"session": victim.session}
    asks = [
        {"op": "new-session", "name": victim.session},
        {"op": "eval", "code": "secret", **at},
        {"op": "close", **at},
    ]
    opened, ran, closed = scene.do(u0=["wire", "zmq", asks, 1])[0]
    assert opened[-1].get("session", victim.session) != victim.session, opened
    assert [message["ex"]["type"] for message in ran if "ex" in message] == ["NameError"]
    assert status(closed) == ["done", "session-closed"]
    assert scene.state() == scene.before


SOME = range(USERS if SOAK else 1)  # who try what takes a second of a processor each


def victim_of(scene: TenUsersScene, number: int) -> tuple[SessionOwner, str]:
    """Return the victim of a user, and the name by which the session is addressed; users take turns."""
    victim = scene.owners[(number + 1) % USERS]
    return victim, references(victim)[number % 2]


def test_the_python_client_gets_at_nothing_of_anothers(scene: TenUsersScene) -> None:
    def calls(number: int) -> list[list[Any]]:
        return methods(victim_of(scene, number)[1], scene.owners[number].identity)

    result = scene.all_do(lambda n: ["client", calls(n)])
    for number in range(USERS):
        for call, text in zip(calls(number), result[number], strict=True):
            assert text.startswith(NOT_FOUND), (call, text)
            scene.unheard(text, victim_of(scene, number)[0], repr(call))
    assert scene.state() == scene.before


def test_the_command_line_gets_at_nothing_of_anothers(scene: TenUsersScene) -> None:
    listings = [["ls"], ["ls", "--json"], ["status", "--json"]]

    def build_requests(number: int) -> list[list[str]]:
        return commands(victim_of(scene, number)[1], scene.owners[number].identity)

    result = scene.all_do(lambda n: ["cli", [*build_requests(n), *listings]])
    for number in range(USERS):
        for command, (code, text) in zip([*build_requests(number), *listings], result[number], strict=True):
            assert (code == 0) == (command[0] in ("ls", "status")), (command, code, text)
            for owner in scene.owners:
                if owner.number != number:
                    scene.unheard(text, owner, repr(command))
    assert scene.state() == scene.before


@pytest.mark.parametrize("how", ["stdio", "http"])
def test_an_agents_tools_get_at_nothing_of_anothers(scene: TenUsersScene, how: str) -> None:
    def build_requests(number: int) -> tuple[list[list[Any]], list[str]]:
        victim, reference = victim_of(scene, number)
        parts = ("variables", "transcript", "info")
        uris = [
            f"repl://sessions/{name}/{part}"
            for name in (victim.session, reference.replace("/", "%2F"))
            for part in parts
        ]
        return tools(reference, scene.file), ["repl://sessions", *uris]

    result = scene.do(**{f"u{number}": ["mcp", how, *build_requests(number)] for number in SOME})
    for number in SOME:
        sent = repr(build_requests(number))
        assert len(result[number]) == len(build_requests(number)[0]) + 1 + len(build_requests(number)[1])
        for text in result[number]:
            for owner in scene.owners:
                if owner.number != number:
                    scene.unheard(text, owner, sent)
    assert scene.state() == scene.before


def test_an_editor_gets_at_nothing_of_anothers(scene: TenUsersScene) -> None:
    def build_requests(number: int) -> list[list[Any]]:
        return json.loads(json.dumps(turns(victim_of(scene, number)[1])).replace("HOME", str(scene.place)))

    result = scene.do(**{f"u{number}": ["acp", build_requests(number)] for number in SOME})
    for number in SOME:
        assert len(result[number]) == len(build_requests(number))
        for text in result[number]:
            for owner in scene.owners:
                if owner.number != number:
                    scene.unheard(text, owner, repr(build_requests(number)))
    assert scene.state() == scene.before


def test_what_is_shared_is_seen_by_whom_it_is_shared_with(scene: TenUsersScene) -> None:
    giver, taker, stranger = scene.owners[2:5]
    mine = {"session": giver.session}
    scene.wire(2, {"op": "share", **mine, "who": taker.identity, "level": "read"})
    try:
        for reference in references(giver)[:2]:
            asks = [{"op": op, "session": reference} for op in ("info", "history")]
            for messages in scene.wire(3, *asks):
                assert "error" not in status(messages), messages
                assert giver.secret in json.dumps(messages) or messages[-1].get("info"), messages
            assert {NOT_FOUND} < set(status(scene.wire(4, asks[0])[0]))
        seen = [
            [entry["session"] for entry in scene.wire(number, {"op": "ls-sessions"})[0][-1]["sessions"]]
            for number in (3, 4)
        ]
        assert [giver.session in each for each in seen] == [True, False]
        refused = scene.wire(
            3, {"op": "eval", **mine, "code": "1"}, {"op": "reset", **mine}, {"op": "stdin", **mine, "input": "x"}
        )
        assert [status(messages)[-1] for messages in refused] == ["forbidden"] * 3
        assert stranger.identity not in json.dumps(seen)
    finally:
        scene.wire(2, {"op": "share", **mine, "who": taker.identity, "level": "none"})
    assert scene.state() == scene.before


@pytest.mark.parametrize("via", INTERFACES)
def test_the_owner_does_by_each_operation_what_others_cannot(scene: TenUsersScene, via: str) -> None:
    """In a session that is like the others, but for what runs in it."""
    owner = scene.owners[7]
    name = f"own-{via}"
    owns = [op for op in ATTEMPTS if ATTEMPTS[op].own and not (scene.is_root and op in FILES)]
    asks = [request(op, ATTEMPTS[op], owner, name, scene) for op in owns]
    first = {"op": "eval", "session": name, "if-missing": "create", "code": f"secret = '{owner.secret}'\nprint(secret)"}
    result = scene.do(u7=["wire", via, [first, *asks], 1])[7]
    scene.wire(7, *({"op": "close", "session": copied} for copied in ("copy", "copy-2", "branch")))
    for sent, messages in zip([first, *asks], result, strict=True):
        assert "error" not in status(messages), (sent, messages)
    results = {
        sent["op"] for sent, messages in zip(asks, result[1:], strict=True) if owner.secret in json.dumps(messages)
    }
    assert results >= {"eval", "read", "history", "info"}


def test_the_owner_hears_of_a_session_through_every_interface(scene: TenUsersScene) -> None:
    owner = scene.owners[8]
    name = "mine"
    scene.wire(
        8, {"op": "eval", "session": name, "if-missing": "create", "code": f"secret = '{owner.secret}'\nprint(secret)"}
    )
    ends = {
        "close",
        "reset",
        "clone",
        "transfer",
        "allow-hosts",
        "allow_hosts",
        "share",
        "set_mode",
        "mode",
        "clear",
        "tail",
        "export",
        "stdin",
    }
    called = scene.do(
        u8=[
            "client",
            [each for each in methods(name, "*") if each[0] not in (*ends, "packages", "deactivate")],
        ]
    )[8]
    printed = scene.do(u8=["cli", [each for each in commands(name, "*") if each[0] not in ends]])[8]
    assert [code for code, _ in printed] == [0] * len(printed), printed
    harmless = [
        each
        for each in tools(name, scene.file)
        if each[0] in ("info", "read", "sessions") and "to" not in each[1] and each[1].get("action") != "close"
    ]
    uris = ["repl://sessions", f"repl://sessions/{name}/variables"]
    results = [scene.do(u8=["mcp", how, harmless, uris])[8] for how in ("stdio", "http")]
    spoken = scene.do(u8=["acp", json.loads(json.dumps(turns(name)).replace("HOME", str(scene.place)))[:6]])[8]
    for texts in (called, [text for _, text in printed], *results, spoken):
        assert owner.secret in " ".join(texts), texts
    for texts in results:
        assert name in texts[-2], texts
    scene.wire(8, {"op": "close", "session": name})


def test_what_runs_goes_on_and_ends_as_its_owner_says(scene: TenUsersScene) -> None:
    """The last one: the evals that waited for their owners through all of this, and those behind them."""

    def input_(number: int) -> list[Any]:
        return ["wire", "zmq", [{"op": "stdin", "session": scene.owners[number].session, "input": f"of {number}\n"}]]

    assert all(status(messages) == ["done"] for result in scene.all_do(input_).values() for messages in result)
    read = {"op": "read", "wait-ms": 10_000}
    result = scene.all_do(
        lambda n: [
            "wire",
            "zmq",
            [read | {"session": scene.owners[n].session, "eval-id": eval_id} for eval_id in (2, 3)],
        ]
    )
    values = {number: [value(messages) for messages in result[number]] for number in range(USERS)}
    assert values == {number: [f"'of {number}'"] * 2 for number in range(USERS)}
    given = {"op": "transfer", "session": scene.owners[9].session, "who": scene.owners[8].identity}
    assert [status(scene.wire(number, given)[0]) for number in (9, 8)] == [["done"], ["done"]]
    assert NOT_FOUND in status(scene.wire(9, {"op": "info", "session": scene.owners[9].session})[0])
    assert status(scene.wire(8, {"op": "close-session", "name": scene.owners[9].session})[0]) == [
        "done",
        "session-closed",
    ]

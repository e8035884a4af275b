"""docs/protocol.md has all that an answer carries, and a client finds the next broker where one has just ended."""

from __future__ import annotations

import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from kit import CollectedReplies
from replctl import Client
from replwire.ops import OPS
from replwire.ops.base import OF_ANY_ANSWER

PAGE = (Path(__file__).resolve().parents[2] / "docs/protocol.md").read_text()
ASKED: dict[str, list[dict[str, Any]]] = {
    "eval": [
        {"code": "print(1); 2"},
        {"code": "1/0"},
        {"code": "x = 1", "session": "p", "if_missing": "create"},
        {"code": "while True: pass", "session": "p", "timeout_ms": 50},
        {"code": "class A:\n def __repr__(s): 1/0\nA()"},
        {"code": "import os; os._exit(3)"},
        {"code": "1", "session": "none"},
        {"code": "1", "session": "p", "wait_ms": 0},
        {"code": "print('x' * 2_000_000)"},
    ],
    "read": [{"session": "p", "eval_id": 1}, {"session": "p", "eval_id": 0}, {"session": "p", "eval_id": 99}],
    "load-file": [{"file": "/etc/passwd"}],
    "put-file": [{"session": "p", "file": "/dev/zero"}, {"session": "p", "file": "/no/such/place"}],
    "get-file": [{"session": "p", "file": "/etc/passwd"}, {"session": "p", "file": "/dev/zero"}],
    "interrupt": [{"session": "p"}],
    "stdin": [{"session": "p", "input": "a\n"}],
    "jobs": [{"session": "p"}],
    "find-eval": [{"idempotency_key": "k"}],
    "history": [{"session": "p"}],
    "stack": [{"session": "p"}],
    "complete": [{"code": "pri", "pos": 3, "session": "p"}],
    "lookup": [{"symbol": "print", "session": "p"}],
    "ls-bindings": [{"session": "p"}],
    "clear-bindings": [{"session": "p"}],
    "new-session": [{"name": "q"}, {"name": "q"}, {"name": "q", "if_exists": "reuse", "runtime": "node"}],
    "ls-sessions": [{}],
    "ls-environments": [{}],
    "remove-environment": [{"environment": "@none"}],
    "info": [{"session": "p"}],
    "set-mode": [{"session": "p", "to": "normal"}],
    "share": [{"session": "p", "level": "read"}],
    "env": [
        {"session": "p", "action": "show"},
        {"session": "p", "action": "status"},
        {"session": "p", "action": "activate", "path": "/no"},
    ],
    "clone": [{"session": "p", "name": "r"}],
    "save": [{"session": "p"}],
    "get-snapshot": [{"session": "p", "snapshot": "0", "offset": 0}],
    "put-snapshot": [{"data": ""}],
    "reset": [{"session": "q"}],
    "close": [{"session": "q"}, {"session": "r"}],
    "describe": [{}],
    "ping": [{}],
    "stats": [{}],
    "subscribe": [{"session": "none"}],
}


def objects(value: Any) -> set[str]:
    """Keys of the objects in a list."""
    return (
        {key for row in value for key in row}
        if isinstance(value, list) and value and isinstance(value[0], dict)
        else set()
    )


@pytest.fixture(scope="module")
def answers(lines_broker: Any) -> list[tuple[str, CollectedReplies]]:
    with lines_broker.wire() as wire:
        return [(op, wire.ask(op, **fields)) for op, several in ASKED.items() for fields in several]


def test_every_key_of_an_answer_is_one_that_its_operation_returns(answers: list[tuple[str, CollectedReplies]]) -> None:
    wrong = {
        (op, key)
        for op, answer in answers
        for message in answer.messages
        for key in message.keys() - {"id", "status", *OPS[op].returns, *OF_ANY_ANSWER}
    }
    assert not wrong


def test_every_key_within_an_answer_stands_in_the_page(answers: list[tuple[str, CollectedReplies]]) -> None:
    listed = dict(re.findall(r"^\| `([a-z-]+)` \| ((?:`[a-z-]+` ?)+) \| [^|]*\|$", PAGE, re.M))
    wrong = {
        (op, key, inner)
        for op, answer in answers
        for message in answer.messages
        for key, value in message.items()
        for inner in objects(value)
        if key not in ("events",) and f"`{inner}`" not in listed.get(key, "")
    }
    assert not wrong
    section = PAGE[PAGE.index("\n### info\n") : PAGE.index("\n### set-mode\n")]
    reply = next(answer["info"] for op, answer in answers if op == "info")
    assert not [key for key in reply if f"`{key}`" not in section and f'"{key}"' not in section]


def test_where_a_broker_has_just_ended_the_next_one_is_started(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> None:
    """The old socket still accepts a connection, and closes it before any message."""
    directory = tmp_path_factory.mktemp("e")
    monkeypatch.setenv("REPLCTL_STATE_DIR", str(directory))
    run = directory / "run"
    run.mkdir(mode=0o700)
    directory.chmod(0o700)
    path = run / "broker.sock"
    (directory / "config.toml").write_text('[sandbox]\nallow-unsandboxed = true\nprofile = "off"\n')
    monkeypatch.setenv("REPLCTL_CONFIG", str(directory / "config.toml"))
    ending = socket.socket(socket.AF_UNIX)
    ending.bind(str(path))
    ending.listen()

    def end() -> None:
        for _ in range(2):  # the look whether somebody listens, and the connection
            ending.accept()[0].close()
        os.unlink(path)
        ending.close()

    thread = threading.Thread(target=end)
    thread.start()
    with Client() as client:
        assert client.eval("6*7", ephemeral=True).value == "42"
        client.shutdown()
        client.wait_for_shutdown(20)
    thread.join(20)


def test_an_mcp_server_that_may_start_no_broker_does_not(tmp_path: Path) -> None:
    import subprocess
    import sys

    environ = {**os.environ, "REPLCTL_STATE_DIR": str(tmp_path)}
    code = """
import asyncio
from replctl.mcp import server
from replctl.tools.base import ToolSettings
from replctl.tools.catalog import ToolSet
from click.testing import CliRunner
made = []
server.build_server = lambda *args, **options: made.append(options) or (_ for _ in ()).throw(SystemExit(0))
from replctl.commands.mcp import mcp
CliRunner().invoke(mcp, ["--no-start"])
print(made)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout == "[{'start': False}]\n", ended

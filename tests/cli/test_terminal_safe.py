"""Terminal safety: no command prints control sequences that others wrote."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from replctl.main import COMMANDS
from replwire.ops import OPS
from replwire.replies import Reply
from replwire.terminal import escape_control, escape_json, escape_lines
from stub_broker import TIMEOUT_S, Script, StubBroker, command_environment

# Erase the screen, write into the clipboard, C1's CSI, DEL, an override and an isolate, separators, a forged row.
NASTY = "a\x1b[2J\x1b]52;c;cm0gLXJm\x07\x9b31m\x7f\u202e\u2066\u2028\u2029\x00\r\nforged: row\x85"
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# What each command is run with. A command that is not here fails the test: add it.
ARGUMENTS: dict[str, list[list[str]]] = {
    "eval": [["1"]],
    "run": [["/dev/null", "a"]],
    "read": [["s", "1"], ["s", "0", "--grep", NASTY.replace("\0", "")]],
    "interrupt": [["s"]],
    "hibernate": [["s"]],
    "stdin": [["s", "text"]],
    "attach": [["s"]],
    "new": [[], ["s"]],
    "ls": [[], ["-q"]],
    "info": [["s"]],
    "jobs": [["s"], []],
    "vars": [["s"]],
    "history": [["s"], ["s", "--search", "a"]],
    "tail": [["s"], []],
    "top": [["--once"]],
    "export": [["s", "--format", kind] for kind in ("ipynb", "py", "md", "jsonl")],
    "transcripts": [["ls"], ["rm", "s"]],
    "logs": [[]],
    "replay": [["s", "--into", "t"]],
    "complete": [["a"]],
    "lookup": [["a"]],
    "stack": [["s"]],
    "load": [["/file"]],
    "cp": [["/etc/passwd", "s:f"], ["s:f", f"/tmp/rpl-cp-{os.getpid()}"]],
    "env": [["show"], ["activate", "@x"], ["deactivate"], ["pkg", "status"]],
    "allow-hosts": [["a.test", "-s", "s"]],
    "clone": [["s", "t"]],
    "save": [["s", "/proc/self/no"]],
    "checkpoint": [["s"], ["s", "--name", "n"]],
    "checkpoints": [["s"], ["s", "--drop", "1"]],
    "rollback": [["s"], ["s", "1"]],
    "branch": [["s", "t"], ["s", "t", "--at", "1"]],
    "diff": [["s"], ["s", "1"]],
    "mode": [["s", "plan"]],
    "share": [["s", "read"]],
    "transfer": [["s", "--to", "uid:1"]],
    "reset": [["s"]],
    "close": [["s"], ["s", "t"]],
    "status": [[]],
    "acp": [[]],
    "serve": [["--endpoint", "ipc:///proc/no\x1b]52;c;cm0=\x07/b.sock"]],
    "shutdown": [[]],
    "service": [["install", "--dry-run"], ["remove", "--dry-run"]],
    "restart": [[]],
    "mcp": [[]],
    "tools": [[]],
    "install": [["--client", "claude-code", "--print", "--agent", "a"]],
    "keys": [["list"]],
    "audit": [[]],
    "doctor": [[]],
    "extensions": [[]],
    "completion": [["bash"]],
    "config": [["show"], ["show", "--set", "broker.endpoint=\x1b]52;c;x\x07"]],
    "version": [[]],
}
_NO_JSON = {"acp", "mcp", "tools", "install", "completion", "export", "serve"}

# Runs each list of arguments in a process of its own, forked from one that has loaded everything.
DRIVER = """
import importlib, json, os, sys
from replctl.main import COMMANDS, main
for entry in COMMANDS.values():
    importlib.import_module(entry.target.partition(":")[0])
import replctl.mcp.server, replctl.mcp.stdio
for argv in json.load(open(sys.argv[1])):
    os.write(1, f"=== {argv!a}".encode() + bytes([10]))
    if os.fork() == 0:
        try:
            main(argv)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # to take the interpreter apart costs more than the command
    os.wait()
"""


def nasty(kind: Any) -> Any:
    """A value of this type whose every text is NASTY."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return nasty(inner[0])
    if origin in (typing.Union, types.UnionType):
        return nasty(inner[0])
    if origin is list:
        return [nasty(inner[0])]
    if origin is dict or kind is Any:
        return {
            NASTY: NASTY,
            "name": NASTY,
            "cwd": NASTY,
            "variables": [{"name": NASTY, "type": NASTY, "preview": NASTY}],
        }
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {each.encode_name: nasty(hints[each.name]) for each in msgspec.structs.fields(kind)}
    return {str: NASTY, bytes: "AA==", bool: True, int: 1, float: 1.5}[kind]


def fields(op: str) -> dict[str, Any]:
    hints = typing.get_type_hints(Reply, include_extras=True)
    names = [name.replace("-", "_") for name in OPS[op].returns if name not in ("out", "approval", "mime", "event")]
    found = {name.replace("_", "-"): nasty(hints[name]) for name in names}
    return found | {
        "notice": NASTY,
        "name": NASTY,
        "session": NASTY,
        "truncated": False,
        "state": "lost",
        "cause": NASTY,
    }


def well(request: dict[str, Any], say: Callable[..., None]) -> None:
    """Do as asked, and tell it in NASTY."""
    op = request["op"]
    answer = fields(op)
    if op == "eval":  # what the caller's own code prints and returns is its own
        say(**{key: answer[key] for key in ("notice", "name", "session", "cause")}, created=True)
        say(
            status=["done", "error"],
            err=NASTY,
            traceback=NASTY,
            hint=NASTY,
            cause=NASTY,
            state="lost",
            ex={"type": "E", "message": NASTY},
        )
    elif op == "read":
        say(out=NASTY)
        say(err=NASTY)
        say(value=NASTY)
        say(status=["done"], name=NASTY, session=NASTY, **{"eval-id": 1})
    elif op in ("load-file", "env") and "status" not in answer:
        answer = {key: value for key, value in answer.items() if key not in ("err", "value", "status")}
        say(**answer, status=["done"])
    elif op == "subscribe":
        say(status=["subscribed"], events=[], seq=1, session=NASTY, name=NASTY)
        event = {"v": 1, "id": "1", "seq": 1, "time": NASTY, "session": NASTY, "owner": NASTY, "agent": NASTY}
        say(event=event | {"type": "session/created", "name": NASTY, "runtime": NASTY, "cwd": NASTY})
        say(event=event | {"type": f"session/{NASTY}", NASTY: NASTY, "why": NASTY, "status": NASTY})
        say(event=event | {"type": "eval/output", "eval": 1, "reply": {"out": NASTY, "err": NASTY}})
        say(status=["done"])
    elif op == "shutdown":
        say(status=["done", "shutdown-started"], notice=NASTY)
        raise ConnectionAbortedError
    else:
        say(**answer | {"status": ["done"]})


def badly(_: dict[str, Any], say: Callable[..., None]) -> None:
    """Refuse it in NASTY."""
    more = {"entered-at": NASTY, "entered-reason": NASTY, "retry-after-ms": 5}
    say(status=["done", "error", "internal-error"], err=NASTY, hint=NASTY, cause=NASTY, **more)


def prepare(state: Path) -> None:
    """An audit trail, a transcript and a config that others filled."""
    audit = {
        "time": 1.0,
        "latency-ms": 1,
        "client": NASTY,
        "identity": NASTY,
        "agent": NASTY,
        "op": NASTY,
        "session": NASTY,
    }
    (state / "audit.ndjson").write_text(json.dumps(audit | {"outcome": NASTY}) + "\n")
    (state / "config.toml").write_text(f"[session]\nload-paths = {json.dumps([f'/{NASTY}'])}\n")
    transcripts = state / "transcripts"
    transcripts.mkdir(mode=0o700)
    head = {
        "v": 1,
        "seq": 0,
        "type": "transcript/header",
        "session": "s",
        "name": "s",
        "runtime": "python",
        "created": "2026-01-01T00:00:00+00:00",
        "time": "2026-01-01T00:00:00+00:00",
    }
    rows = [
        head,
        {
            "v": 1,
            "seq": 1,
            "type": "eval/accepted",
            "eval": 1,
            "session": "s",
            "code": f"a = '''{NASTY}'''",
            "time": NASTY,
        },
        {
            "v": 1,
            "seq": 2,
            "type": "eval/finished",
            "eval": 1,
            "session": "s",
            "status": "error",
            "error": NASTY,
            "out": NASTY,
            "err": NASTY,
            "value": NASTY,
            "traceback": NASTY,
        },
    ]
    (transcripts / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def at_a_terminal(runs: list[list[str]], state: Path) -> str:
    """All that these commands write, one after the other, to a terminal that is stdout and stderr."""
    (state / "runs.json").write_text(json.dumps(runs))
    leader, terminal = pty.openpty()
    got: list[bytes] = []

    def listen() -> None:
        try:
            while chunk := os.read(leader, 65536):
                got.append(chunk)
        except OSError:  # all of them have closed it
            pass

    environ = command_environment(state, TERM="dumb", REPLCTL_CONFIG=str(state / "config.toml"))
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(state / "runs.json")],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=environ,
        start_new_session=True,
    )
    os.close(terminal)
    listener = threading.Thread(target=listen)
    listener.start()
    try:
        code = process.wait(4 * TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)
        raise AssertionError(b"".join(got)[-2000:]) from None
    finally:
        listener.join(TIMEOUT_S)
    assert code == 0
    os.close(leader)
    return b"".join(got).decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(("script", "as_json"), [(well, False), (well, True), (badly, False)])
def test_no_command_writes_control_characters_of_others(
    script: Script, as_json: bool, short: Path, stub: Callable[[Script], StubBroker]
) -> None:
    prepare(short)
    broker = stub(script)
    runs = []
    for name in sorted(COMMANDS, key="shutdown".__eq__):  # after it there is no broker
        for arguments in ARGUMENTS[name]:
            takes_endpoint = name not in (
                "audit",
                "completion",
                "config",
                "export",
                "install",
                "keys",
                "serve",
                "tools",
            )
            more = ["--endpoint", broker.endpoint] if takes_endpoint else []
            if as_json and name not in _NO_JSON:
                more.append("--json")
            group = arguments[:1] if name in ("env", "keys", "config") else []
            runs.append([name, *group, *more, *arguments[len(group) :]])
    written = at_a_terminal(runs, short)
    wrong = {
        part.splitlines()[0]: repr(found[0]) + " in " + ascii(part[max(0, found.start() - 100) : found.end() + 60])
        for part in written.replace("\r\n", "\n").split("=== ")[1:]
        if (found := FORBIDDEN.search(part)) is not None
    }
    assert not wrong, "\n".join(f"{command}: {what}" for command, what in wrong.items())
    parts = written.count("=== ")
    assert parts == len(runs)
    if (
        not as_json
    ):  # a row that pretends to be ours stands alone nowhere: code, output and texts of several lines apart
        assert "\\x1b]52;c;" in written


def test_what_the_callers_own_code_prints_and_returns_is_as_it_is(
    short: Path, stub: Callable[[Script], StubBroker]
) -> None:
    def script(_: dict[str, Any], say: Callable[..., None]) -> None:
        say(out="\x1b[1mbold\x1b[0m\n")
        say(value="\x1b[31mred")
        say(status=["done"], state="kept", session="u", name="s", **{"eval-id": 1, "epoch": 1})

    endpoint = stub(script).endpoint
    written = at_a_terminal(
        [["eval", "1", "--endpoint", endpoint], ["read", "s", "1", "--raw", "--endpoint", endpoint]], short
    )
    assert written.count("\x1b[1mbold\x1b[0m") == written.count("\x1b[31mred") == 2


def test_read_gives_a_pipe_what_was_printed(short: Path, stub: Callable[[Script], StubBroker]) -> None:
    command = [sys.executable, "-m", "replctl", "read", "s", "1", "--endpoint", stub(well).endpoint]
    ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, env=command_environment(short), check=True)
    assert ended.stdout.decode() == f"{NASTY}\n{NASTY}\n"


def test_escapes_mean_the_same_and_are_visible() -> None:
    assert escape_control("a\tb\n\x1b\x9b\u202e\ud800é☃") == "a\\tb\\n\\x1b\\x9b\\u202e\\ud800é☃"
    assert escape_control("a\tb", keep="\t") == "a\tb"
    assert escape_lines("a\r\nb\tc\rd", "  ") == "a\n  b\tc\\rd"
    text = json.dumps([NASTY, "\U000e0001 \U0001f600"], ensure_ascii=False)
    assert FORBIDDEN.search(escape_json(text)) is None
    assert json.loads(escape_json(text)) == json.loads(text)


def test_only_one_file_of_the_command_line_writes_to_a_terminal() -> None:
    """A command that prints by itself would forget what `Screen` does."""
    ours = re.compile(r"\bprint\(|click\.echo\(|sys\.(__)?std(out|err)(__)?\.write|os\.write\([12],")
    root = Path(__file__).resolve().parents[2] / "cli/replctl"
    found = {
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if ours.search(line)
    }
    allowed = {  # texts of their own: no word of them comes from elsewhere, but for what is escaped in place
        "acp/client_connection.py": 0,
        "commands/attach_magics.py": 1,
        "commands/completion.py": 1,
        "commands/mcp.py": 2,
        "mcp/http.py": 1,
        "extensions.py": 1,
        "top/attach.py": 1,
        "tools/__init__.py": 1,
    }
    counted = {
        name: sum(line.startswith(f"{name}: ") for line in found) for name in {line.split(": ")[0] for line in found}
    }
    assert counted == {name: count for name, count in allowed.items() if count}, found

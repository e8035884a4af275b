"""nexo's single `Repl` tool: spawn, exec, read, kill, list, with its JSON shapes."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

import msgspec

from replctl.client import talk
from replctl.client.calls import milliseconds
from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.client.sync import PATIENCE
from replctl.tools.base import Answer, Ask, Context, Steps, Tool, request
from replctl.tools.running import eval_fields, ran
from replctl.tools.text import clean
from replwire.faults import Exit

ACTIONS = ("spawn", "exec", "read", "kill", "list")
RUNTIMES = ("python", "node", "bash")
TIMEOUT_SECONDS = 30.0  # an exec that takes longer answers `timed_out`, and runs on
MAX_OUTPUT = 65_536  # characters of one stream in one answer; the oldest go
MAX_CURSORS = 1_000  # sessions whose place is remembered
_CODE = re.compile(r"exited with code (\d+)")
_SIGNAL = re.compile(r"\(signal (\d+)\)")


class Repl(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `Repl`."""

    action: Literal["spawn", "exec", "read", "kill", "list"]
    session_id: str | None = None
    runtime: Literal["python", "node", "bash"] | None = None
    code: str | None = None
    cwd: str | None = None


class Cursor(NamedTuple):
    """Where a session was read to."""

    eval_id: int
    offset: int


def repl(a: Repl, at: Context) -> Steps:
    """One action."""
    missing = {
        "spawn": [] if a.runtime else ["runtime"],
        "exec": [name for name in ("session_id", "code") if getattr(a, name) is None],
        "read": [] if a.session_id else ["session_id"],
        "kill": [] if a.session_id else ["session_id"],
        "list": [],
    }[a.action]
    if missing:
        return _told({"error": f"'{missing[0]}' required for {a.action}"}, error=True)
    try:
        return (yield from _ACTIONS[a.action](a, at))
    except ReplError as error:
        why = {
            "session-not-found": f"session not found: {a.session_id}",
            "session-limit-reached": f"session limit reached ({error.err}) — kill an existing session first",
            "runtime-not-allowed": f"runtime '{a.runtime}' not in allowed list: {list(RUNTIMES)}",
        }
        return _told({"error": why.get(error.word, f"{error.word}: {error.err}")}, error=True)


def _spawn(a: Repl, at: Context) -> Steps:
    reply = yield from request("new-session", runtime=a.runtime, **at.settings.folder(a.cwd))
    return _told(
        {
            "session_id": reply["session"],
            "runtime": a.runtime,
            "message": f"{a.runtime} session {reply['session']} started",
        }
    )


def _exec(a: Repl, at: Context) -> Steps:
    assert a.code is not None
    assert a.session_id is not None
    fields = eval_fields(at.settings, a.code, a.session_id, if_missing=None, cwd=None, mime=None, allow_stdin=None)
    result, asking = yield from ran("eval", fields, TIMEOUT_SECONDS)
    if asking is not None:
        result.eval_id = asking.eval_id
    return _result(a, at, result, running=result.running or asking is not None, begin=0)


def _read(a: Repl, at: Context) -> Steps:
    assert a.session_id is not None
    cursor: Cursor | None = at.memory.get(a.session_id)
    if cursor is None:  # nothing was run, or it has ended and all of it was told
        yield from request("jobs", session=a.session_id)
        return _told(_output("", ""))
    got = yield Ask(
        "read",
        {"session": a.session_id, "eval_id": cursor.eval_id, "offset": cursor.offset, "wait_ms": milliseconds(0)},
        PATIENCE,
    )
    result = talk.result(got.gathering)
    return _result(a, at, result, running=result.running, begin=cursor.offset)


def _kill(a: Repl, at: Context) -> Steps:
    at.memory.pop(a.session_id or "", None)
    yield from request("close", session=a.session_id)
    return _told({"message": f"session {a.session_id} terminated"})


def _list(a: Repl, at: Context) -> Steps:  # noqa: ARG001
    entries = (yield from request("ls-sessions")).get("sessions") or []
    listed = [
        {
            "session_id": each["session"],
            "runtime": each["runtime"],
            "cwd": each["cwd"],
            "spawned_at": each["created"],
            "output_len": cursor.offset if (cursor := at.memory.get(each["session"])) else 0,
            "exit_code": None,
        }
        for each in entries
    ]
    return _told({"sessions": listed, "count": len(listed)})


_ACTIONS = {"spawn": _spawn, "exec": _exec, "read": _read, "kill": _kill, "list": _list}


def _result(a: Repl, at: Context, result: Result, running: bool, begin: int) -> Answer:
    """New output, the value as its last line, and where the next read goes on."""
    assert a.session_id is not None
    at.memory.pop(a.session_id, None)
    if running and result.eval_id is not None:
        told = len(result.out.encode()) + len(result.err.encode()) + (result.dropped_bytes or 0)
        at.memory[a.session_id] = Cursor(result.eval_id, result.offset or begin + told)
        while len(at.memory) > MAX_CURSORS:
            at.memory.pop(next(iter(at.memory)))
    err = result.err
    if result.traceback or (result.error and not running):
        err += result.traceback or f"{result.error}\n"
    if result.state == "lost" and result.cause and result.cause not in err:
        err += f"state lost: {result.cause}\n"
    err += f"{result.exit_status}\n" if result.exit_status else ""
    out = result.out + (f"{result.shown}\n" if result.shown else "")
    return _told(_output(out, err, running, _exit_code(result)))


def _output(out: str, err: str, timed_out: bool = False, exit_code: int | None = None) -> dict[str, Any]:
    return {
        "stdout": clean(out).text[-MAX_OUTPUT:],
        "stderr": clean(err).text[-MAX_OUTPUT:],
        "timed_out": timed_out,
        "exit_code": exit_code,
    }


def _exit_code(result: Result) -> int | None:
    """The interpreter's own, when it has ended: a code, or minus the signal that killed it."""
    if result.exit is not Exit.WORKER_LOST:
        return None
    if match := _CODE.search(result.cause or ""):
        return int(match[1])
    match = _SIGNAL.search(result.cause or "")
    return -int(match[1]) if match else -1


def _told(facts: dict[str, Any], error: bool = False) -> Answer:
    return Answer(text=json.dumps(facts, ensure_ascii=False), facts=facts, error=error)


TOOLS = (
    Tool(
        name="Repl",
        title="REPL",
        args=Repl,
        run=repl,
        open_world=True,
        runs_code=True,
        output={"type": "object"},
        text="Stateful REPL: spawn a python, node or bash session, exec code in it, read its output, kill it, list "
        "all. Variables stay between calls. An exec over 30 s answers timed_out and runs on: read it later.",
    ),
)

INSTRUCTIONS = ""

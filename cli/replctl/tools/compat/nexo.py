"""nexo's single `NexoArgs` tool: spawn, exec, read, kill, list, with its JSON shapes."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

import msgspec

from replctl.client import protocol
from replctl.client.errors import ReplError
from replctl.client.flows import DEFAULT_TIMEOUT
from replctl.client.request_fields import milliseconds
from replctl.client.result import Result
from replctl.tools.base import ToolCall, ToolContext, ToolDefinition, ToolRequest, ToolResult, request
from replctl.tools.steps import model_eval_fields, run_code
from replctl.tools.text_budget import clean
from replwire.faults import ExitCode

ACTIONS = ("spawn", "exec", "read", "kill", "list")
RUNTIMES = ("python", "node", "bash")
TIMEOUT_SECONDS = 30.0  # a longer exec returns `timed_out` and keeps running
MAX_OUTPUT = 65_536  # characters of one stream in one result; the oldest are dropped
MAX_CURSORS = 1_000  # sessions with a remembered read position
_CODE = re.compile(r"exited with code (\d+)")
_SIGNAL = re.compile(r"\(signal (\d+)\)")


class NexoArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `NexoArgs`."""

    action: Literal["spawn", "exec", "read", "kill", "list"]
    session_id: str | None = None
    runtime: Literal["python", "node", "bash"] | None = None
    code: str | None = None
    cwd: str | None = None


class NexoCursor(NamedTuple):
    """Read position in a session."""

    eval_id: int
    offset: int


def repl(a: NexoArgs, at: ToolContext) -> ToolCall:
    """Run one action."""
    missing = {
        "spawn": [] if a.runtime else ["runtime"],
        "exec": [name for name in ("session_id", "code") if getattr(a, name) is None],
        "read": [] if a.session_id else ["session_id"],
        "kill": [] if a.session_id else ["session_id"],
        "list": [],
    }[a.action]
    if missing:
        return _json_result({"error": f"'{missing[0]}' required for {a.action}"}, error=True)
    try:
        return (yield from _ACTIONS[a.action](a, at))
    except ReplError as error:
        why = {
            "session-not-found": f"session not found: {a.session_id}",
            "session-limit-reached": f"session limit reached ({error.message}) — kill an existing session first",
            "runtime-not-allowed": f"runtime '{a.runtime}' not in allowed list: {list(RUNTIMES)}",
        }
        return _json_result({"error": why.get(error.code, f"{error.code}: {error.message}")}, error=True)


def _spawn(a: NexoArgs, at: ToolContext) -> ToolCall:
    reply = yield from request("new-session", runtime=a.runtime, **at.settings.directory_fields(a.cwd))
    return _json_result(
        {
            "session_id": reply["session"],
            "runtime": a.runtime,
            "message": f"{a.runtime} session {reply['session']} started",
        }
    )


def _exec(a: NexoArgs, at: ToolContext) -> ToolCall:
    assert a.code is not None
    assert a.session_id is not None
    fields = model_eval_fields(
        at.settings, a.code, a.session_id, if_missing=None, cwd=None, mime=None, allow_stdin=None
    )
    result, asking = yield from run_code("eval", fields, TIMEOUT_SECONDS)
    if asking is not None:
        result.eval_id = asking.eval_id
    return _eval_result(a, at, result, running=result.running or asking is not None, begin=0)


def _read(a: NexoArgs, at: ToolContext) -> ToolCall:
    assert a.session_id is not None
    cursor: NexoCursor | None = at.memory.get(a.session_id)
    if cursor is None:  # nothing was run, or everything has been read
        yield from request("jobs", session=a.session_id)
        return _json_result(_output("", ""))
    got = yield ToolRequest(
        "read",
        {"session": a.session_id, "eval_id": cursor.eval_id, "offset": cursor.offset, "wait_ms": milliseconds(0)},
        DEFAULT_TIMEOUT,
    )
    result = protocol.eval_result(got.pending)
    return _eval_result(a, at, result, running=result.running, begin=cursor.offset)


def _kill(a: NexoArgs, at: ToolContext) -> ToolCall:
    at.memory.pop(a.session_id or "", None)
    yield from request("close", session=a.session_id)
    return _json_result({"message": f"session {a.session_id} terminated"})


def _list(a: NexoArgs, at: ToolContext) -> ToolCall:  # noqa: ARG001
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
    return _json_result({"sessions": listed, "count": len(listed)})


_ACTIONS = {"spawn": _spawn, "exec": _exec, "read": _read, "kill": _kill, "list": _list}


def _eval_result(a: NexoArgs, at: ToolContext, result: Result, running: bool, begin: int) -> ToolResult:
    """Build the result: new output, the value as its last line, and the position of the next read."""
    assert a.session_id is not None
    at.memory.pop(a.session_id, None)
    if running and result.eval_id is not None:
        told = len(result.out.encode()) + len(result.err.encode()) + (result.dropped_bytes or 0)
        at.memory[a.session_id] = NexoCursor(result.eval_id, result.offset or begin + told)
        while len(at.memory) > MAX_CURSORS:
            at.memory.pop(next(iter(at.memory)))
    err = result.err
    if result.traceback or (result.error and not running):
        err += result.traceback or f"{result.error}\n"
    if result.state == "lost" and result.cause and result.cause not in err:
        err += f"state lost: {result.cause}\n"
    err += f"{result.exit_status}\n" if result.exit_status else ""
    out = result.out + (f"{result.display_value}\n" if result.display_value else "")
    return _json_result(_output(out, err, running, _exit_code(result)))


def _output(out: str, err: str, timed_out: bool = False, exit_code: int | None = None) -> dict[str, Any]:
    return {
        "stdout": clean(out).text[-MAX_OUTPUT:],
        "stderr": clean(err).text[-MAX_OUTPUT:],
        "timed_out": timed_out,
        "exit_code": exit_code,
    }


def _exit_code(result: Result) -> int | None:
    """Return the interpreter's exit code if it has exited, or minus the signal that killed it."""
    if result.exit is not ExitCode.WORKER_LOST:
        return None
    if match := _CODE.search(result.cause or ""):
        return int(match[1])
    match = _SIGNAL.search(result.cause or "")
    return -int(match[1]) if match else -1


def _json_result(facts: dict[str, Any], error: bool = False) -> ToolResult:
    return ToolResult(text=json.dumps(facts, ensure_ascii=False), structured=facts, error=error)


TOOLS = (
    ToolDefinition(
        name="Repl",
        title="REPL",
        args=NexoArgs,
        run=repl,
        open_world=True,
        runs_code=True,
        output={"type": "object"},
        text="Stateful REPL: spawn a python, node or bash session, exec code in it, read its output, kill it, list "
        "all. Variables stay between calls. An exec over 30 s answers timed_out and runs on: read it later.",
    ),
)

INSTRUCTIONS = ""

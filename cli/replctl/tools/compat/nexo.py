"""nexo's single `NexoArgs` tool: spawn, exec, read, kill, list, with its JSON shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, Literal

import msgspec

from replctl.client import protocol
from replctl.client.errors import ReplError
from replctl.client.flows import DEFAULT_TIMEOUT
from replctl.client.request_fields import milliseconds
from replctl.client.result import Result
from replctl.tools.base import ToolCall, ToolContext, ToolDefinition, ToolRequest, ToolResponse, ToolResult, request
from replctl.tools.steps import model_eval_fields, run_code
from replctl.tools.text_budget import clean
from replwire.faults import ExitCode
from replwire.replies import TRUNCATED

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


class NexoCursor(msgspec.Struct):
    """An eval whose output has not been returned whole, and the byte to go on from."""

    eval_id: int
    offset: int


class NexoSession(msgspec.Struct):
    """Memory of a session.

    Attributes:
        unread: Its evals with output that has not been returned, oldest first.
        background: Byte from which to read what was printed between evals.
        output_len: Characters returned so far.
    """

    unread: list[NexoCursor] = []
    background: int = 0
    output_len: int = 0


class NexoOutput(msgspec.Struct):
    """New output, and how the last eval in it ended."""

    out: str = ""
    err: str = ""
    timed_out: bool = False
    exit_code: int | None = None


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
            "session-limit-reached": f"session limit reached ({error.message})",
            "runtime-not-allowed": f"runtime '{a.runtime}' not allowed: {error.message}",
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
    memory = _recall(at, a.session_id)
    # The code gets no input: waiting for some, it would keep the session from everything else.
    fields = model_eval_fields(
        at.settings, a.code, a.session_id, if_missing=None, cwd=None, mime=None, allow_stdin=False
    )
    result, _ = yield from run_code("eval", fields, TIMEOUT_SECONDS)
    earlier = yield from _drain(a.session_id, memory)
    if result.out.endswith(TRUNCATED) and not result.running:
        yield from _fetch_newest(a.session_id, result)
    if result.running and result.eval_id is not None:
        memory.unread.append(NexoCursor(result.eval_id, result.offset or 0))
    return _build_result(memory, _combine(earlier, result))


def _read(a: NexoArgs, at: ToolContext) -> ToolCall:
    assert a.session_id is not None
    memory = _recall(at, a.session_id)
    output = yield from _drain(a.session_id, memory)
    between = yield from _read_output(a.session_id, 0, memory.background)  # printed by threads and children
    memory.background = between.offset or memory.background
    output.out += between.out
    return _build_result(memory, output)


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
            "output_len": memory.output_len if (memory := at.memory.get(each["session"])) else 0,
            "exit_code": None,
        }
        for each in entries
    ]
    return _json_result({"sessions": listed, "count": len(listed)})


_ACTIONS = {"spawn": _spawn, "exec": _exec, "read": _read, "kill": _kill, "list": _list}


def _recall(at: ToolContext, session: str) -> NexoSession:
    """Return the memory of a session; sessions that were not used for the longest time are forgotten."""
    memory: NexoSession = at.memory.pop(session, None) or NexoSession()
    at.memory[session] = memory
    while len(at.memory) > MAX_CURSORS:
        at.memory.pop(next(iter(at.memory)))
    return memory


def _drain(session: str, memory: NexoSession) -> Generator[ToolRequest, ToolResponse, NexoOutput]:
    """Return the new output of all evals that have some, oldest first, and remember those that still run."""
    output = NexoOutput()
    running: list[NexoCursor] = []
    for cursor in memory.unread:
        try:
            result = yield from _read_output(session, cursor.eval_id, cursor.offset)
        except ReplError as error:
            if error.code == "session-not-found":
                raise
            continue  # its output is not kept any more
        output = _combine(output, result)
        if result.running:
            running.append(NexoCursor(cursor.eval_id, result.offset or cursor.offset))
    memory.unread = running
    return output


def _read_output(session: str, eval_id: int, offset: int) -> Generator[ToolRequest, ToolResponse, Result]:
    fields = {"session": session, "eval_id": eval_id, "offset": offset, "wait_ms": milliseconds(0)}
    got = yield ToolRequest("read", fields, DEFAULT_TIMEOUT)
    return protocol.eval_result(got.pending)


def _fetch_newest(session: str, result: Result) -> Generator[ToolRequest, ToolResponse, None]:
    """Replace output that was cut at its source by its newest part: the cap drops the oldest."""
    if result.eval_id is None or result.state == "lost":
        return
    size = len(result.out.encode()) + len(result.err.encode()) + (result.dropped_bytes or 0)
    newest = yield from _read_output(session, result.eval_id, max(0, size - 2 * MAX_OUTPUT))
    result.out, result.err = newest.out, newest.err or result.err


def _combine(before: NexoOutput, result: Result) -> NexoOutput:
    """Return output with that of a result after it: the value as its last line, an error on stderr."""
    err = result.err
    if result.traceback or (result.error and not result.running):
        err += result.traceback or f"{result.error}\n"
    if result.state in ("lost", "rolled-back") and result.cause and result.cause not in err:
        err += f"state {result.state}: {result.cause}\n"
    err += f"{result.exit_status}\n" if result.exit_status else ""
    out = result.out + (f"{result.display_value}\n" if result.display_value else "")
    timed_out = result.running or result.exit is ExitCode.TIMED_OUT
    return NexoOutput(before.out + out, before.err + err, timed_out, _exit_code(result))


def _build_result(memory: NexoSession, output: NexoOutput) -> ToolResult:
    out, err = clean(output.out).text, clean(output.err).text
    memory.output_len += len(out) + len(err)
    return _json_result(
        {
            "stdout": out[-MAX_OUTPUT:],
            "stderr": err[-MAX_OUTPUT:],
            "timed_out": output.timed_out,
            "exit_code": output.exit_code,
        }
    )


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

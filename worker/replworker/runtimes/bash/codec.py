"""Codec between JSON frames and driver.sh's messages, one request at a time.

Bash pulls requests: one is sent only when Bash has reported that it is idle, with the token it gave. An interrupt may
throw Bash back to its prompt at any time. So if it is idle with a reply outstanding, the request is resent if Bash had
not read all of it, and an eval that had begun was interrupted, or ended by `exit` or `set -e`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from replwire.replies import ExceptionInfo
from replworker.runtimes import frames
from replworker.runtimes.bash import result_frames, snapshot
from replworker.runtimes.bash.completion import CompletionQuery, collect_completions, plan_completion
from replworker.runtimes.bash.messages import (
    BashMessage,
    BashMessageReader,
    BashRequest,
    decode_text,
    encode_text,
    parse_number,
)
from replworker.runtimes.bash.result_frames import RequestFrame
from replworker.runtimes.bash.shell_names import ShellNames, describe
from replworker.runtimes.codec import ProtocolError

EXIT_HINT = "`exit` ends the eval, not the session"
ERREXIT_HINT = "`set -e` ended the eval at the first command that failed, not the session"
ERROR_HINT = "an error of the shell ended the eval, not the session"
_END_HINTS = {"exit": EXIT_HINT, "errexit": ERREXIT_HINT}
_BY_SIGINT = 128 + 2
_BIG_NAMES_BYTES = 256 * 1024  # of values; above this, changes are detected by name only
_TRIES = 5  # to resend a request
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_CAN = ["vars", "clear", "complete", "lookup", "dump", "restore"]
# Variables that Bash does not allow to set or the driver needs; and exported functions.
_NOT_SETTABLE = re.compile(
    r"PROMPT_COMMAND|SHELLOPTS|BASHOPTS|BASH_VERSINFO|BASHPID|UID|EUID|PPID|_|BASH_FUNC_.*|__replctl_.*"
)

_decode = msgspec.json.Decoder(RequestFrame).decode


@dataclass(slots=True)
class _PendingRequest:
    """A request frame on its way through Bash."""

    frame: RequestFrame
    request: BashRequest
    preset_reply: frames.FrameEvent | None = None  # the reply, if it does not depend on Bash
    words: CompletionQuery | None = None
    has_begun: bool = False
    before: ShellNames = field(default_factory=ShellNames)  # when it was sent
    is_interrupted: bool = False
    tries: int = 0


class BashCodec:
    """Codec of one Bash process. `read_names` returns bytes of a pipe with names, which precede messages about them."""

    def __init__(self, read_names: Callable[[], bytes] = bytes) -> None:
        self._read_names = read_names
        self._names_reader = BashMessageReader()
        self._reader = BashMessageReader()
        self._queue: deque[_PendingRequest] = deque()
        self._current: _PendingRequest | None = None
        self._token: bytes | None = None  # Bash is waiting with this token
        self._names = ShellNames()
        self._initial = ShellNames()  # names before the session's first eval
        self._options = ("", "")
        self._values = "values"
        self._events: list[frames.FrameEvent] = []

    def encode(self, body: bytes) -> bytes:
        frame = _decode(body)
        if isinstance(frame, frames.InterruptFrame):
            for asking in (self._current, *self._queue):
                if asking is not None and isinstance(asking.frame, frames.EvalFrame) and asking.frame.n == frame.n:
                    asking.is_interrupted = True
            return b""
        self._queue.append(self._build_request(frame))
        return self._send_next()

    def decode(self, data: bytes) -> tuple[list[bytes], bytes]:
        answer = b""
        for message in (*self._names_reader.feed(self._read_names()), *self._reader.feed(data)):
            try:
                self._handle_message(message)
            except (IndexError, TypeError, ValueError) as error:
                raise ProtocolError(f"sent a malformed {message.tag}") from error
            answer += self._send_next()
        events, self._events = self._events, []
        return [frames.encode(event) for event in events], answer

    # --- to bash ---

    def _build_request(self, frame: RequestFrame) -> _PendingRequest:
        if isinstance(frame, frames.EvalFrame):
            return self._build_eval(frame)
        if isinstance(frame, frames.AssignFrame):
            pairs = [f"{name}={value}" for name, value in frame.env.items() if _is_settable(name)]
            return _PendingRequest(
                frame, BashRequest("assign", texts=(encode_text(frame.cwd or ""), *map(encode_text, pairs)))
            )
        if isinstance(frame, frames.CompleteFrame):
            words = plan_completion(frame.code, frame.pos)
            texts = tuple(action.encode() for action, _ in words.asks)
            most = str(min(max(frame.max, 1), 1000))
            return _PendingRequest(frame, BashRequest("complete", most, words.prefix, texts=texts), words=words)
        if isinstance(frame, frames.LookupFrame):
            return _PendingRequest(frame, BashRequest("lookup", name=frame.symbol.removeprefix("$")))
        if isinstance(frame, frames.RestoreFrame):
            if frame.data is None or not frame.data.startswith(snapshot.HEAD) or "\0" in frame.data:
                refused = frames.DumpedFrame(n=frame.n, error="not a snapshot of a bash session")
                return _PendingRequest(frame, BashRequest("ping"), refused)
            return _PendingRequest(frame, BashRequest("restore", code=encode_text(frame.data)))
        return _PendingRequest(
            frame, BashRequest("ping")
        )  # clear and dump: their names are determined when they are sent

    def _build_eval(self, frame: frames.EvalFrame) -> _PendingRequest:
        if "\0" in frame.code:
            ex = ExceptionInfo("SyntaxError", "the code contains a NUL character, which bash does not support")
            failed = frames.ResultFrame(
                n=frame.n, outcome="error", ex=ex, stacktrace=[], traceback=f"{frame.name}: {ex.message}\n"
            )
            return _PendingRequest(frame, BashRequest("ping"), failed)
        return _PendingRequest(frame, BashRequest("eval", str(int(frame.stdin)), frame.name, encode_text(frame.code)))

    def _send_next(self) -> bytes:
        """Send the next request if Bash is waiting for one."""
        if self._token is None:
            return b""
        if self._current is None:
            if not self._queue:
                return b""
            self._current = self._queue.popleft()
        token, self._token = self._token, None
        self._current.before = self._names
        return self._finalize_request(self._current).pack(token)

    def _finalize_request(self, asking: _PendingRequest) -> BashRequest:
        """Return the request as it has to be sent now."""
        frame, request = asking.frame, asking.request
        if isinstance(frame, frames.EvalFrame) and asking.preset_reply is None:
            if asking.is_interrupted:
                asking.preset_reply = result_frames.interrupted(frame.n)
                return BashRequest("ping")
            return request._replace(argument=f"{request.argument},{self._values}")
        if isinstance(frame, frames.ClearFrame | frames.DumpFrame):
            names = self._session_names()
            texts = [b"v" + name.encode() for name in names.variables] + [
                b"f" + encode_text(name) for name in names.functions
            ]
            most = str(max(frame.max, 0)) if isinstance(frame, frames.DumpFrame) else ""
            return BashRequest("dump" if most else "clear", most, texts=tuple(texts))
        return request

    def _session_names(self) -> ShellNames:
        """Return names defined by the session's code, without the initial environment."""
        fresh = self._initial
        mine = {name: how for name, how in self._names.variables.items() if name not in fresh.variables}
        return ShellNames(mine, self._names.functions - fresh.functions)

    # --- from bash ---

    def _handle_message(self, message: BashMessage) -> None:
        tag, fields = message
        if tag == "idle":
            self._on_idle(fields[0], decode_text(fields[1]), parse_number(fields[2]))
        elif tag == "state":
            self._on_state(*fields)
        elif tag == "ready":
            version, executable = decode_text(fields[0]), decode_text(fields[1])
            self._initial = self._names
            self._events.append(frames.ReadyFrame("bash", version, "bash", executable, parse_number(fields[2]), _CAN))
        elif tag == "need":
            if self._current is not None and self._current.has_begun:  # otherwise from an orphaned subshell
                self._events.append(frames.NeedInputFrame(self._current.frame.n))
        elif tag == "begun":
            if (
                self._current is None
                or not isinstance(self._current.frame, frames.EvalFrame)
                or self._current.preset_reply is not None
            ):
                raise ProtocolError("began an eval that was not requested")
            self._current.has_begun = True
        elif tag == "result":
            self._on_result(parse_number(fields[0]))
        elif tag == "syntax":
            self._finish(result_frames.syntax_error(self._running(), decode_text(fields[0])))
        else:
            self._on_answer([decode_text(field) for field in fields])

    def _running(self) -> frames.EvalFrame:
        """Return the running eval.

        Raises:
            ProtocolError: no eval is running
        """
        asking = self._current
        if asking is None or not asking.has_begun or not isinstance(asking.frame, frames.EvalFrame):
            raise ProtocolError("referred to an eval that is not running")
        return asking.frame

    def _on_state(self, variables: bytes, functions: bytes) -> None:
        self._names = ShellNames.parse(decode_text(variables), decode_text(functions), self._names.lines)
        if len(variables) > _BIG_NAMES_BYTES:
            self._values = "names"

    def _finish(self, event: frames.FrameEvent) -> None:
        self._events.append(event)
        self._current = None

    def _on_idle(self, token: bytes, why: str, status: int) -> None:
        self._token = token
        asking = self._current
        if asking is None:
            return
        asking.tries += 1
        if asking.preset_reply is not None:
            self._finish(asking.preset_reply)
        elif asking.has_begun:
            assert isinstance(asking.frame, frames.EvalFrame)
            if asking.is_interrupted or (why == "" and status == _BY_SIGINT):
                self._finish(result_frames.interrupted(asking.frame.n, self._names.changed_since(asking.before)))
            else:
                self._on_result(status, _END_HINTS.get(why, ERROR_HINT))
        elif asking.tries > _TRIES:
            self._finish(result_frames.failure_for(asking.frame))

    def _on_result(self, status: int, hint: str | None = None) -> None:
        frame, asking = self._running(), self._current
        assert asking is not None
        value, kind = (None, None) if frame.silent else (str(status), "status")
        changed = self._names.changed_since(asking.before)
        self._finish(frames.ResultFrame(n=frame.n, outcome="ok", value=value, type=kind, changed=changed, hint=hint))

    def _on_answer(self, fields: list[str]) -> None:
        asking = self._current
        if asking is None or (isinstance(asking.frame, frames.EvalFrame) and asking.preset_reply is None):
            raise ProtocolError("sent an unexpected reply")
        if asking.preset_reply is not None:
            self._finish(asking.preset_reply)
            return
        self._finish(self._build_event(asking, fields))

    def _build_event(self, asking: _PendingRequest, fields: list[str]) -> frames.FrameEvent:
        frame = asking.frame
        if isinstance(frame, frames.AssignFrame):
            self._initial, self._options = self._names, (fields[1], fields[2])
            return frames.AssignedFrame(frame.n, fields[0][: result_frames.MESSAGE_CHARS] or None)
        if isinstance(frame, frames.VarsFrame):
            names = sorted(self._user_variables())
            rows = [describe(name, self._names.variables[name]) for name in names[: min(max(frame.max, 0), 1000)]]
            return frames.VariablesFrame(frame.n, rows, len(names))
        if isinstance(frame, frames.ClearFrame):
            self._values = "values"
            before, now = asking.before, self._names
            cleared = before.variables.keys() - now.variables.keys()
            return frames.ClearedFrame(frame.n, len(cleared) + len(before.functions - now.functions))
        if isinstance(frame, frames.CompleteFrame):
            assert asking.words is not None
            items = collect_completions(asking.words, fields, max(frame.max, 0))
            return frames.CompletionsFrame(frame.n, asking.words.start, items)
        if isinstance(frame, frames.LookupFrame):
            return result_frames.build_found(frame, *fields)
        if isinstance(frame, frames.DumpFrame):
            if fields[0]:
                return frames.DumpedFrame(
                    n=frame.n, error=f"the session's names are {fields[0][:20]} bytes, more than {frame.max}"
                )
            if len(fields) != 1 + snapshot.PARTS:
                raise ProtocolError("sent an incomplete dump")
            return snapshot.build_dump(frame.n, fields[1:], self._options)
        if isinstance(frame, frames.RestoreFrame) and frame.data is not None:
            count, left = snapshot.find_missing(frame.data, self._names)
            return frames.DumpedFrame(n=frame.n, count=count, bytes=len(frame.data.encode()), skipped=left)
        raise ProtocolError("sent an unexpected reply")

    def _user_variables(self) -> list[str]:
        """Return the user's variables: new ones, and environment variables with a changed value."""
        return [name for name in self._names.variables if self._names.differs(name, self._initial)]


def _is_settable(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not _NOT_SETTABLE.fullmatch(name)

"""Speaks JSON frames on one side and driver.sh's messages on the other, one request at a time.

Bash asks for each request: only when it has said that it is idle, and with which token, is one sent. An interrupt may
throw bash back to its prompt at any moment. So when it is idle and owes an answer, the request is sent again if bash
had not read it whole, and an eval that had begun has been interrupted, or was ended by `exit` or `set -e`.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

import msgspec

from replwire.replies import Ex
from replworker.runtimes import frames
from replworker.runtimes.bash import answers, snapshot
from replworker.runtimes.bash.answers import Asked
from replworker.runtimes.bash.messages import Message, Reader, Request, clean, number, text
from replworker.runtimes.bash.names import Names, describe
from replworker.runtimes.bash.words import Wanted, completions, wanted
from replworker.runtimes.codec import ProtocolError

EXIT_HINT = "`exit` ends the eval, not the session"
ERREXIT_HINT = "`set -e` ended the eval at the first command that failed, not the session"
ERROR_HINT = "an error of the shell itself ended the eval there, not the session"
_HINTS = {"exit": EXIT_HINT, "errexit": ERREXIT_HINT}
_BY_SIGINT = 128 + 2
_BIG_NAMES_BYTES = 256 * 1024  # of values: with more, an eval is no longer told apart by values but by names alone
_TRIES = 5  # to send one request anew
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_CAN = ["vars", "clear", "complete", "lookup", "dump", "restore"]
# What bash does not let anybody set, or what the driver needs; and functions in transit.
_NOT_TAKEN = re.compile(
    r"PROMPT_COMMAND|SHELLOPTS|BASHOPTS|BASH_VERSINFO|BASHPID|UID|EUID|PPID|_|BASH_FUNC_.*|__replctl_.*"
)

_decode = msgspec.json.Decoder(Asked).decode


@dataclass(slots=True)
class _Asking:
    """A frame of the worker on its way through bash."""

    frame: Asked
    request: Request
    canned: frames.Event | None = None  # the answer, when bash has nothing to say about it
    words: Wanted | None = None
    begun: bool = False
    before: Names = field(default_factory=Names)  # when it was sent
    interrupted: bool = False
    tries: int = 0


class BashCodec:
    """For one bash, from its start to its end."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._queue: deque[_Asking] = deque()
        self._asked: _Asking | None = None
        self._token: bytes | None = None  # bash waits, with this
        self._names = Names()
        self._fresh = Names()  # those that a session has before its first eval
        self._options = ("", "")
        self._values = "values"
        self._said: list[frames.Event] = []

    def encode(self, body: bytes) -> bytes:
        frame = _decode(body)
        if isinstance(frame, frames.Interrupt):
            for asking in (self._asked, *self._queue):
                if asking is not None and isinstance(asking.frame, frames.Eval) and asking.frame.n == frame.n:
                    asking.interrupted = True
            return b""
        self._queue.append(self._asking(frame))
        return self._go_on()

    def decode(self, data: bytes) -> tuple[list[bytes], bytes]:
        answer = b""
        for message in self._reader.feed(data):
            try:
                self._hear(message)
            except (IndexError, TypeError, ValueError) as error:
                raise ProtocolError(f"said {message.tag} in a wrong way") from error
            answer += self._go_on()
        said, self._said = self._said, []
        return [frames.encode(event) for event in said], answer

    # --- to bash ---

    def _asking(self, frame: Asked) -> _Asking:
        if isinstance(frame, frames.Eval):
            return self._eval(frame)
        if isinstance(frame, frames.Claim):
            pairs = [f"{name}={value}" for name, value in frame.env.items() if _settable(name)]
            return _Asking(frame, Request("claim", texts=(clean(frame.cwd or ""), *map(clean, pairs))))
        if isinstance(frame, frames.Complete):
            words = wanted(frame.code, frame.pos)
            texts = tuple(action.encode() for action, _ in words.asks)
            most = str(min(max(frame.max, 1), 1000))
            return _Asking(frame, Request("complete", most, words.prefix, texts=texts), words=words)
        if isinstance(frame, frames.Lookup):
            return _Asking(frame, Request("lookup", name=frame.symbol.removeprefix("$")))
        if isinstance(frame, frames.Restore):
            if frame.data is None or not frame.data.startswith(snapshot.HEAD) or "\0" in frame.data:
                refused = frames.Dumped(n=frame.n, error="this is not what a bash session was kept as")
                return _Asking(frame, Request("ping"), refused)
            return _Asking(frame, Request("restore", code=clean(frame.data)))
        return _Asking(frame, Request("ping"))  # clear and dump: their names are known when it is their turn

    def _eval(self, frame: frames.Eval) -> _Asking:
        if "\0" in frame.code:
            ex = Ex("SyntaxError", "the code has a NUL character, which bash cannot hold")
            failed = frames.Result(
                n=frame.n, outcome="error", ex=ex, stacktrace=[], traceback=f"{frame.name}: {ex.message}\n"
            )
            return _Asking(frame, Request("ping"), failed)
        return _Asking(frame, Request("eval", str(int(frame.stdin)), frame.name, clean(frame.code)))

    def _go_on(self) -> bytes:
        """Send the next request, if bash waits for one."""
        if self._token is None:
            return b""
        if self._asked is None:
            if not self._queue:
                return b""
            self._asked = self._queue.popleft()
        token, self._token = self._token, None
        self._asked.before = self._names
        return self._now(self._asked).packed(token)

    def _now(self, asking: _Asking) -> Request:
        """The request as it is to be sent at this moment."""
        frame, request = asking.frame, asking.request
        if isinstance(frame, frames.Eval) and asking.canned is None:
            if asking.interrupted:
                asking.canned = answers.interrupted(frame.n)
                return Request("ping")
            return request._replace(argument=f"{request.argument},{self._values}")
        if isinstance(frame, frames.Clear | frames.Dump):
            names = self._ours()
            texts = [b"v" + name.encode() for name in names.variables] + [
                b"f" + clean(name) for name in names.functions
            ]
            most = str(max(frame.max, 0)) if isinstance(frame, frames.Dump) else ""
            return Request("dump" if most else "clear", most, texts=tuple(texts))
        return request

    def _ours(self) -> Names:
        """What the session's code has named: the environment it began with is not its own."""
        fresh = self._fresh
        mine = {name: how for name, how in self._names.variables.items() if name not in fresh.variables}
        return Names(mine, self._names.functions - fresh.functions)

    # --- from bash ---

    def _hear(self, message: Message) -> None:
        tag, fields = message
        if tag == "idle":
            self._idle(fields[0], text(fields[1]), number(fields[2]))
        elif tag == "state":
            self._state(*fields)
        elif tag == "ready":
            version, executable = text(fields[0]), text(fields[1])
            self._fresh = self._names
            self._said.append(frames.Ready("bash", version, "bash", executable, number(fields[2]), _CAN))
        elif tag == "need":
            if self._asked is not None and self._asked.begun:  # else it is a subshell that has been left behind
                self._said.append(frames.NeedInput(self._asked.frame.n))
        elif tag == "begun":
            if self._asked is None or not isinstance(self._asked.frame, frames.Eval) or self._asked.canned is not None:
                raise ProtocolError("began what was not asked")
            self._asked.begun = True
        elif tag == "result":
            self._end(number(fields[0]))
        elif tag == "syntax":
            self._answered(answers.syntax_error(self._running(), text(fields[0])))
        else:
            self._answer([text(field) for field in fields])

    def _running(self) -> frames.Eval:
        """The eval that has begun. Raises ProtocolError when there is none."""
        asking = self._asked
        if asking is None or not asking.begun or not isinstance(asking.frame, frames.Eval):
            raise ProtocolError("spoke of an eval that does not run")
        return asking.frame

    def _state(self, variables: bytes, functions: bytes) -> None:
        self._names = Names.told(text(variables), text(functions))
        if len(variables) > _BIG_NAMES_BYTES:
            self._values = "names"

    def _answered(self, event: frames.Event) -> None:
        self._said.append(event)
        self._asked = None

    def _idle(self, token: bytes, why: str, status: int) -> None:
        self._token = token
        asking = self._asked
        if asking is None:
            return
        asking.tries += 1
        if asking.canned is not None:
            self._answered(asking.canned)
        elif asking.begun:
            assert isinstance(asking.frame, frames.Eval)
            if asking.interrupted or (why == "" and status == _BY_SIGINT):
                self._answered(answers.interrupted(asking.frame.n, self._names.changed_since(asking.before)))
            else:
                self._end(status, _HINTS.get(why, ERROR_HINT))
        elif asking.tries > _TRIES:
            self._answered(answers.failed(asking.frame))

    def _end(self, status: int, hint: str | None = None) -> None:
        frame, asking = self._running(), self._asked
        assert asking is not None
        value, kind = (None, None) if frame.silent else (str(status), "status")
        changed = self._names.changed_since(asking.before)
        self._answered(frames.Result(n=frame.n, outcome="ok", value=value, type=kind, changed=changed, hint=hint))

    def _answer(self, fields: list[str]) -> None:
        asking = self._asked
        if asking is None or (isinstance(asking.frame, frames.Eval) and asking.canned is None):
            raise ProtocolError("answered what was not asked")
        if asking.canned is not None:
            self._answered(asking.canned)
            return
        self._answered(self._event(asking, fields))

    def _event(self, asking: _Asking, fields: list[str]) -> frames.Event:
        frame = asking.frame
        if isinstance(frame, frames.Claim):
            self._fresh, self._options = self._names, (fields[1], fields[2])
            return frames.Claimed(frame.n, fields[0][: answers.MESSAGE_CHARS] or None)
        if isinstance(frame, frames.Vars):
            names = sorted(self._listed())
            rows = [describe(name, self._names.variables[name]) for name in names[: min(max(frame.max, 0), 1000)]]
            return frames.Variables(frame.n, rows, len(names))
        if isinstance(frame, frames.Clear):
            self._values = "values"
            before, now = asking.before, self._names
            gone = before.variables.keys() - now.variables.keys()
            return frames.Cleared(frame.n, len(gone) + len(before.functions - now.functions))
        if isinstance(frame, frames.Complete):
            assert asking.words is not None
            items = completions(asking.words, fields, max(frame.max, 0))
            return frames.Completions(frame.n, asking.words.start, items)
        if isinstance(frame, frames.Lookup):
            return answers.found(frame, *fields)
        if isinstance(frame, frames.Dump):
            if fields[0]:
                return frames.Dumped(
                    n=frame.n, error=f"the session's names are {fields[0][:20]} bytes, more than {frame.max}"
                )
            if len(fields) != 1 + snapshot.PARTS:
                raise ProtocolError("told too little of itself")
            return snapshot.compose(frame.n, fields[1:], self._options)
        if isinstance(frame, frames.Restore) and frame.data is not None:
            count, left = snapshot.missing(frame.data, self._names)
            return frames.Dumped(n=frame.n, count=count, bytes=len(frame.data.encode()), left_behind=left)
        raise ProtocolError("answered what was not asked")

    def _listed(self) -> list[str]:
        """The variables that are the user's: new ones, and those of the environment that have another value now."""
        return [name for name in self._names.variables if self._names.differs(name, self._fresh)]


def _settable(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and not _NOT_TAKEN.fullmatch(name)

"""What worker and interpreter say to each other over the control channel, the same for every runtime.

The interpreter is not trusted: what it sends is decoded into these structs or it dies. `n` ties an answer to
its question. Nothing here carries a session's name, an id of a client or a route.
"""

from __future__ import annotations

import msgspec

from replwire.replies import Ex, Frame, Variable


class Claim(msgspec.Struct, tag_field="op", tag="claim"):
    """Go to this folder, take this environment, keep to these limits."""

    n: int
    cwd: str | None
    env: dict[str, str]
    limits: dict[str, int]


class Eval(msgspec.Struct, tag_field="op", tag="eval"):
    """Run code. `name` is the file name that tracebacks show."""

    n: int
    code: str
    name: str
    silent: bool
    stdin: bool
    history: bool


class Interrupt(msgspec.Struct, tag_field="op", tag="interrupt"):
    """The eval `n` is to stop. Sent before SIGINT, which alone could come before the eval has begun. No answer."""

    n: int


class Vars(msgspec.Struct, tag_field="op", tag="vars"):
    """List the user's variables, at most `max` of them."""

    n: int
    max: int


class Clear(msgspec.Struct, tag_field="op", tag="clear"):
    """Forget the user's variables."""

    n: int


class _Event(msgspec.Struct, tag_field="t", frozen=True, rename="kebab"):
    pass


class Ready(_Event, frozen=True, tag="ready"):
    """The interpreter is up."""

    runtime: str
    version: str
    implementation: str
    executable: str
    pid: int  # as it sees itself


class Claimed(_Event, frozen=True, tag="claimed"):
    """Answer to Claim."""

    n: int
    error: str | None = None


class NeedInput(_Event, frozen=True, tag="need-input"):
    """The running code waits for input."""

    n: int


class Result(_Event, frozen=True, tag="result", kw_only=True):
    """Answer to Eval, exactly one."""

    n: int
    outcome: str
    value: str | None = None
    type: str | None = None
    value_dropped: int = 0
    repr_error: str | None = None
    changed: list[str] = []
    ex: Ex | None = None
    stacktrace: list[Frame] | None = None
    traceback: str | None = None
    hint: str | None = None


class Variables(_Event, frozen=True, tag="vars"):
    """Answer to Vars."""

    n: int
    vars: list[Variable]
    total: int


class Cleared(_Event, frozen=True, tag="cleared"):
    """Answer to Clear."""

    n: int
    count: int


Event = Ready | Claimed | NeedInput | Result | Variables | Cleared

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Event).decode

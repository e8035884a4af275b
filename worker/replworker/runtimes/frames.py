"""What worker and interpreter say to each other over the control channel, the same for every runtime.

The interpreter is not trusted: what it sends is decoded into these structs or it dies. `n` ties an answer to
its question. Nothing here carries a session's name, an id of a client or a route.

Dump and Restore come with a descriptor (a regular file or a memfd, read and written from its beginning). It does not
travel on the control channel, whose reader would have to ask for ancillary data with every frame, but by SCM_RIGHTS
in a packet of one byte on the interpreter's descriptor 6, sent before the frame (`InterpreterProcess.send(body, fd)`).
"""

from __future__ import annotations

import msgspec

from replwire.replies import Completion, ExceptionInfo, SkippedName, StackFrame, Variable


class ClaimFrame(msgspec.Struct, tag_field="op", tag="claim"):
    """Go to this folder, take this environment, keep to these limits."""

    n: int
    cwd: str | None
    env: dict[str, str]
    limits: dict[str, int]


class EvalFrame(msgspec.Struct, tag_field="op", tag="eval", omit_defaults=True):
    """Run code. `name` is the file name that tracebacks show.

    `mime` has exact MIME types, and `image/*`. The value comes back in the first of them that it has a form for, and
    in no other; its text comes always, as `Result.value`. Figures come in the first of them that is a type of image.
    """

    n: int
    code: str
    name: str
    silent: bool
    stdin: bool
    history: bool
    mime: list[str] = []  # the rich forms that the caller can show, best first; empty: text alone
    file: str | None = None  # the code is this file's text: it is what `__file__` and tracebacks say
    reload: bool = False  # forget first what the file's last load defined, or reload the module that it is
    module: str | None = None  # the imported module to run it in
    named: bool = True  # the session has a life beyond this eval: reload what the user has under autoreload


class InterruptFrame(msgspec.Struct, tag_field="op", tag="interrupt"):
    """The eval `n` is to stop. Sent before SIGINT, which alone could come before the eval has begun. No answer."""

    n: int


class VarsFrame(msgspec.Struct, tag_field="op", tag="vars"):
    """List the user's variables, at most `max` of them."""

    n: int
    max: int


class ClearFrame(msgspec.Struct, tag_field="op", tag="clear"):
    """Forget the user's variables."""

    n: int


class CompleteFrame(msgspec.Struct, tag_field="op", tag="complete"):
    """Ways to go on with `code` at `pos`, an offset in characters, at most `max`. Runs no property with effects."""

    n: int
    code: str
    pos: int
    max: int


class LookupFrame(msgspec.Struct, tag_field="op", tag="lookup"):
    """What a dotted name means. Anything but a dotted name is not found; nothing is evaluated."""

    n: int
    symbol: str
    module: str | None


class DumpFrame(msgspec.Struct, tag_field="op", tag="dump"):
    """Write the user's names for another session, at most `max` bytes. Python writes into the descriptor that
    comes with this frame; other runtimes answer with `data`."""

    n: int
    max: int
    dill: str | None = None  # folder where dill can be imported from, when the interpreter has none


class RestoreFrame(msgspec.Struct, tag_field="op", tag="restore"):
    """Take over names that a Dump wrote: from the descriptor that comes along (python), or from `data`."""

    n: int
    data: str | None = None
    dill: str | None = None


class _FrameEvent(msgspec.Struct, tag_field="t", frozen=True, rename="kebab"):
    pass


class ReadyFrame(_FrameEvent, frozen=True, tag="ready"):
    """The interpreter is up."""

    runtime: str
    version: str
    implementation: str
    executable: str
    pid: int  # as it sees itself
    can: list[str] = []  # ops beyond claim, eval and interrupt that it answers


class ClaimedFrame(_FrameEvent, frozen=True, tag="claimed"):
    """Answer to Claim."""

    n: int
    error: str | None = None


class NeedInputFrame(_FrameEvent, frozen=True, tag="need-input"):
    """The running code waits for input."""

    n: int


class ResultFrame(_FrameEvent, frozen=True, tag="result", kw_only=True):
    """Answer to Eval, exactly one.

    A bundle (`mime`, and each of `images`) has one form. One that was over its bound has in its place, or besides a
    smaller image, a `text/plain` note and the path of the file that holds the whole: `application/vnd.replctl.file`.
    """

    n: int
    outcome: str
    value: str | None = None
    type: str | None = None
    value_dropped: int = 0
    repr_error: str | None = None
    changed: list[str] = []
    ex: ExceptionInfo | None = None
    stacktrace: list[StackFrame] | None = None
    traceback: str | None = None
    hint: str | None = None
    mime: dict[str, str] | None = None  # the value's rich forms: MIME type to text, images in base64
    images: list[dict[str, str]] = []  # figures that the eval drew besides its value, each such a bundle
    images_dropped: int = 0  # and how many more there were


class VariablesFrame(_FrameEvent, frozen=True, tag="vars"):
    """Answer to Vars."""

    n: int
    vars: list[Variable]
    total: int


class ClearedFrame(_FrameEvent, frozen=True, tag="cleared"):
    """Answer to Clear."""

    n: int
    count: int


class CompletionsFrame(_FrameEvent, frozen=True, tag="completions"):
    """Answer to Complete: each text replaces what stands between `start`, in characters, and the cursor."""

    n: int
    start: int
    items: list[Completion]


class FoundFrame(_FrameEvent, frozen=True, tag="found", kw_only=True):
    """Answer to Lookup."""

    n: int
    found: bool
    name: str | None = None
    type: str | None = None
    doc: str | None = None
    signature: str | None = None
    methods: list[str] = []
    file: str | None = None
    line: int | None = None


class DumpedFrame(_FrameEvent, frozen=True, tag="dumped", kw_only=True):
    """Answer to Dump and to Restore. `error` when nothing at all came of it."""

    n: int
    count: int = 0
    bytes: int = 0
    data: str | None = None
    left_behind: list[SkippedName] = []
    error: str | None = None


class BrokenFrame(_FrameEvent, frozen=True, tag="broken"):
    """The interpreter cannot go on, over what the user's code has done to it. The last that it says."""

    cause: str


FrameEvent = (
    ReadyFrame
    | ClaimedFrame
    | NeedInputFrame
    | ResultFrame
    | VariablesFrame
    | ClearedFrame
    | CompletionsFrame
    | FoundFrame
    | DumpedFrame
    | BrokenFrame
)

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(FrameEvent).decode

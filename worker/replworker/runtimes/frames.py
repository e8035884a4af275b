"""Frames between worker and interpreter on the control channel, the same for every runtime.

The interpreter is untrusted: its frames decode into these structs, or it is killed. `n` matches a reply with its
request. No frame contains a session's name, a client's id or a route.

DumpFrame (a regular file or a memfd, written from its beginning) and RestoreFrame come with a descriptor,
CheckpointFrame with a socket. It is not sent on the control channel, whose reader would have to request ancillary data
with every frame, but with SCM_RIGHTS on the interpreter's descriptor 6, before the frame
(`InterpreterProcess.send(body, fd)`), in a packet that has the frame's number in digits.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from replwire.replies import Completion, ExceptionInfo, SkippedName, StackFrame, Variable
from replworker.runtimes.file_frames import FilesFrame

MAX_DISTRIBUTIONS = 5000  # that an interpreter may list


class AssignFrame(msgspec.Struct, tag_field="op", tag="assign", omit_defaults=True):
    """Set working directory, environment variables, limits, and the directory of installed packages."""

    n: int
    cwd: str | None
    env: dict[str, str]
    limits: dict[str, int]
    packages: str | None = None


class EvalFrame(msgspec.Struct, tag_field="op", tag="eval", omit_defaults=True):
    """Run code. `name` is the file name shown in tracebacks.

    `mime` has exact MIME types, and `image/*`. The value is returned in the first one available, and always as text in
    `ResultFrame.value`. Figures are returned in the first image type.
    """

    n: int
    code: str
    name: str
    silent: bool
    stdin: bool
    history: bool
    mime: list[str] = []  # rich forms the caller can display, best first; empty: text only
    file: str | None = None  # file that the code was loaded from, for `__file__` and tracebacks
    reload: bool = False  # first delete names of the file's last load, or reload its module
    module: str | None = None  # imported module to run it in
    named: bool = True  # the session outlives this eval: run the user's autoreloader


class InterruptFrame(msgspec.Struct, tag_field="op", tag="interrupt"):
    """Interrupt the eval `n`. Sent before SIGINT, which could arrive before the eval has begun. No reply."""

    n: int


class VarsFrame(msgspec.Struct, tag_field="op", tag="vars"):
    """List at most `max` of the user's variables."""

    n: int
    max: int


class ClearFrame(msgspec.Struct, tag_field="op", tag="clear"):
    """Delete the user's variables."""

    n: int


class CompleteFrame(msgspec.Struct, tag_field="op", tag="complete"):
    """List at most `max` completions for `code` at `pos`, an offset in characters. Runs no user code."""

    n: int
    code: str
    pos: int
    max: int


class LookupFrame(msgspec.Struct, tag_field="op", tag="lookup"):
    """Look up a dotted name. Anything else is not found; nothing is evaluated."""

    n: int
    symbol: str
    module: str | None


class DumpFrame(msgspec.Struct, tag_field="op", tag="dump"):
    """Write the user's variables for another session, at most `max` bytes.

    Python writes to the attached descriptor; other runtimes reply with `data`.
    """

    n: int
    max: int
    dill: str | None = None  # directory to import dill from, if the interpreter has none


class RestoreFrame(msgspec.Struct, tag_field="op", tag="restore"):
    """Restore the variables of a dump, from the attached descriptor (Python) or from `data`.

    The dump has `size` bytes from `offset` of the file; without a size it goes to the end.
    """

    n: int
    data: str | None = None
    dill: str | None = None
    offset: int = 0
    size: int | None = None


class CheckpointFrame(msgspec.Struct, tag_field="op", tag="checkpoint"):
    """Keep the state of this moment in a copy that waits at the attached socket.

    The copy sends `here` and then starts an interpreter for each `wake` with seven descriptors. An automatic one is
    refused while threads run.
    """

    n: int
    automatic: bool


class PackagesFrame(msgspec.Struct, tag_field="op", tag="packages"):
    """Import from this directory of installed packages instead of an earlier one; None changes nothing.

    The reply names those of `modules` that are imported. With `file`, it has the text of that lock or project file;
    of the first one in the working directory if it is empty.
    """

    n: int
    path: str | None = None
    modules: list[str] = []
    file: str | None = None


class _FrameEvent(msgspec.Struct, tag_field="t", frozen=True, rename="kebab"):
    pass


class ReadyFrame(_FrameEvent, frozen=True, tag="ready"):
    """The interpreter is ready."""

    runtime: str
    version: str
    implementation: str
    executable: str
    pid: int  # as seen by itself
    can: list[str] = []  # ops it supports besides assign, eval and interrupt


class AssignedFrame(_FrameEvent, frozen=True, tag="assigned"):
    """Reply to AssignFrame."""

    n: int
    error: str | None = None


class NeedInputFrame(_FrameEvent, frozen=True, tag="need-input"):
    """The running code waits for input."""

    n: int


class ResultFrame(_FrameEvent, frozen=True, tag="result", kw_only=True):
    """Reply to EvalFrame, exactly one.

    A bundle (`mime`, and each of `images`) has one form. One over its limit has instead, or in addition to a smaller
    image, a `text/plain` note and the path of the file with the whole: `application/vnd.replctl.file`.
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
    mime: dict[str, str] | None = None  # the value's rich form: MIME type to text, images in base64
    images: list[dict[str, str]] = []  # figures the eval drew in addition to its value, each a bundle
    images_dropped: int = 0  # further figures


class VariablesFrame(_FrameEvent, frozen=True, tag="vars"):
    """Reply to VarsFrame."""

    n: int
    vars: list[Variable]
    total: int


class ClearedFrame(_FrameEvent, frozen=True, tag="cleared"):
    """Reply to ClearFrame."""

    n: int
    count: int


class CompletionsFrame(_FrameEvent, frozen=True, tag="completions"):
    """Reply to CompleteFrame: each text replaces the text between `start`, in characters, and the cursor."""

    n: int
    start: int
    items: list[Completion]


class FoundFrame(_FrameEvent, frozen=True, tag="found", kw_only=True):
    """Reply to LookupFrame."""

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
    """Reply to DumpFrame and RestoreFrame. `error` is set if they failed as a whole."""

    n: int
    count: int = 0
    bytes: int = 0
    data: str | None = None
    skipped: list[SkippedName] = []
    error: str | None = None


class CheckpointedFrame(_FrameEvent, frozen=True, tag="checkpointed", kw_only=True):
    """Reply to CheckpointFrame: what the copy does not contain. It reports itself at its socket."""

    n: int
    error: str | None = None
    refused: bool = False
    threads: list[str] = []
    native: int = 0  # threads that are not Python's
    sockets: int = 0
    pipes: int = 0
    events: int = 0
    children: list[int] = []


class WokenFrame(_FrameEvent, frozen=True, tag="woken"):
    """First frame of an interpreter started from a copy."""


class PackagesListedFrame(_FrameEvent, frozen=True, tag="packages"):
    """Reply to PackagesFrame: packages of the environment beside the installed ones, as names and versions."""

    n: int
    distributions: Annotated[list[tuple[str, str]], Meta(max_length=MAX_DISTRIBUTIONS)] = []
    imported: list[str] = []
    file: str | None = None
    text: str = ""
    error: str | None = None


class BrokenFrame(_FrameEvent, frozen=True, tag="broken"):
    """The interpreter cannot continue because of what the user's code did. Its last frame."""

    cause: str


FrameEvent = (
    ReadyFrame
    | AssignedFrame
    | NeedInputFrame
    | ResultFrame
    | VariablesFrame
    | ClearedFrame
    | CompletionsFrame
    | FoundFrame
    | DumpedFrame
    | CheckpointedFrame
    | WokenFrame
    | PackagesListedFrame
    | FilesFrame
    | BrokenFrame
)

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(FrameEvent).decode

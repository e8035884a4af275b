"""One eval's answer, gathered from its replies."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from replctl.client.errors import CodeError, ReplError
from replwire.faults import ExitCode, exit_code_for, find_fault
from replwire.replies import Approval, ExceptionInfo, Reply, StackFrame

SHELL_NAMESPACE = "shell"  # namespace of bash, whose value is the exit status of the last command
_FILE_MIME = "application/vnd.replctl.file"  # in a bundle: where the whole of a form is kept that was over its bound
_MAX_NOTES = 3
_NO_VALUE = {"globalThis": "undefined"}  # a runtime's own word for "no value", by namespace; Python's is None


def display_value(value: str | None, ns: str | None) -> str | None:
    """A value that there is to show, in the namespace that it comes from."""
    return None if ns == SHELL_NAMESPACE or value == _NO_VALUE.get(ns or "", "None") else value or None


def exit_status(value: str | None, ns: str | None) -> str | None:
    """What bash's last command ended with, in words, when that was not success."""
    return f"exit status {value}" if ns == SHELL_NAMESPACE and value not in (None, "", "0") else None


OnOutput = Callable[[str, str], None]
OnStatus = Callable[[Reply], None]


class Result(msgspec.Struct, kw_only=True, rename="kebab"):
    """What an eval gave. A field that the broker did not send is None.

    `out` and `err` are the whole text of stdout and stderr; `error` is the sentence that says what went wrong.
    `mime` is the value's rich form, `images` are figures that the code drew, each as MIME type to data.
    `session` is what the request called it, else its name or id. `state` is `kept` or `lost`.
    `cwd` is the session's directory, with the first answer of a connection and of a session.
    """

    value: str | None = None
    out: str = ""
    err: str = ""
    status: list[str] = []
    state: str | None = None
    epoch: int | None = None
    eval_id: int | None = None
    session: str | None = None
    session_id: str | None = None
    duration_ms: float | None = None
    ex: ExceptionInfo | None = None
    error: str | None = None
    traceback: str | None = None
    stacktrace: list[StackFrame] | None = None
    ns: str | None = None
    mime: dict[str, Any] | None = None
    images: list[dict[str, Any]] = []
    images_dropped: int | None = None
    repr_error: str | None = None
    changed: list[str] | None = None
    cwd: str | None = None
    ephemeral: bool | None = None
    created: bool | None = None
    ignored_fields: list[str] | None = None
    truncated: bool | None = None
    dropped_bytes: int | None = None
    background_bytes: int | None = None
    cause: str | None = None
    hint: str | None = None
    notice: str | None = None
    approval: Approval | None = None
    max_eval_time_ms: int | None = None
    queue_position: int | None = None
    retry_after_ms: int | None = None
    offset: int | None = None

    @property
    def duration(self) -> float | None:
        """How long the code ran, in seconds."""
        return None if self.duration_ms is None else self.duration_ms / 1000

    @property
    def display_value(self) -> str | None:
        """The value, when there is one to show: no runtime's "no value", and no exit status."""
        return display_value(self.value, self.ns)

    @property
    def exit_status(self) -> str | None:
        """What bash's last command ended with, in words, when that was not success."""
        return exit_status(self.value, self.ns)

    @property
    def notes(self) -> list[str]:
        """What became of rich forms that were over a bound, a line each: shown smaller, kept in a file, or neither."""
        bundles = [*([self.mime] if self.mime and len(self.mime) > 1 else []), *self.images]
        notes = [str(bundle["text/plain"]) for bundle in bundles if "text/plain" in bundle]
        more = len(notes) - _MAX_NOTES
        return [*notes[:_MAX_NOTES], f"{more} more beside these"] if more > 1 else notes

    @property
    def files(self) -> list[str]:
        """Where the whole is kept of forms that were over a bound: paths as the session sees them."""
        return [bundle[_FILE_MIME] for bundle in (self.mime or {}, *self.images) if _FILE_MIME in bundle]

    @property
    def exit(self) -> ExitCode:
        """The exit code that the command line has for this end."""
        return exit_code_for(self.status)

    @property
    def code(self) -> str | None:
        """The fault that ended the eval, by its word in the fault table, or None."""
        fault = find_fault(self.status)
        return fault.code if fault is not None else None

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end and did not raise."""
        return self.exit is ExitCode.OK

    @property
    def running(self) -> bool:
        """Whether the code goes on: the wait was over first."""
        return self.exit is ExitCode.RUNNING

    def raise_for_error(self) -> Result:
        """Return self when `ok`.

        Raises CodeError when the code raised, and ReplError when it was stopped, lost or is not at its end: `word`
        is then the fault, `interrupted` or `running`.
        """
        if self.ok:
            return self
        if self.exit is ExitCode.RAISED and self.ex is not None:
            raise CodeError(self.ex.type, self.ex.message, self)
        word = self.code or next(iter(word for word in self.status if word != "done"), "error")
        raise ReplError(word, self.error or self.cause or word, exit=self.exit, result=self)


_MERGED_FIELDS = tuple(
    sorted(
        {field.name for field in msgspec.structs.fields(Result)}
        & {field.name for field in msgspec.structs.fields(Reply)} - {"out", "err", "status", "session"}
    )
)
_get_merged_fields = attrgetter(*_MERGED_FIELDS)


class OutputPages:
    """An eval's output by several reads, each small enough that a slow reader gets all of it."""

    BYTES = 1_000_000  # of one read

    def __init__(self) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.offset = 0
        self.dropped_bytes = 0

    def add(self, page: Result) -> bool:
        """Take one read from `offset` on; whether another one may bring more."""
        self.out.append(page.out)
        self.err.append(page.err)
        self.dropped_bytes += page.dropped_bytes or 0
        before, self.offset = self.offset, page.offset or self.offset
        return bool(page.truncated) and self.offset > before


class PendingRequest:
    """The replies to one request until the one with `done`. Knows no socket."""

    __slots__ = ("_err", "_out", "dropped_bytes", "error", "final", "on_output", "on_status", "request_id", "result")

    def __init__(
        self, request_id: str, session: str | None, on_output: OnOutput | None = None, on_status: OnStatus | None = None
    ) -> None:
        self.request_id = request_id
        self.on_output = on_output
        self.on_status = on_status
        self.final: Reply | None = None  # the reply with `done`
        self.error: ReplError | None = None  # why it will never come
        self.dropped_bytes = 0  # bytes of live output that the broker could not hand on; `read` has them
        self.result = Result(session=session)
        self._out: list[str] = []
        self._err: list[str] = []

    def add(self, reply: Reply) -> bool:
        """Take one reply; True when it was the last. Live text goes to `on_output` at once."""
        status = reply.status
        if reply.event is not None:
            if self.on_status is not None:
                self.on_status(reply)
            return False
        if reply.out is not None:
            self._add_text("out", self._out, reply.out)
        if reply.err is not None and not (status and "error" in status):
            self._add_text("err", self._err, reply.err)
        if status and "done" in status:
            self._merge(reply)
            self.result.status = status
            self.result.error = reply.err if "error" in status else None
            if self.dropped_bytes:
                self.result.truncated = True
                self.result.dropped_bytes = (self.result.dropped_bytes or 0) + self.dropped_bytes
            self.finalize()
            self.final = reply
            return True
        if status:
            if "output-dropped" in status:
                self.dropped_bytes += reply.dropped_bytes or 0
            if self.on_status is not None:
                self.on_status(reply)
        elif reply.mime is not None and reply.value is None:
            self.result.images.append(reply.mime)
        elif reply.out is None and reply.err is None:
            self._merge(reply)
            if reply.notice is not None and self.on_status is not None:
                self.on_status(reply)
        return False

    def finalize(self) -> Result:
        """The result as far as it has come, its text joined."""
        self.result.out = "".join(self._out)
        self.result.err = "".join(self._err)
        return self.result

    def fill_gaps(self, whole: OutputPages) -> None:
        """Take the output from `whole`, reads of the same eval: what live output missed is in them."""
        result = self.result
        result.out, result.err = "".join(whole.out), "".join(whole.err)
        result.truncated, result.dropped_bytes = True if whole.dropped_bytes else None, whole.dropped_bytes or None

    def _add_text(self, stream: str, chunks: list[str], text: str) -> None:
        chunks.append(text)
        if self.on_output is not None:
            self.on_output(stream, text)

    def _merge(self, reply: Reply) -> None:
        result, earlier = self.result, self.result.notice
        for name, value in zip(_MERGED_FIELDS, _get_merged_fields(reply), strict=True):
            if value is not None:
                setattr(result, name, value)
        if earlier and result.notice not in (None, earlier):
            result.notice = f"{earlier}; {result.notice}"
        if reply.session is not None:
            result.session_id = reply.session
        result.session = result.session or reply.name or reply.session

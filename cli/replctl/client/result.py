"""The result of an eval, assembled from its replies."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from replctl.client.errors import CodeError, ReplError
from replwire.faults import ExitCode, exit_code_for, find_fault
from replwire.replies import Approval, ExceptionInfo, Reply, StackFrame

SHELL_NAMESPACE = "shell"  # namespace of bash, where the value is the last exit status
_FILE_MIME = "application/vnd.replctl.file"  # key in a bundle: file with the full data of a form over its limit
_MAX_NOTES = 3
_NO_VALUE = {"globalThis": "undefined"}  # "no value" by namespace; Python's is None


def display_value(value: str | None, ns: str | None) -> str | None:
    """Return the value to display, or None for the namespace's "no value"."""
    return None if ns == SHELL_NAMESPACE or value == _NO_VALUE.get(ns or "", "None") else value or None


def exit_status(value: str | None, ns: str | None) -> str | None:
    """Describe the exit status of bash's last command, or return None on success."""
    return f"exit status {value}" if ns == SHELL_NAMESPACE and value not in (None, "", "0") else None


OnOutput = Callable[[str, str], None]
OnStatus = Callable[[Reply], None]


class Result(msgspec.Struct, kw_only=True, rename="kebab"):
    """The result of an eval. A field that the broker did not send is None.

    Attributes:
        out: All of stdout.
        err: All of stderr.
        error: One sentence about what went wrong.
        mime: Rich form of the value, MIME type to data.
        images: Figures that the code drew, each MIME type to data.
        session: The session as named in the request, else its name or id.
        state: `kept`, `rolled-back`, `restored` or `lost`: whether earlier variables still exist.
        checkpoint: With `rolled-back`, the number of the checkpoint whose state it is.
        undone_evals: With `rolled-back`, the evals that were undone by it.
        not_restored: With `rolled-back` or `restored`, what did not come back, in sentences.
        undone: True if a rollback or a crash has undone this eval since.
        cwd: The session's working directory, in the first reply of a connection and of a session.
    """

    value: str | None = None
    out: str = ""
    err: str = ""
    status: list[str] = []
    state: str | None = None
    checkpoint: int | None = None
    undone_evals: list[int] | None = None
    not_restored: list[str] | None = None
    undone: bool | None = None
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
        """Run time of the code in seconds."""
        return None if self.duration_ms is None else self.duration_ms / 1000

    @property
    def display_value(self) -> str | None:
        """The value to display, without a runtime's "no value" or an exit status."""
        return display_value(self.value, self.ns)

    @property
    def exit_status(self) -> str | None:
        """The exit status of bash's last command in words, or None on success."""
        return exit_status(self.value, self.ns)

    @property
    def notes(self) -> list[str]:
        """Notes on rich forms over a limit, one per line: shown smaller, saved to a file, or dropped."""
        bundles = [*([self.mime] if self.mime and len(self.mime) > 1 else []), *self.images]
        notes = [str(bundle["text/plain"]) for bundle in bundles if "text/plain" in bundle]
        more = len(notes) - _MAX_NOTES
        return [*notes[:_MAX_NOTES], f"and {more} more"] if more > 1 else notes

    @property
    def files(self) -> list[str]:
        """Paths, as seen by the session, of files with rich forms that were over a limit."""
        return [bundle[_FILE_MIME] for bundle in (self.mime or {}, *self.images) if _FILE_MIME in bundle]

    @property
    def exit(self) -> ExitCode:
        """The exit code of the command line for this result."""
        return exit_code_for(self.status)

    @property
    def code(self) -> str | None:
        """The code of the fault that ended the eval, or None."""
        fault = find_fault(self.status)
        return fault.code if fault is not None else None

    @property
    def ok(self) -> bool:
        """True if the code ran to its end without raising."""
        return self.exit is ExitCode.OK

    @property
    def running(self) -> bool:
        """True if the code is still running because `wait` ran out first."""
        return self.exit is ExitCode.RUNNING

    def raise_for_error(self) -> Result:
        """Return self if `ok`.

        Raises:
            CodeError: The code raised an exception.
            ReplError: The eval was stopped, lost or has not ended; `code` is the fault, `interrupted` or `running`.
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
    """An eval's output, read in pieces small enough for a slow reader to get all of it."""

    BYTES = 1_000_000  # bytes of one read

    def __init__(self) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.offset = 0
        self.dropped_bytes = 0

    def add(self, page: Result) -> bool:
        """Add one page, read at `offset`. Returns True if another page may bring more."""
        self.out.append(page.out)
        self.err.append(page.err)
        self.dropped_bytes += page.dropped_bytes or 0
        before, self.offset = self.offset, page.offset or self.offset
        return bool(page.truncated) and self.offset > before


class PendingRequest:
    """A request and its replies so far, up to the one with `done`. No I/O."""

    __slots__ = ("_err", "_out", "dropped_bytes", "error", "final", "on_output", "on_status", "request_id", "result")

    def __init__(
        self, request_id: str, session: str | None, on_output: OnOutput | None = None, on_status: OnStatus | None = None
    ) -> None:
        self.request_id = request_id
        self.on_output = on_output
        self.on_status = on_status
        self.final: Reply | None = None  # the reply with `done`
        self.error: ReplError | None = None  # reason why there will be no final reply
        self.dropped_bytes = 0  # bytes of live output that the broker dropped; `read` returns them
        self.result = Result(session=session)
        self._out: list[str] = []
        self._err: list[str] = []

    def add(self, reply: Reply) -> bool:
        """Add one reply; live text goes to `on_output` at once. Returns True if the reply was the final one."""
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
        """Join the output and return the result so far."""
        self.result.out = "".join(self._out)
        self.result.err = "".join(self._err)
        return self.result

    def fill_gaps(self, whole: OutputPages) -> None:
        """Replace the output by `whole`, pages of the same eval, which include output that was dropped on the way."""
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

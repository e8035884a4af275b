"""What a command writes: the code's text as it comes, values and tables to stdout, notices to stderr, or one JSON line.

Two methods write text as it is, `live` and `value`: they are for what the caller's own code printed and returned. In
all others what a terminal would obey is escaped, so that no name, folder, preview or error of somebody else can reach
one. Everything goes to the descriptors at once, all of it: a pipe takes 65 536 bytes at a time and no more.
"""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from replwire.terminal import escape_control, escape_json, escape_lines

if TYPE_CHECKING:
    from replctl.top.terminal_sequences import TerminalSanitizer

EXIT_SIGPIPE = 141  # as a shell tells of a program that SIGPIPE ended
EXIT_WRITE_FAILED = 1  # what cat says of a full disk


def has_colours(fd: int) -> bool:
    """Whether colours belong there: a terminal that takes them, of a user who wants them."""
    return os.isatty(fd) and os.environ.get("TERM", "dumb") != "dumb" and "NO_COLOR" not in os.environ


class CommandOutput:
    """Standard output and standard error of one command."""

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._files = {"out": out, "err": err}
        self._sanitizers: dict[str, TerminalSanitizer] = {}
        self._at_line_start = {"out": True, "err": True}  # whether the last thing written ended its line
        self._same_terminal = os.isatty(out) and os.isatty(
            err
        )  # both are one terminal: a line begun on one is begun on both

    def live(self, stream: str, text: str) -> None:
        """Text of the code, as it came. Ends the process, quietly, when nobody reads stdout any more."""
        if not text:
            return
        self._write(stream, text.encode("utf-8", "backslashreplace"))
        self._set_at_line_start(stream, text.endswith("\n"))

    def exit_on_broken_pipe(self) -> None:
        """From here on the process ends when nobody reads stdout any more, also while there is nothing to write."""
        gone = select.poll()
        gone.register(self._files["out"], 0)  # an error is told unasked
        threading.Thread(target=lambda: gone.poll() and os._exit(EXIT_SIGPIPE), daemon=True).start()

    def note_terminal_echo(self, line: bool) -> None:
        """The terminal has shown what a person typed: a line, or something that did not end it (`^C`)."""
        for stream in self._at_line_start if self._same_terminal else ():
            self._at_line_start[stream] = line

    def _set_at_line_start(self, stream: str, fresh: bool) -> None:
        for each in self._at_line_start if self._same_terminal else (stream,):
            self._at_line_start[each] = fresh

    def write_stored(self, stream: str, text: str) -> None:
        """Text that a session printed at some time, for anybody: to a terminal its lines, tabs and colours; elsewhere
        as it is."""
        if os.isatty(self._files[stream]):
            from replctl.top.terminal_sequences import TerminalSanitizer  # few commands show such text

            harmless = self._sanitizers.setdefault(stream, TerminalSanitizer(has_colours(self._files[stream])))
            text = harmless.text(text) + harmless.end()
        self.live(stream, text)

    def value(self, text: str) -> None:
        """A value of the caller's own code, as its text is, on a fresh line."""
        self._write_line("out", text)

    def line(self, text: str, stream: str = "out") -> None:
        """A line of our own, on a fresh line; newlines in it are escaped too."""
        self._write_line(stream, escape_control(text))

    def block(self, text: str, stream: str = "out") -> None:
        """Several lines: code, a traceback, a text of help."""
        self._write_line(stream, escape_lines(text))

    def write_coloured(self, *pieces: tuple[str, str | None]) -> None:
        """A line of our own in pieces, each with an SGR colour or none."""
        painted = ((escape_control(text), colour) for text, colour in pieces)
        self._write_line("out", "".join(f"\x1b[{colour}m{text}\x1b[0m" if colour else text for text, colour in painted))

    def notice(self, text: str) -> None:
        """Something that replctl itself has to say. Further lines are indented: none can look like one of ours."""
        self._write_line("err", f"replctl: {escape_lines(text, '  ')}")

    def json(self, data: Any) -> None:
        """One object on one line."""
        try:
            text = escape_json(msgspec.json.encode(data, enc_hook=str).decode())
        except UnicodeEncodeError:  # a lone surrogate, of a file name that is no UTF-8
            text = json.dumps(msgspec.to_builtins(data, enc_hook=str))
        self._write("out", text.encode() + b"\n")

    def _write_line(self, stream: str, text: str) -> None:
        begin = "" if self._at_line_start[stream] else "\n"
        self.live(stream, f"{begin}{text}\n")

    def failure(
        self,
        err: str,
        status: Sequence[str],
        word: str | None,
        exit: int,
        *,
        hint: str | None = None,
        retry_after_ms: int | None = None,
        blank: dict[str, Any] | None = None,
    ) -> None:
        """An error as one JSON object; the same keys whatever failed."""
        said = {"err": err, "error": err, "status": list(status), "word": word, "exit": exit, "hint": hint}
        self.json({**(blank or {}), **said, "retry-after-ms": retry_after_ms})

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Columns, aligned."""
        cells = [list(head)] + [["-" if cell is None else escape_control(str(cell)) for cell in row] for row in rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
        for row in cells:
            self.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def _write(self, stream: str, data: bytes) -> None:
        fd = self._files[stream]
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(fd, view) :]
                except BlockingIOError:  # a descriptor that we share with a program that made it non-blocking
                    select.select([], [fd], [])
        except BrokenPipeError:
            if stream == "out":
                raise SystemExit(EXIT_SIGPIPE) from None
        except OSError as error:  # a full disk behind stderr is no reason to lose the value on stdout
            if stream == "out":
                self.notice(f"cannot write to stdout: {error.strerror}")
                raise SystemExit(EXIT_WRITE_FAILED) from None

"""Output of a command: live text, values and tables to stdout, notices to stderr, or one JSON line.

Two methods print text unchanged, `live` and `value`: for output and values of the caller's own code. All others escape
control sequences, so no name, directory, preview or error of another user can control the terminal. Output is written
to the descriptors at once and completely: a pipe takes at most 65 536 bytes at a time.
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

EXIT_SIGPIPE = 141  # a shell's exit code for a program killed by SIGPIPE
EXIT_WRITE_FAILED = 1  # same as cat for a full disk


def has_colours(fd: int) -> bool:
    """Return True if colours are wanted: a capable terminal, and no NO_COLOR."""
    return os.isatty(fd) and os.environ.get("TERM", "dumb") != "dumb" and "NO_COLOR" not in os.environ


class CommandOutput:
    """Standard output and standard error of one command."""

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._files = {"out": out, "err": err}
        self._sanitizers: dict[str, TerminalSanitizer] = {}
        self._at_line_start = {"out": True, "err": True}  # the last output ended with a newline
        self._same_terminal = os.isatty(out) and os.isatty(err)  # both are the same terminal and share the cursor

    def live(self, stream: str, text: str) -> None:
        """Print live output of the code. Ends the process silently if the reader of stdout is gone."""
        if not text:
            return
        self._write(stream, text.encode("utf-8", "backslashreplace"))
        self._set_at_line_start(stream, text.endswith("\n"))

    def exit_on_broken_pipe(self) -> None:
        """From now on end the process when the reader of stdout is gone, even without anything to write."""
        poll = select.poll()
        poll.register(self._files["out"], 0)  # errors are reported without being requested
        threading.Thread(target=lambda: poll.poll() and os._exit(EXIT_SIGPIPE), daemon=True).start()

    def note_terminal_echo(self, line: bool) -> None:
        """Record that the terminal echoed typed text: a line, or text that did not end one (`^C`)."""
        for stream in self._at_line_start if self._same_terminal else ():
            self._at_line_start[stream] = line

    def _set_at_line_start(self, stream: str, fresh: bool) -> None:
        for each in self._at_line_start if self._same_terminal else (stream,):
            self._at_line_start[each] = fresh

    def write_stored(self, stream: str, text: str) -> None:
        """Print stored output of a session: on a terminal only lines, tabs and colours; elsewhere unchanged."""
        if os.isatty(self._files[stream]):
            from replctl.top.terminal_sequences import TerminalSanitizer  # rarely needed

            harmless = self._sanitizers.setdefault(stream, TerminalSanitizer(has_colours(self._files[stream])))
            text = harmless.text(text) + harmless.end()
        self.live(stream, text)

    def value(self, text: str) -> None:
        """Print a value of the caller's own code, unchanged, on a fresh line."""
        self._write_line("out", text)

    def line(self, text: str, stream: str = "out") -> None:
        """Print a line of replctl's own on a fresh line; newlines in it are escaped."""
        self._write_line(stream, escape_control(text))

    def block(self, text: str, stream: str = "out") -> None:
        """Print several lines: code, a traceback, a help text."""
        self._write_line(stream, escape_lines(text))

    def write_coloured(self, *pieces: tuple[str, str | None]) -> None:
        """Print a line of replctl's own in pieces, each with an SGR colour or None."""
        painted = ((escape_control(text), colour) for text, colour in pieces)
        self._write_line("out", "".join(f"\x1b[{colour}m{text}\x1b[0m" if colour else text for text, colour in painted))

    def notice(self, text: str) -> None:
        """Print a message of replctl to stderr. Further lines are indented, so none can look like another message."""
        self._write_line("err", f"replctl: {escape_lines(text, '  ')}")

    def progress(self, text: str) -> None:
        """Show a line on a terminal in place of the last such line; an empty one removes it."""
        if os.isatty(self._files["err"]) and os.environ.get("TERM", "dumb") != "dumb":
            self._write("err", f"\r\x1b[K{escape_control(text)}".encode())

    def json(self, data: Any) -> None:
        """Print one object as a line of JSON."""
        try:
            text = escape_json(msgspec.json.encode(data, enc_hook=str).decode())
        except UnicodeEncodeError:  # a lone surrogate, from a file name that is not UTF-8
            text = json.dumps(msgspec.to_builtins(data, enc_hook=str))
        self._write("out", text.encode() + b"\n")

    def _write_line(self, stream: str, text: str) -> None:
        begin = "" if self._at_line_start[stream] else "\n"
        self.live(stream, f"{begin}{text}\n")

    def failure(
        self,
        err: str,
        status: Sequence[str],
        code: str | None,
        exit: int,
        *,
        hint: str | None = None,
        retry_after_ms: int | None = None,
        blank: dict[str, Any] | None = None,
    ) -> None:
        """Print an error as one JSON object, with the same keys for every error."""
        fields = {"err": err, "error": err, "status": list(status), "code": code, "exit": exit, "hint": hint}
        self.json({**(blank or {}), **fields, "retry-after-ms": retry_after_ms})

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print aligned columns."""
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
                except BlockingIOError:  # another program made the shared descriptor non-blocking
                    select.select([], [fd], [])
        except BrokenPipeError:
            if stream == "out":
                raise SystemExit(EXIT_SIGPIPE) from None
        except OSError as error:  # a full disk behind stderr must not lose the value on stdout
            if stream == "out":
                self.notice(f"cannot write to stdout: {error.strerror}")
                raise SystemExit(EXIT_WRITE_FAILED) from None

"""What a command writes: the code's text as it comes, values and tables to stdout, notices to stderr, or one JSON line.

Everything goes to the descriptors at once, all of it: a pipe takes 65 536 bytes at a time and no more.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

READER_GONE = 141  # as a shell tells of a program that SIGPIPE ended
UNWRITTEN = 1  # what cat says of a full disk


def visible(text: str) -> str:
    """Text of others in our own lines: what a terminal would obey is shown."""
    return "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in text)


class Screen:
    """Standard output and standard error of one command."""

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._files = {"out": out, "err": err}
        self._fresh = {"out": True, "err": True}  # whether the last thing written ended its line
        self._one = os.isatty(out) and os.isatty(err)  # both are one terminal: a line begun on one is begun on both

    def text(self, stream: str, text: str) -> None:
        """Text of the code, as it came. Ends the process, quietly, when nobody reads stdout any more."""
        if not text:
            return
        self._write(stream, text.encode("utf-8", "backslashreplace"))
        self._at_margin(stream, text.endswith("\n"))

    def leave_with_the_reader(self) -> None:
        """From here on the process ends when nobody reads stdout any more, also while there is nothing to write."""
        gone = select.poll()
        gone.register(self._files["out"], 0)  # an error is told unasked
        threading.Thread(target=lambda: gone.poll() and os._exit(READER_GONE), daemon=True).start()

    def typed(self, line: bool) -> None:
        """The terminal has shown what a person typed: a line, or something that did not end it (`^C`)."""
        for stream in self._fresh if self._one else ():
            self._fresh[stream] = line

    def _at_margin(self, stream: str, fresh: bool) -> None:
        for each in self._fresh if self._one else (stream,):
            self._fresh[each] = fresh

    def line(self, text: str, stream: str = "out") -> None:
        """A line of our own, on a fresh line."""
        begin = "" if self._fresh[stream] else "\n"
        self.text(stream, f"{begin}{text}\n")

    def notice(self, text: str) -> None:
        """Something that replctl itself has to say. Terminal control in it is shown, not obeyed."""
        self.line(f"replctl: {visible(text)}", "err")

    def json(self, data: Any) -> None:
        """One object on one line."""
        self._write("out", msgspec.json.encode(data, enc_hook=str) + b"\n")

    def failure(
        self, err: str, status: Sequence[str], word: str | None, exit: int, *,
        hint: str | None = None, retry_after_ms: int | None = None, blank: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """An error as one JSON object; the same keys whatever failed."""
        said = {"err": err, "error": err, "status": list(status), "word": word, "exit": exit, "hint": hint}
        self.json({**(blank or {}), **said, "retry-after-ms": retry_after_ms})

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Columns, aligned."""
        cells = [list(head)] + [["-" if cell is None else str(cell) for cell in row] for row in rows]
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
                raise SystemExit(READER_GONE) from None
        except OSError as error:  # a full disk behind stderr is no reason to lose the value on stdout
            if stream == "out":
                self.notice(f"cannot write to stdout: {error.strerror}")
                raise SystemExit(UNWRITTEN) from None

"""`replctl logs`: the log of a broker that a command started."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import click

from replctl.client.start import log_file
from replctl.commands.output import CommandOutput
from replwire.faults import ExitCode

_LOOK_SECONDS = 0.2  # between two looks at a log that is followed
_MAX_READ = 1 << 20  # bytes read at once; a log is rotated when it is longer than this at a start


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True, help="Show the last N lines."
)
def logs(follow: bool, lines: int) -> int:
    """Show the log of the broker that a command started: starts, warnings, internal errors.

    A broker that `serve` or a service manager runs writes its log to that one's stderr or journal. For the output of a
    session see `replctl tail SESSION --output`.
    """
    path, screen = log_file(os.environ), CommandOutput()
    try:
        text = _last_lines(path, lines)
    except FileNotFoundError:
        if not follow:
            screen.notice(f"no log at {path}: no command has started a broker; a service's log is in `journalctl`")
            return ExitCode.NO_BROKER
        text = ""
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from None
    screen.write_stored("out", text)
    if follow:
        screen.exit_on_broken_pipe()
        try:
            for more in _follow(path):
                screen.write_stored("out", more)
        except KeyboardInterrupt:
            pass
    return ExitCode.OK


def _last_lines(path: str, count: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_READ))
        found = file.read(_MAX_READ).splitlines(keepends=True)
    return b"".join(found[len(found) - min(count, len(found)) :]).decode("utf-8", "replace")


def _follow(path: str) -> Iterator[str]:
    """Yield what is appended to a file, also after its rotation."""
    inode, at = _identity(path)
    while True:
        time.sleep(_LOOK_SECONDS)
        now, size = _identity(path)
        if now != inode or size < at:
            inode, at = now, 0
        if size > at:
            with open(path, "rb") as file:
                file.seek(at)
                data = file.read(_MAX_READ)
            at += len(data)
            yield data.decode("utf-8", "replace")


def _identity(path: str) -> tuple[int, int]:
    """Return the inode and the size of a file; zeros if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_size

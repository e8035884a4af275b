"""`replctl logs`: the log of a broker that a command started."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

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
        text, place = _last_lines(path, lines)
    except FileNotFoundError:
        if not follow:
            screen.notice(f"no log at {path}: no command has started a broker; a service's log is in `journalctl`")
            return ExitCode.NO_BROKER
        text, place = "", LogPlace(0, 0)
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from None
    screen.write_stored("out", text)
    if follow:
        screen.exit_on_broken_pipe()
        try:
            for more in _follow(path, place):
                screen.write_stored("out", more)
        except KeyboardInterrupt:
            pass
    return ExitCode.OK


class LogPlace(NamedTuple):
    """Position in a log: the inode of its file, and bytes; zeros before there is one."""

    inode: int
    offset: int


def _last_lines(path: str, count: int) -> tuple[str, LogPlace]:
    """Return the last lines of a file, and its end."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_READ))
        found = file.read(_MAX_READ).splitlines(keepends=True)
        place = LogPlace(os.fstat(file.fileno()).st_ino, file.tell())
    return b"".join(found[len(found) - min(count, len(found)) :]).decode("utf-8", "replace"), place


def _follow(path: str, place: LogPlace) -> Iterator[str]:
    """Yield what is appended to a file after a place, also after its rotation."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            with open(path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != place.inode or found.st_size < place.offset:
                    place = LogPlace(found.st_ino, 0)
                file.seek(place.offset)
                data = file.read(_MAX_READ)
        except FileNotFoundError:  # between two files
            data = b""
        if data:
            place = place._replace(offset=place.offset + len(data))
            yield decoder.decode(data)
        else:
            time.sleep(_LOOK_SECONDS)

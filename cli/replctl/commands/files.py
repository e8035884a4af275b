"""Command cp: a file into a session, or from it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import click

from replctl.client.errors import ReplError
from replctl.commands.context import CommandContext, reply_fields, with_common_options
from replwire.faults import ExitCode
from replwire.identifiers import DEFAULT_SESSION

_MIB = 1024 * 1024
_IN_SESSION = re.compile(r"((?:(?:uid:\d+|[^/:]+)/)?[A-Za-z0-9_-]*):(.*)", re.DOTALL)
_KEYS = ("file", "bytes", "sha256")


class SessionPath(NamedTuple):
    """A file of a session."""

    session: str
    path: str


def parse_place(text: str) -> SessionPath | str:
    """Return the file of a session, `SESSION:PATH`, or a local path: `./a:b` if it has a colon."""
    found = None if text.startswith(("/", "./", "../")) else _IN_SESSION.fullmatch(text)
    return text if found is None else SessionPath(found[1] or DEFAULT_SESSION, found[2])


@click.command()
@click.argument("source")
@click.argument("target")
@with_common_options
def cp(context: CommandContext, source: str, target: str) -> int:
    """Copy a file: SESSION:PATH is one of a session, `:PATH` one of the session `default`.

    The session's sandbox and rights hold, and a relative path counts from its working directory. A copy that was cut
    off goes on where it ended when the command is given again.
    """
    begin, end = parse_place(source), parse_place(target)
    if isinstance(begin, str) == isinstance(end, str):
        raise click.UsageError("one of the two is a file of a session, SESSION:PATH; the other is a local file")
    try:
        if isinstance(end, SessionPath):
            assert isinstance(begin, str)
            _put(context, begin, end)
        else:
            assert isinstance(begin, SessionPath)
            _get(context, begin, end)
    except OSError as error:
        name = error.filename or source
        return context.fail(ReplError("io-error", f"{os.fsdecode(name)}: {error.strerror}", exit=ExitCode.USAGE))
    except KeyboardInterrupt:
        context.screen.progress("")
        context.screen.notice("stopped; what has arrived is kept, the same command goes on from there")
        return ExitCode.INTERRUPTED
    finally:
        context.screen.progress("")
    return ExitCode.OK


def _put(context: CommandContext, source: str, target: SessionPath) -> None:
    path = target.path
    if not path or path.endswith("/"):
        path += os.path.basename(source)
    with context.client() as client:
        reply = client.put_file(source, path, target.session, lambda at, size: _show(context, at, size))
    context.show(reply_fields(reply, *_KEYS), f"{target.session}:{reply.file}")


def _get(context: CommandContext, source: SessionPath, target: str) -> None:
    path = os.path.join(target, os.path.basename(source.path)) if os.path.isdir(target) else target
    with context.client() as client:
        reply = client.get_file(source.path, path, source.session, lambda at, size: _show(context, at, size))
    context.show(reply_fields(reply, *_KEYS) | {"target": path}, path)


def _show(context: CommandContext, at: int, size: int) -> None:
    if not context.json:
        percent = 100 * at // size if size else 100
        context.screen.progress(f"{at / _MIB:.1f} of {size / _MIB:.1f} MiB, {percent} %")

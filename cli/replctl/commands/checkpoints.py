"""Commands on a session's state: checkpoint, checkpoints, rollback, branch, diff, save."""

from __future__ import annotations

import time
from typing import Any

import click

from replctl.checkpoint_tree import COLUMNS, tree_rows
from replctl.client.errors import ReplError
from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    default_session_argument,
    reply_fields,
    session_argument,
    with_common_options,
)
from replctl.commands.messages import rollback_notices
from replctl.file_changes import change_lines
from replwire.quantities import count_of


class CheckpointReference(click.ParamType):  # type: ignore[type-arg]  # as `SessionName`
    """The number or the name of a checkpoint."""

    name = "checkpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ARG002
        """Return a number as such."""
        text = str(value)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text


_reference_argument = click.argument("reference", required=False, metavar="[N|NAME]", type=CheckpointReference())


@click.command(cls=SessionCommand)
@session_argument
@click.option("--name", metavar="NAME", help="Name of the checkpoint; it then stays until it is dropped by request.")
@with_common_options
def checkpoint(context: CommandContext, session: str, name: str | None) -> None:
    """Keep the state of SESSION after its running eval, and print the checkpoint's number."""
    with context.client() as client:
        reply = client.checkpoint(session, name)
    keys = ("checkpoint", "checkpoint-name", "session", "name", "epoch", "state", "eval-id", "not-restored", "notice")
    context.show(reply_fields(reply, *keys), str(reply.checkpoint))
    if not context.json:
        for each in reply.not_restored or []:
            context.screen.notice(f"a rollback will not restore: {each}")
        if reply.notice:
            context.screen.notice(reply.notice)


@click.command(cls=SessionCommand)
@default_session_argument
@click.option("--drop", metavar="N|NAME", type=CheckpointReference(), help="Drop this checkpoint instead.")
@with_common_options
def checkpoints(context: CommandContext, session: str, drop: int | str | None) -> None:
    """Show the checkpoints of SESSION as a tree; the current state goes on from the one marked *."""
    with context.client() as client:
        if drop is not None:
            reply = client.drop_checkpoint(session, drop)
            context.show(reply_fields(reply, "checkpoint", "checkpoint-name"))
            if not context.json:
                context.screen.notice(f"dropped checkpoint {reply.checkpoint} of {session}")
            return
        reply = client.list_checkpoints(session)
    entries = reply.checkpoints or []
    if context.json:
        context.screen.json(reply_fields(reply, "checkpoints", "dropped", "checkpoints-off"))
        return
    if entries:
        context.screen.table(COLUMNS, (cells for _, cells in tree_rows(entries, time.time())))
    else:
        context.screen.notice(f"session {session!r} has no checkpoints")
    if reply.checkpoints_off:
        context.screen.notice(f"no checkpoint is taken: {reply.checkpoints_off}")
    if reply.dropped:
        context.screen.notice(f"dropped to make room: {', '.join(map(str, reply.dropped))}")


@click.command(cls=SessionCommand)
@session_argument
@_reference_argument
@click.option("--to", metavar="N|NAME", type=CheckpointReference(), help="The same as the argument.")
@with_common_options
def rollback(context: CommandContext, session: str, reference: int | str | None, to: int | str | None) -> int | None:
    """Undo the last eval of SESSION, or all evals since checkpoint N. Files stay as they are."""
    if reference is not None and to is not None:
        raise click.UsageError("name one checkpoint, as argument or with --to")
    with context.client() as client:
        try:
            reply = client.rollback(session, reference if to is None else to)
        except ReplError as error:
            undone = error.reply.undone_evals if error.reply is not None else None
            if undone and not context.json:
                context.screen.notice(f"evals that would be undone: {', '.join(map(str, undone))}")
            return context.fail(error)
    keys = ("checkpoint", "checkpoint-name", "session", "name", "epoch", "state", "undone-evals", "redone-evals")
    context.show(reply_fields(reply, *keys, "not-restored", "notice"))
    if not context.json:
        label = f"{reply.checkpoint} ({reply.checkpoint_name})" if reply.checkpoint_name else str(reply.checkpoint)
        context.screen.notice(f"session {session!r} is back at checkpoint {label} (epoch {reply.epoch})")
        for notice in rollback_notices(reply.undone_evals, reply.not_restored):
            context.screen.notice(notice)
        if reply.redone_evals:
            context.screen.notice(f"valid again: evals {', '.join(map(str, reply.redone_evals))}")
    return None


@click.command(cls=SessionCommand)
@session_argument
@click.argument("to")
@click.option("--at", metavar="N|NAME", type=CheckpointReference(), help="Begin with this checkpoint of SESSION.")
@with_common_options
def branch(context: CommandContext, session: str, to: str, at: int | str | None) -> None:
    """Open a session TO that begins as a copy of SESSION, in the same sandbox; print its name."""
    with context.client() as client:
        reply = client.branch(session, to, at)
    keys = ("new-session", "session", "name", "branch-of", "checkpoint", "epoch", "cwd", "created", "not-restored")
    context.show(reply_fields(reply, *keys, "notice"), reply.name or "")
    if not context.json:
        context.screen.notice(f"session {reply.name!r} begins with checkpoint {reply.checkpoint} of {session!r}")
        for each in reply.not_restored or []:
            context.screen.notice(f"the branch does not have: {each}")
        if reply.notice:
            context.screen.notice(reply.notice)


@click.command(cls=SessionCommand)
@session_argument
@_reference_argument
@with_common_options
def diff(context: CommandContext, session: str, reference: int | str | None) -> None:
    """Show what has changed in the directory of SESSION since checkpoint N, or since before its last eval."""
    with context.client() as client:
        reply = client.diff(session, reference)
    context.show(reply_fields(reply, "checkpoint", "checkpoint-name", "file-changes", "patch", "truncated"))
    if context.json:
        return
    for line in change_lines(
        [(each.change, each.path) for each in reply.file_changes or []], reply.patch, truncated=False
    ):
        context.screen.line(line)
    if not reply.file_changes:
        context.screen.notice(f"no file has changed since checkpoint {reply.checkpoint}")
    if reply.truncated:
        context.screen.notice("not all changes are shown")


@click.command(cls=SessionCommand)
@session_argument
@click.argument("file", type=click.Path(dir_okay=False))
@with_common_options
def save(context: CommandContext, session: str, file: str) -> None:
    """Save the variables of SESSION in FILE, for `replctl new NAME --from FILE` later or on another host."""
    with context.client() as client:
        try:
            reply = client.save(session, file)
        except OSError as error:
            raise click.UsageError(f"{file} cannot be written: {error.strerror}") from None
    context.show(reply_fields(reply, "session", "name", "epoch", "eval-id", "count", "bytes", "skipped"))
    if not context.json:
        saved = f"{count_of(reply.count, 'variable')} ({count_of(reply.bytes, 'byte')})"
        context.screen.notice(f"saved {saved} of {session!r} in {file}")
        for each in reply.skipped or []:
            context.screen.notice(f"not saved: {each.name}: {each.why}")

"""Commands on sessions: new, reset, close, interrupt, stdin, clone, hibernate, mode, share, transfer."""

from __future__ import annotations

import click

from replctl.client.errors import ReplError
from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    reply_fields,
    session_argument,
    with_common_options,
)
from replctl.commands.params import SessionName, directory_for_new, parse_env, runtime_for_new
from replctl.commands.session_filter import SessionFilter, with_session_filter
from replwire.faults import ExitCode
from replwire.quantities import count_of

_NEW_FIELDS = (
    *("session", "name", "cwd", "epoch", "created", "state", "cause"),
    *("count", "bytes", "skipped", "notice"),
)
_MANY = 20_000  # characters of stdin sent in one message; far below any limit


@click.command()
@click.argument("name", required=False)
@click.option("--runtime", metavar="NAME|PATH", help="python, node, bash, or the path of a Python environment.")
@click.option("--cwd", metavar="DIR", help="Working directory. [the current one]")
@click.option("--env", multiple=True, metavar="K=V", help="Environment variable; repeatable.")
@click.option("--reuse", is_flag=True, help="Use the session if it already exists.")
@click.option(
    "--from", "source", metavar="FILE", type=click.Path(dir_okay=False), help="Begin with the variables saved in FILE."
)
@click.option("--files", is_flag=True, help="Its checkpoints keep the files of its directory too.")
@click.option("--share", type=click.Choice(["read", "write"]), help="Share it with everyone, to read or to use.")
@with_common_options
def new(
    context: CommandContext,
    name: str | None,
    runtime: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    reuse: bool,
    source: str | None,
    files: bool,
    share: str | None,
) -> None:
    """Open a session and print its name (or its id if it has none)."""
    if source is not None and reuse:
        raise click.UsageError("--from needs a new session, so it cannot be used with --reuse")
    with context.client() as client:
        directory = directory_for_new(cwd, client.address.endpoint)
        wanted, found = runtime_for_new(runtime, directory)
        try:
            if found is not None and source is not None and not _is_python(source):
                wanted, found = None, None
            more = {"cwd_needed": cwd is not None, "checkpoint_files": files or None}
            reply = client.new(name, wanted, directory, parse_env(env), reuse, source, **more)
        except OSError as error:
            raise click.UsageError(f"{source} cannot be read: {error.strerror}") from None
        if share:
            client.share(reply.session or "", share)
    context.show(
        reply_fields(reply, *_NEW_FIELDS),
        reply.name or reply.session or "",
    )
    if source is not None:
        _notice(context, f"restored {count_of(reply.count, 'variable')} ({count_of(reply.bytes, 'byte')})")
        for each in reply.skipped or []:
            _notice(context, f"not restored: {each.name}: {each.why}")
    if reply.cause:
        _notice(context, f"the previous session of this name was lost: {reply.cause}")
    if reply.notice:
        _notice(context, reply.notice)
    if found and reply.created:
        _notice(context, f"uses the environment {found} found here (--runtime python ignores it)")


@click.command(cls=SessionCommand)
@session_argument
@with_common_options
def reset(context: CommandContext, session: str) -> None:
    """Restart SESSION with a fresh worker. Variables are lost; name, directory and environment stay."""
    with context.client() as client:
        reply = client.reset(session)
    context.show(reply_fields(reply, "session", "name", "epoch", "state", "notice"))
    _notice(context, f"session {session!r} was reset (epoch {reply.epoch}); its variables are lost")
    if reply.notice:
        _notice(context, reply.notice)


@click.command()
@click.argument("sessions", nargs=-1, metavar="[SESSION]...", type=SessionName())
@click.option("--all", "everything", is_flag=True, help="Close all your sessions, or those that the options choose.")
@with_session_filter
@with_common_options
def close(context: CommandContext, sessions: tuple[str, ...], everything: bool, chosen: SessionFilter) -> int:
    """Close sessions and end everything they started. If one fails, the others are still closed.

    A condition such as --idle 1h chooses among your sessions; sessions of others must be named.
    """
    everything = everything or chosen != SessionFilter()
    if everything == bool(sessions):
        raise click.UsageError(
            "name sessions, or choose among yours with --all, --idle, --state, --runtime, --of-agent"
        )
    failed: list[ReplError] = []
    closed: list[str] = []
    with context.client(start=not everything) as client:
        if everything:
            identity = client.describe().identity
            sessions = tuple(each.ref for each in chosen.choose(client.sessions()) if each.owner == identity)
        for session in sessions:
            try:
                client.close(session)
                closed.append(session)
            except ReplError as error:
                failed.append(error)
    if len(sessions) == len(failed) == 1:
        return context.fail(failed[0])
    code = failed[0].exit if failed else ExitCode.OK
    errors = [{"code": each.code, "err": each.message} for each in failed]
    context.show({"status": ["done"], "closed": closed, "failed": errors, "exit": code})
    for each in failed:
        _notice(context, each.message)
    if closed or not failed:
        _notice(context, "closed " + (", ".join(closed) or "none: no session of yours is like that"))
    return code


@click.command(cls=SessionCommand)
@session_argument
@click.option(
    "--id", "eval_id", type=click.IntRange(min=0), metavar="N", help="Interrupt this eval, running or queued."
)
@click.option("--all", "everything", is_flag=True, help="Interrupt the running eval and clear the queue.")
@with_common_options
def interrupt(context: CommandContext, session: str, eval_id: int | None, everything: bool) -> None:
    """Interrupt the eval that SESSION runs. It is not an error if nothing runs."""
    with context.client() as client:
        reply = client.interrupt(session, eval_id, everything)
    context.show(reply_fields(reply, "interrupted", "interrupted-id"))
    which = f"eval {reply.interrupted_id} of {session}" if reply.interrupted_id else session
    _notice(context, f"interrupted {which}" if reply.interrupted else f"nothing to interrupt in {session}")


@click.command(cls=SessionCommand)
@session_argument
@click.argument("text")
@click.option("-n", "bare", is_flag=True, help="Do not add a newline.")
@with_common_options
def stdin(context: CommandContext, session: str, text: str, bare: bool) -> None:
    """Send TEXT and a newline to the eval that SESSION runs, or to the next one that reads; - sends stdin unchanged."""
    if text == "-":
        with open(0, "rb", closefd=False) as piped:
            text = piped.read().decode("utf-8", "replace")
    elif not bare:
        text += "\n"
    with context.client() as client:
        for begin in range(0, max(1, len(text)), _MANY):
            reply = client.stdin(session, text[begin : begin + _MANY])
    context.show(reply_fields(reply, "delivered", "buffered"))
    if reply.buffered:
        _notice(context, f"{session} is not reading input now; buffered for later")


@click.command(cls=SessionCommand)
@session_argument
@click.argument("to")
@with_common_options
def clone(context: CommandContext, session: str, to: str) -> None:
    """Clone SESSION to a new session TO with copies of its variables; variables that cannot be copied are listed."""
    with context.client() as client:
        reply = client.clone(session, to)
    left = reply.skipped or []
    data = {
        "status": reply.status,
        "session": reply.session,
        "name": reply.name,
        "count": reply.count,
        "bytes": reply.bytes,
        "skipped": left,
        "notice": reply.notice,
    }
    context.show(data, reply.name or "")
    if not context.json:
        context.screen.notice(f"copied {count_of(reply.count, 'variable')} ({count_of(reply.bytes, 'byte')})")
        if reply.notice:
            context.screen.notice(reply.notice)
        for each in left:
            context.screen.notice(f"not copied: {each.name}: {each.why}")


@click.command(cls=SessionCommand)
@session_argument
@with_common_options
def hibernate(context: CommandContext, session: str) -> None:
    """Store SESSION's variables and end its processes. The next eval brings them back; what cannot be is listed."""
    with context.client() as client:
        reply = client.hibernate(session)
    context.show(reply_fields(reply, "session", "name", "epoch", "state", "count", "bytes", "skipped"))
    _notice(context, f"stored {count_of(reply.count, 'variable')} ({count_of(reply.bytes, 'byte')}) of {session!r}")
    for each in reply.skipped or []:
        _notice(context, f"not stored: {each.name}: {each.why}")


@click.command(cls=SessionCommand)
@session_argument
@click.argument("to", type=click.Choice(["plan", "normal"]))
@click.option("--reason", metavar="TEXT", help="Reason shown with refused requests.")
@with_common_options
def mode(context: CommandContext, session: str, to: str, reason: str | None) -> None:
    """Put SESSION into plan mode, which refuses every change, or back to normal."""
    with context.client() as client:
        reply = client.set_mode(session, to, reason)
    data = {"status": reply.status, "session": reply.session, "name": reply.name, "session-mode": reply.session_mode}
    context.show(data, f"{reply.name or reply.session}: {reply.session_mode}")


@click.command(cls=SessionCommand)
@session_argument
@click.argument("level", type=click.Choice(["read", "write", "none"]))
@click.option(
    "--with", "who", metavar="WHO", default="*", help="Identity, such as uid:1001 or a key's name. [everyone]"
)
@with_common_options
def share(context: CommandContext, session: str, level: str, who: str) -> None:
    """Let others read SESSION (read) or use it (write), or withdraw that (none)."""
    with context.client() as client:
        reply = client.share(session, level, who)
    shares = reply.shares or {}
    data = {"status": reply.status, "session": reply.session, "name": reply.name, "shares": shares}
    context.show(data, *(f"{'everyone' if who == '*' else who}: {level}" for who, level in shares.items()))
    if not shares and not context.json:
        context.screen.notice(f"session {session!r} is not shared")


@click.command("transfer", cls=SessionCommand)
@session_argument
@click.option("--to", "who", metavar="WHO", required=True, help="Identity, such as uid:1001 or a key's name.")
@with_common_options
def transfer(context: CommandContext, session: str, who: str) -> None:
    """Offer SESSION to another identity, or accept one offered to you. Immediate for an administrator."""
    with context.client() as client:
        reply = client.transfer(session, who)
    data = {
        "status": reply.status,
        "session": reply.session,
        "name": reply.name,
        "owner": reply.owner,
        "offered-to": reply.offered_to,
    }
    context.show(data, reply.owner or "")
    if reply.offered_to is not None and not context.json:
        taken = f"replctl transfer {reply.owner}/{reply.name or reply.session} --to {reply.offered_to}"
        context.screen.notice(f"offered to {reply.offered_to}, who accepts with: {taken}")


def _is_python(file: str) -> bool:
    """Return whether a Python session was saved in a file."""
    from replctl.client.snapshots import read_header

    return read_header(file).runtime == "python"


def _notice(context: CommandContext, text: str) -> None:
    if not context.json:
        context.screen.notice(text)

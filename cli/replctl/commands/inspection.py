"""Commands that inspect a session: complete, lookup, vars, history, stack."""

from __future__ import annotations

import click
import msgspec

from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    default_session_argument,
    optional_session_argument,
    session_option,
    with_common_options,
)
from replctl.commands.listing import format_variable
from replctl.durations import format_duration
from replwire.identifiers import DEFAULT_SESSION
from replwire.replies import Reply, StackFrame

_DOC_LINES = 20  # lines of documentation that `lookup` shows


@click.command()
@click.argument("code")
@session_option
@click.option("--pos", type=click.IntRange(min=0), metavar="N", help="Cursor position in characters. [the end]")
@click.option("--runtime", metavar="NAME", help="Use an ephemeral session of this runtime.")
@with_common_options
def complete(context: CommandContext, code: str, session: str, pos: int | None, runtime: str | None) -> None:
    """List completions for CODE, one per line, without running session code."""
    with context.client() as client:
        reply = client.complete(code, pos, None if runtime else session, runtime)
    found = reply.completions or []
    context.show({"status": ["done"], "completions": found, "start": reply.start}, *(each.text for each in found))


@click.command()
@click.argument("symbol")
@session_option
@click.option("--module", metavar="NAME", help="Module to look in. [the session's variables]")
@with_common_options
def lookup(context: CommandContext, symbol: str, session: str, module: str | None) -> int:
    """Show signature, type and docs of SYMBOL (like `?` in IPython). The exit code is 4 if it is not defined."""
    with context.client() as client:
        reply = client.lookup(symbol, session, module)
    keys = ("found", "name", "type", "signature", "doc", "methods", "file", "line")
    data = msgspec.to_builtins(reply)
    lines = describe_name(reply, symbol, _DOC_LINES) if reply.found else []
    context.show({"status": ["done"], **{key: data.get(key) for key in keys}}, *lines)
    if not reply.found and not context.json:
        context.screen.notice(f"name {symbol!r} is not defined in session {session!r}")
    return 0 if reply.found else 4


def describe_name(reply: Reply, symbol: str, doc_lines: int) -> list[str]:
    """Return the answer of `lookup` as lines: signature and type, place, docs up to a number of lines, methods."""
    name, signature = reply.name or symbol, reply.signature or ""
    head = f"{name + signature if signature[:1] in ('', '(') else signature}: {reply.type}"
    place = [f"{reply.file}:{reply.line}" if reply.line else reply.file] if reply.file else []
    doc = (reply.doc or "").splitlines()
    methods = [each for each in reply.methods or [] if each != name + signature]
    return [head, *place, *doc[:doc_lines], *(["…"] if len(doc) > doc_lines else []), *methods]


@click.command("vars", cls=SessionCommand)
@default_session_argument
@with_common_options
def vars_(context: CommandContext, session: str) -> None:
    """List SESSION's variables with type, size and a preview."""
    with context.client() as client:
        facts = client.info(session)
    rows = facts.get("variables")
    total = facts.get("variables-total", 0)
    context.show({"status": ["done"], "variables": rows, "count": total}, *map(format_variable, rows or []))
    if rows is None and not context.json:
        context.screen.notice(
            f"the variables of {session} are not available: it is running an eval, has no worker, or cannot list them"
        )
    elif total > len(rows or []) and not context.json:
        context.screen.notice(f"{total - len(rows or [])} more are not shown")


@click.command(cls=SessionCommand)
@optional_session_argument
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Show the last N.")
@click.option("--grep", metavar="TEXT", help="Only entries that contain TEXT.")
@click.option(
    "--search", metavar="TEXT", help="Search transcripts, also of closed sessions: code, output, values, errors."
)
@with_common_options
def history(
    context: CommandContext, session: str | None, limit: int | None, grep: str | None, search: str | None
) -> int | None:
    """Show the code sent to SESSION, oldest first, across resets. --search without SESSION searches all."""
    if search is not None:
        from replctl.commands.transcripts import search as search_past  # needs no broker

        return search_past(context, session, search, limit)
    session = session or DEFAULT_SESSION
    with context.client() as client:
        reply = client.history(session, limit, grep)
    entries = reply.history or []
    if context.json:
        context.screen.json({"status": ["done"], "session": session, "history": entries, "count": reply.count})
        return None
    for entry in entries:
        end = " ".join(word for word in entry.status if word != "done") or ("ok" if entry.status else "unfinished")
        end += ", undone" if entry.undone else ""
        took = "" if entry.duration_ms is None else f", {format_duration(entry.duration_ms)}"
        context.screen.line(f"# {entry.eval_id} ({end}{took}, epoch {entry.epoch})")
        context.screen.block(entry.code)
    return None


@click.command(cls=SessionCommand)
@default_session_argument
@with_common_options
def stack(context: CommandContext, session: str) -> None:
    """Show the current stack of SESSION without stopping it, and its processes."""
    with context.client() as client:
        reply = client.stack(session)
    threads, processes = reply.threads or [], reply.processes or []
    lines = []
    for thread in threads:
        lines += [thread.name, *(f"  {_frame(frame)}" for frame in thread.frames)]
    lines += [f"process {each.pid}  {each.command}" for each in processes]
    context.show({"status": ["done"], "threads": threads, "processes": processes}, *lines)


def _frame(frame: StackFrame) -> str:
    return f"{frame.func} at {frame.file}:{frame.line}"

"""Commands that list sessions and evals: ls, jobs, info."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from replctl.client.errors import ReplError
from replctl.client.sync import Client
from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    default_session_argument,
    optional_session_argument,
    with_common_options,
)
from replctl.commands.output import CommandOutput
from replctl.commands.session_filter import SessionFilter, with_session_filter
from replctl.durations import format_duration
from replwire.identifiers import DEFAULT_SESSION
from replwire.limits import limit_rows
from replwire.replies import JobEntry, SessionEntry

_JOB_COLUMNS = ("ID", "STATE", "END", "EPOCH", "AGENT", "TOOK", "CODE")
_LINE = 60  # characters of an eval's code that `jobs` shows


@click.command()
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("-q", "--quiet", is_flag=True, help="Print the names alone, one per line, for other commands.")
@click.option(
    "--saved", is_flag=True, help="List variables without a process: hibernated sessions, and files of saved ones here."
)
@with_session_filter
@with_common_options
def ls(context: CommandContext, patterns: tuple[str, ...], quiet: bool, saved: bool, chosen: SessionFilter) -> None:
    """List sessions: all, or those whose name matches a PATTERN such as 'train-*'."""
    with context.client() as client:
        sessions = chosen.choose(client.sessions(), patterns)
    if saved:
        show_saved(context, [each for each in sessions if each.hibernated is not None])
    elif context.json:
        context.screen.json({"status": ["done"], "sessions": sessions})
    elif quiet:
        for entry in sessions:
            context.screen.line(entry.ref)
    elif not sessions:
        context.screen.notice("no sessions")
    else:
        now = time.time()
        context.screen.table(
            ("NAME", "STATE", "RUNTIME", "EPOCH", "EVALS", "QUEUED", "AGE", "OWNER", "AGENT", "DIRECTORY"),
            (
                (
                    display_name(entry),
                    entry.state,
                    entry.runtime,
                    entry.epoch,
                    entry.eval_count,
                    entry.queued,
                    format_duration(max(0.0, now - entry.created_at) * 1000),
                    entry.owner,
                    entry.agent,
                    entry.cwd,
                )
                for entry in sessions
            ),
        )


def show_saved(context: CommandContext, hibernated: Sequence[SessionEntry]) -> None:
    """Print hibernated sessions, and the saved ones in files of the current directory."""
    from replctl.client.snapshots import list_saved  # hashing and temporary files, which few commands need

    files = list_saved(os.getcwd())
    if context.json:
        found = [{"file": name} | msgspec.to_builtins(header) for name, header in files]
        context.screen.json({"status": ["done"], "sessions": hibernated, "files": found})
        return
    rows = [
        (display_name(each), each.runtime, stored.since[:19], stored.count, stored.bytes, len(stored.skipped), "eval")
        for each in hibernated
        if (stored := each.hibernated) is not None
    ]
    rows += [
        (name, each.runtime, each.saved_at[:19], each.count, each.bytes, len(each.skipped), "new NAME --from")
        for name, each in files
    ]
    if rows:
        context.screen.table(("NAME", "RUNTIME", "SAVED", "VARIABLES", "BYTES", "SKIPPED", "BACK WITH"), rows)
    else:
        context.screen.notice("no hibernated session, and no file of a saved one here")


def display_name(entry: SessionEntry) -> str:
    """Return a session's name for this caller; `default` for another project's, which its directory identifies."""
    return entry.name if entry.name == DEFAULT_SESSION and "/" not in entry.ref else entry.ref


@click.command(cls=SessionCommand)
@optional_session_argument
@with_common_options
def jobs(context: CommandContext, session: str | None) -> None:
    """List SESSION's queued, running and recent evals; without SESSION, what runs or waits in any session."""
    with context.client() as client:
        if session is None:
            _show_active_jobs(context, client)
            return
        entries = client.jobs(session)
    if context.json:
        context.screen.json({"status": ["done"], "session": session, "jobs": entries})
    else:
        show_jobs(context.screen, entries)


def _show_active_jobs(context: CommandContext, client: Client) -> None:
    found = []
    for each in client.sessions():
        if each.running is None and not each.queued:
            continue
        try:
            found += [(each, job) for job in client.jobs(each.session) if job.state != "done"]
        except ReplError as error:
            if error.code != "session-not-found":  # closed meanwhile
                raise
    if context.json:
        rows = [{"session": each.session, "name": each.name} | msgspec.to_builtins(job) for each, job in found]
        context.screen.json({"status": ["done"], "session": None, "jobs": rows})
    elif found:
        context.screen.table(("SESSION", *_JOB_COLUMNS), ((display_name(each), *_job(job)) for each, job in found))
    else:
        context.screen.notice("nothing is running or queued")


def show_jobs(screen: CommandOutput, entries: Sequence[JobEntry]) -> None:
    """Print the evals of a session as a table."""
    if entries:
        screen.table(_JOB_COLUMNS, map(_job, entries))
    else:
        screen.notice("no evals")


def _job(entry: JobEntry) -> tuple[Any, ...]:
    end = " ".join(word for word in entry.status if word != "done") or ("ok" if "done" in entry.status else None)
    if entry.undone:
        end = f"{end}, undone"
    took = None if entry.duration_ms is None else format_duration(entry.duration_ms)
    code = " ".join(entry.code.split())
    short = code if len(code) <= _LINE else code[: _LINE - 1] + "…"
    return entry.eval_id, entry.state, end, entry.epoch, entry.agent, took, short


@click.command(cls=SessionCommand)
@default_session_argument
@click.option("--no-variables", is_flag=True, help="Do not list variables.")
@with_common_options
def info(context: CommandContext, session: str, no_variables: bool) -> None:
    """Show details of SESSION."""
    with context.client() as client:
        facts = client.info(session, variables=not no_variables)
    if context.json:
        context.screen.json({"status": ["done"], "info": facts})
        return
    for line in format_facts(facts):
        context.screen.line(line)


def format_facts(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reply of `info` as lines: facts, then variables; of the limits only those that are not the default."""
    facts = dict(facts)
    variables = facts.pop("variables", None)
    if isinstance(limits := facts.get("limits"), dict):
        usual = {bound.name: bound.default for bound in limit_rows()}
        facts["limits"] = {k: v for k, v in limits.items() if v != usual.get(k)} or "defaults"
    width = max((len(key) for key in facts), default=0)
    for key, value in facts.items():
        yield f"{key.ljust(width)}  {format_value(value)}"
    if isinstance(variables, list) and variables:
        yield "variables"
        yield from (f"  {format_variable(entry)}" for entry in variables if isinstance(entry, dict))


def format_value(value: Any) -> str:
    """Return a value on one line."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_value(inner)}" for key, inner in value.items()) or "-"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(format_value, value)) or "-"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def format_variable(entry: Mapping[str, Any]) -> str:
    """Return a variable on one line."""
    shape = entry.get("shape")
    measure = f" {'x'.join(map(str, shape))}" if shape else f" {entry['size']}" if entry.get("size") is not None else ""
    preview = f" = {entry['preview']}" if entry.get("preview") is not None else ""
    return f"{entry.get('name')}: {entry.get('type')}{measure}{preview}"

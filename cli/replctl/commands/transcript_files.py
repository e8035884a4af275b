"""`replctl transcripts`: list and delete transcripts. They need no broker."""

from __future__ import annotations

import time

import click

from replctl.commands.output import CommandOutput
from replctl.commands.params import Duration
from replctl.commands.transcripts import open_transcripts
from replctl.durations import format_duration
from replctl.transcripts.store import TranscriptInfo, TranscriptReader
from replwire.faults import ExitCode
from replwire.quantities import count_of

_HEAD = ("NAME", "SESSION", "RUNTIME", "BEGUN", "LAST", "BYTES")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")


@click.group()
def transcripts() -> None:
    """List and delete transcripts, of open and of closed sessions."""


@transcripts.command("ls")
@click.argument("name", required=False)
@_json_option
def ls_(name: str | None, as_json: bool) -> int:
    """List transcripts, the last used first: all, or those of sessions named NAME."""
    with open_transcripts() as store:
        heads = store.heads(name)
    screen = CommandOutput()
    if as_json:
        screen.json({"status": ["done"], "transcripts": [head._asdict() for head in heads]})
    elif heads:
        screen.table(_HEAD, map(_row, heads))
    else:
        screen.notice("no transcripts")
    return ExitCode.OK if heads or name is None else ExitCode.NAME


@transcripts.command()
@click.argument("names", nargs=-1, metavar="[NAME|SESSION]...")
@click.option("--older-than", type=Duration(), metavar="AGE", help="Only those not written to for this long, as 30d.")
@click.option("--all", "everything", is_flag=True, help="All of them, or with --older-than all that are that old.")
@_json_option
def rm(names: tuple[str, ...], older_than: float | None, everything: bool, as_json: bool) -> int:
    """Delete transcripts for good, by session name (each that had it) or id. Those of open sessions stay."""
    if everything == bool(names):
        raise click.UsageError("name sessions, or give --all")
    with open_transcripts() as store:
        chosen = _choose(store, names or (None,), older_than)
        results = [(head, store.remove(head)) for head in chosen]
    removed = [head for head, is_removed in results if is_removed]
    in_use = [head for head, is_removed in results if not is_removed]
    screen = CommandOutput()
    if as_json:
        facts = {"removed": [head.session for head in removed], "in-use": [head.session for head in in_use]}
        screen.json({"status": ["done"], **facts})
    else:
        amount = sum(head.bytes for head in removed)
        screen.notice(f"deleted {count_of(len(removed), 'transcript')} ({count_of(amount, 'byte')})")
        for head in in_use:
            screen.notice(f"kept {head.label}: its session is open; replctl close {head.label} ends it")
    if in_use and not everything:
        return ExitCode.REFUSED
    return ExitCode.OK if chosen or everything else ExitCode.NAME


def _choose(store: TranscriptReader, names: tuple[str | None, ...], older_than: float | None) -> list[TranscriptInfo]:
    oldest = time.time() - (older_than or 0.0)
    found = {head.session: head for name in names for head in store.heads(name) if head.updated <= oldest}
    return list(found.values())


def _row(head: TranscriptInfo) -> tuple[object, ...]:
    age = format_duration(max(0.0, time.time() - head.updated) * 1000)
    return head.name, head.session, head.runtime, head.created[:19].replace("T", " "), f"{age} ago", head.bytes

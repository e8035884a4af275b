"""Commands on transcripts: search, export, replay. Only replay needs a broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click
import msgspec

from replctl.client.result import Result
from replctl.client.sync import Client
from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    session_argument,
    with_common_options,
)
from replctl.commands.output import CommandOutput
from replctl.commands.params import Duration
from replctl.durations import format_duration
from replctl.transcripts import export as formats
from replctl.transcripts.entries import (
    SessionTranscript,
    TranscriptEntry,
    add_origin,
    entries_only,
    parse_lines,
    read_transcript,
    to_entries,
)
from replctl.transcripts.replay import ReplayReport
from replctl.transcripts.replay import replay as run_again
from replctl.transcripts.store import TranscriptInfo, TranscriptReader, header_entry
from replwire.faults import ExitCode
from replwire.quantities import count_of
from replwire.terminal import escape_json


@contextmanager
def open_transcripts() -> Iterator[TranscriptReader]:
    """Open this user's transcripts; a read error becomes a click error."""
    try:
        with closing(TranscriptReader()) as store:
            yield store
    except OSError as error:
        raise click.ClickException(f"cannot read transcripts: {error}") from None


def search(context: CommandContext, session: str | None, text: str, limit: int | None) -> int:
    """Print evals with this text in code, output, value or error; all sessions if `session` is None."""
    wanted: dict[str, set[int]] = {}
    with open_transcripts() as store:
        heads = store.heads(session)
        for head in heads if session is not None else [None]:
            for entry in store.search(text, head):
                wanted.setdefault(str(entry.get("session")), set()).add(entry.get("eval", 0))
        found = [
            (head, turn)
            for head in reversed(heads)
            if head.session in wanted
            for turn in entries_only(to_entries(store.load(head)))
            if turn.eval_id in wanted[head.session]
        ]
    shown = found[-limit:] if limit else found
    if context.json:
        rows = [{"session": head.session, "name": head.name} | msgspec.to_builtins(turn) for head, turn in shown]
        context.screen.json({"status": ["done"], "session": session, "found": rows, "count": len(found)})
    for head, turn in shown if not context.json else ():
        context.screen.line(
            f"# {head.label} {turn.eval_id} ({_describe_end(turn)}, {turn.time[:19].replace('T', ' ')})"
        )
        context.screen.block(turn.code)
        for line in _matching_lines(turn, text):
            context.screen.line(f"#   {line}")
    if not found and not context.json:
        context.screen.notice(f"no transcript{'' if session is None else f' of {session!r}'} contains this text")
    return ExitCode.OK if found else ExitCode.NAME


def _describe_end(turn: TranscriptEntry) -> str:
    took = "" if turn.duration_ms is None else f", {format_duration(turn.duration_ms)}"
    return (turn.status or "unfinished") + took


def _matching_lines(turn: TranscriptEntry, text: str) -> list[str]:
    """Return lines of the outcome that contain the text."""
    came = "\n".join(part for part in (turn.out, turn.err, turn.value, turn.error) if part)
    return [line[:200] for line in came.splitlines() if text.casefold() in line.casefold()][:5]


class _UnknownTranscript(click.ClickException):
    exit_code = ExitCode.NAME


def _find_head(store: TranscriptReader, session: str) -> TranscriptInfo:
    heads = store.heads(session)
    if not heads:
        raise _UnknownTranscript(f"no transcript of session {session!r} (replctl transcripts ls lists them)")
    return heads[0]


@click.command(cls=SessionCommand)
@session_argument
@click.option(
    "--format", "kind", type=click.Choice(formats.FORMATS), default="ipynb", show_default=True, help="Output format."
)
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to FILE instead of stdout.")
def export(session: str, kind: str, out: Path | None) -> int:
    """Export the transcript of SESSION (name or id, newest first) as notebook, script, page or events."""
    with open_transcripts() as store:
        head = _find_head(store, session)
        entries = list(store.load(head))
    if kind == "jsonl":
        text = "".join(
            escape_json(msgspec.json.encode(entry).decode()) + "\n" for entry in (header_entry(head), *entries)
        )
    else:
        make = {"ipynb": formats.notebook, "py": formats.script, "md": formats.page}[kind]
        text = make(to_entries(entries), f"{head.label}, {head.created[:19].replace('T', ' ')}", head.runtime)
    if out is None:
        if os.isatty(1):
            CommandOutput().block(text.removesuffix("\n"))
        else:
            CommandOutput().live("out", text)
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"cannot write {out}: {error.strerror}") from None
    return ExitCode.OK


@click.command()
@click.argument("file")
@click.option("--into", required=True, metavar="NAME", help="Session to run in, created if it does not exist.")
@click.option("--exact", is_flag=True, help="Compare memory addresses as well.")
@click.option("--timeout", type=Duration(), metavar="DURATION", help="Time limit of each eval.")
@with_common_options
def replay(context: CommandContext, file: str, into: str, exact: bool, timeout: float | None) -> int:
    """Run the evals of a transcript again and report differences. The exit code is 1 if there are any.

    FILE is a transcript exported as jsonl, or the name of a session.
    """
    then = _read_transcript(file)
    with context.client() as client:
        client.new(into, then.runtime or None, reuse=True)
        runtime = client.info(into)["runtime"]
        if then.runtime not in ("", runtime):
            raise click.UsageError(f"session {into!r} runs {runtime}, but the transcript is for {then.runtime}")
        report = run_again(
            then.parts,
            lambda code: _run_eval(client, code, into, timeout),
            lambda: discard_result(client.reset(into)),
            names=[name for name in (*then.sources, then.label, into) if name],
            exact=exact,
        )
    _show_report(context, report, into)
    return ExitCode.RAISED if report.drifts else ExitCode.OK


def _run_eval(client: Client, code: str, into: str, timeout: float | None) -> Result:
    return client.eval(code, into, timeout=timeout, allow_stdin=False)


def discard_result(_: object) -> None:
    """Discard a value, for a lambda that must return None."""


def _read_transcript(file: str) -> SessionTranscript:
    path = Path(file)
    try:
        with open_transcripts() as store:

            def load(session: str) -> SessionTranscript | None:
                heads = store.heads(session)
                return read_transcript([header_entry(heads[0]), *store.load(heads[0])]) if heads else None

            if path.is_file():
                with path.open("rb") as data:
                    return add_origin(read_transcript(parse_lines(data)), load)
            head = _find_head(store, file)
            return add_origin(read_transcript([header_entry(head), *store.load(head)]), load)
    except ValueError:
        raise click.UsageError(f"{file} is not a transcript: create one with replctl export --format jsonl") from None


def _show_report(context: CommandContext, report: ReplayReport, into: str) -> None:
    if context.json:
        drifted = [
            {"eval-id": each.eval_id, "code": each.code, "what": each.what, "diff": each.diff} for each in report.drifts
        ]
        skipped = [{"eval-id": number, "why": why} for number, why in report.skipped]
        facts = {"ran": report.run_count, "drifted": drifted, "skipped": skipped, "missing": report.missing}
        context.screen.json({"status": ["done"], "into": into, **facts})
        return
    for drift in report.drifts:
        context.screen.line(f"eval {drift.eval_id}: {', '.join(drift.what)} differ")
        context.screen.block("\n".join(drift.diff))
    for number, why in report.skipped:
        context.screen.notice(f"eval {number} skipped: {why}")
    if report.missing:
        context.screen.notice(
            f"{count_of(report.missing, 'event')} missing from the transcript; their code was not run again"
        )
    count = len(report.drifts)
    context.screen.line(f"{count_of(report.run_count, 'eval')} run again in {into!r}: {count or 'none'} differed")

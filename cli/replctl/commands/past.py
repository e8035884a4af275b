"""Commands about what was: search in transcripts, export one, run one again. They ask no broker, but for the last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from replctl.client.result import Result
from replctl.client.sync import Client
from replctl.commands.common import Face, common
from replctl.commands.durations import Duration, spoken
from replctl.commands.screen import Screen
from replctl.past import export as formats
from replctl.past.replay import Report
from replctl.past.replay import replay as run_again
from replctl.past.store import Head, Store, header
from replctl.past.turns import Past, Turn, fold, lines, only_turns, past
from replwire.faults import Exit
from replwire.terminal import escape_json


@contextmanager
def _transcripts() -> Iterator[Store]:
    """This user's. What cannot be read is told in a line."""
    try:
        yield Store()
    except OSError as error:
        raise click.ClickException(f"transcripts cannot be read: {error}") from None


def search(face: Face, session: str | None, text: str, limit: int | None) -> int:
    """Turns with this text in code, output, value or error: of all transcripts of a session's name, or of all."""
    wanted: dict[str, set[int]] = {}
    with _transcripts() as store:
        heads = store.heads(session)
        for head in heads if session is not None else [None]:
            for entry in store.search(text, head):
                wanted.setdefault(str(entry.get("session")), set()).add(entry.get("eval", 0))
        found = [
            (head, turn)
            for head in reversed(heads)
            if head.session in wanted
            for turn in only_turns(fold(store.load(head)))
            if turn.eval_id in wanted[head.session]
        ]
    shown = found[-limit:] if limit else found
    if face.json:
        rows = [{"session": head.session, "name": head.name} | msgspec.to_builtins(turn) for head, turn in shown]
        face.screen.json({"status": ["done"], "session": session, "found": rows, "count": len(found)})
    for head, turn in shown if not face.json else ():
        face.screen.line(f"# {head.label} {turn.eval_id} ({_how(turn)}, {turn.time[:19].replace('T', ' ')})")
        face.screen.block(turn.code)
        for line in _with_text(turn, text):
            face.screen.line(f"#   {line}")
    if not found and not face.json:
        face.screen.notice(f"no transcript{'' if session is None else f' of {session!r}'} has this text")
    return Exit.OK if found else Exit.NAME


def _how(turn: Turn) -> str:
    took = "" if turn.duration_ms is None else f", {spoken(turn.duration_ms)}"
    return (turn.status or "not ended") + took


def _with_text(turn: Turn, text: str) -> list[str]:
    """The lines of what came of it that have the text."""
    came = "\n".join(part for part in (turn.out, turn.err, turn.value, turn.error) if part)
    return [line[:200] for line in came.splitlines() if text.casefold() in line.casefold()][:5]


class _Unknown(click.ClickException):
    exit_code = Exit.NAME


def _head(store: Store, session: str) -> Head:
    heads = store.heads(session)
    if not heads:
        raise _Unknown(f"no transcript of a session {session!r} (replctl history --search looks in all)")
    return heads[0]


@click.command()
@click.argument("session")
@click.option(
    "--format", "kind", type=click.Choice(formats.FORMATS), default="ipynb", show_default=True, help="Of what."
)
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to. [stdout]")
def export(session: str, kind: str, out: Path | None) -> int:
    """The transcript of SESSION (name or id; of several the newest) as a notebook, script, page or its events."""
    with _transcripts() as store:
        head = _head(store, session)
        entries = list(store.load(head))
    if kind == "jsonl":
        text = "".join(escape_json(msgspec.json.encode(entry).decode()) + "\n" for entry in (header(head), *entries))
    else:
        make = {"ipynb": formats.notebook, "py": formats.script, "md": formats.page}[kind]
        text = make(fold(entries), f"{head.label}, {head.created[:19].replace('T', ' ')}", head.runtime)
    if out is None:
        if os.isatty(1):
            Screen().block(text.removesuffix("\n"))
        else:
            Screen().live("out", text)
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"cannot write {out}: {error.strerror}") from None
    return Exit.OK


@click.command()
@click.argument("file")
@click.option("--into", required=True, metavar="NAME", help="A session, opened when it is not there.")
@click.option("--exact", is_flag=True, help="Memory addresses count as well.")
@click.option("--timeout", type=Duration(), metavar="DURATION", help="For each eval.")
@common
def replay(face: Face, file: str, into: str, exact: bool, timeout: float | None) -> int:
    """Run the evals of FILE, a transcript exported as jsonl (or the name of a session), again, and tell what came out
    differently. Exit code 1 when anything did."""
    then = _read(file)
    with face.client() as client:
        client.new(into, then.runtime or None, reuse=True)
        runtime = client.info(into)["runtime"]
        if then.runtime not in ("", runtime):
            raise click.UsageError(f"session {into!r} runs {runtime}, and the transcript is of {then.runtime}")
        report = run_again(
            then.found,
            lambda code: _run(client, code, into, timeout),
            lambda: void(client.reset(into)),
            names=[name for name in (then.label, into) if name],
            exact=exact,
        )
    _tell(face, report, into)
    return Exit.RAISED if report.drifted else Exit.OK


def _run(client: Client, code: str, into: str, timeout: float | None) -> Result:
    return client.eval(code, into, timeout=timeout, allow_stdin=False)


def void(_: object) -> None:
    """For a lambda that is to return nothing."""


def _read(file: str) -> Past:
    path = Path(file)
    try:
        with _transcripts() as store:
            if path.is_file():
                with path.open("rb") as data:
                    return past(lines(data))
            head = _head(store, file)
            return past([header(head), *store.load(head)])
    except ValueError:
        raise click.UsageError(f"{file} is no transcript: make one with replctl export --format jsonl") from None


def _tell(face: Face, report: Report, into: str) -> None:
    if face.json:
        drifted = [
            {"eval-id": each.eval_id, "code": each.code, "what": each.what, "diff": each.diff}
            for each in report.drifted
        ]
        skipped = [{"eval-id": number, "why": why} for number, why in report.skipped]
        facts = {"ran": report.ran, "drifted": drifted, "skipped": skipped, "missing": report.missing}
        face.screen.json({"status": ["done"], "into": into, **facts})
        return
    for drift in report.drifted:
        face.screen.line(f"eval {drift.eval_id}: {', '.join(drift.what)} differ")
        face.screen.block("\n".join(drift.diff))
    for number, why in report.skipped:
        face.screen.notice(f"eval {number} was not run again: {why}")
    if report.missing:
        face.screen.notice(f"{report.missing} events are missing in the transcript: what they ran was not run again")
    count = len(report.drifted)
    face.screen.line(f"{report.ran} evals run again in {into!r}: {count or 'none'} came out differently")

"""`replctl audit`: the log of requests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from replctl.commands.output import CommandOutput
from replctl.commands.params import Duration
from replctl.durations import format_duration
from replwire.paths import state_dir

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_HEAD = ("TIME", "WHO", "AGENT", "OP", "SESSION", "OUTCOME", "TOOK", "CLIENT")


@click.command()
@click.option("--op", metavar="OP", help="Only this operation.")
@click.option("-s", "--session", metavar="NAME", help="Only this session, as named in the requests.")
@click.option("--agent", "agent", metavar="NAME", help="Only this agent.")
@click.option("--outcome", metavar="WORD", help="Only this outcome: ok, error, a status or error code.")
@click.option("--since", type=Duration(), metavar="AGE", help="Only records younger than this.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Show the last N.")
@click.option("--json", "as_json", is_flag=True, help="One JSON record per line.")
def audit(
    op: str | None,
    session: str | None,
    agent: str | None,
    outcome: str | None,
    since: float | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the audit log: who requested what, with outcome and duration, oldest first.

    The log is read from this user's state directory, whether a broker is running or not.
    """
    wanted = {"op": op, "session": session, "agent": agent, "outcome": outcome}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    oldest = 0.0 if since is None else time.time() - since
    found = [
        record
        for record in _records(Path(state_dir(os.environ)))
        if record.get("time", 0) >= oldest and all(record.get(key) == value for key, value in wanted.items())
    ][-limit:]
    screen = CommandOutput()
    if as_json:
        for record in found:
            screen.json(record)
    elif found:
        screen.table(_HEAD, map(_row, found))
    else:
        screen.notice("no records")


def _records(directory: Path) -> Iterator[dict[str, Any]]:
    for name in ("audit.ndjson.1", "audit.ndjson"):
        try:
            with (directory / name).open("rb") as file:
                yield from _parse_lines(file)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise click.ClickException(f"cannot read {directory / name}: {error.strerror}") from None


def _parse_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):  # an incomplete line after a full disk
            continue


def _row(record: dict[str, Any]) -> tuple[Any, ...]:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["time"]))
    took = format_duration(record["latency-ms"])
    keys = ("identity", "agent", "op", "session")
    times = f" ({record['repeated']} times)" if "repeated" in record else ""
    return stamp, *(record.get(key) for key in keys), f"{record.get('outcome')}{times}", took, record["client"]

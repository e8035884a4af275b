"""A choice among sessions, for commands that act on several: by name, state, runtime, agent, rest."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import click

from replctl.commands.params import Duration
from replwire.replies import SessionEntry


@dataclass(frozen=True)
class SessionFilter:
    """Conditions that a session must meet; None for any. `idle` is seconds without a running or waiting eval."""

    state: str | None = None
    runtime: str | None = None
    agent: str | None = None
    idle: float | None = None

    def choose(self, entries: Iterable[SessionEntry], patterns: Iterable[str] = ()) -> list[SessionEntry]:
        """Return the sessions that meet the conditions, and one of the shell patterns if there are any."""
        wanted, now = list(patterns), time.time()
        return [
            each
            for each in entries
            if (not wanted or any(fnmatchcase(each.ref, pattern) for pattern in wanted)) and self._is_met(each, now)
        ]

    def _is_met(self, entry: SessionEntry, now: float) -> bool:
        facts = ((self.state, entry.state), (self.runtime, entry.runtime), (self.agent, entry.agent))
        return all(want is None or want == have for want, have in facts) and self._has_rested(entry, now)

    def _has_rested(self, entry: SessionEntry, now: float) -> bool:
        if self.idle is None:
            return True
        if entry.running is not None or entry.queued:
            return False
        return now - datetime.fromisoformat(entry.last_activity).timestamp() >= self.idle


def with_session_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a filter to a command, which receives it as `chosen`."""

    @click.option("--state", metavar="STATE", help="Only sessions in this state: idle, busy, vacant, hibernated.")
    @click.option("--runtime", metavar="NAME", help="Only sessions of this runtime.")
    @click.option("--of-agent", metavar="NAME", help="Only sessions that this agent opened.")
    @click.option("--idle", type=Duration(), help="Only sessions in which nothing has run for so long.")
    @functools.wraps(function)
    def command(
        *args: Any, state: str | None, runtime: str | None, of_agent: str | None, idle: float | None, **options: Any
    ) -> Any:
        return function(*args, chosen=SessionFilter(state, runtime, of_agent, idle), **options)

    return command

"""Context of a command: common options, client, and mapping of errors to exit codes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from replctl.client.errors import ReplError
from replctl.client.sync import Client
from replctl.commands.messages import hint_for, plan_notice
from replctl.commands.output import CommandOutput
from replctl.commands.params import SessionName
from replctl.durations import format_duration
from replwire.faults import ExitCode
from replwire.identifiers import DEFAULT_SESSION
from replwire.replies import Reply

if TYPE_CHECKING:
    from replctl.client.start import BrokerReady

Command = Callable[..., int | None]


class CommandContext:
    """One invocation of a command: its options and its output."""

    def __init__(self, endpoint: str | None, json: bool, no_start: bool, agent: str | None) -> None:
        self.endpoint = endpoint
        self.json = json
        self.start = not no_start
        self.agent = agent or os.environ.get("REPLCTL_AGENT") or "cli"
        self.screen = CommandOutput()
        self.empty_result: dict[str, Any] = {}  # template of the --json output for errors

    def client(self, start: bool = True) -> Client:
        """Return a connected client; it starts a broker if the command and the caller allow it."""
        return Client(
            self.endpoint,
            self.agent,
            start=start and self.start,
            on_start=self._on_started,
            on_mismatch=self.screen.notice,
        )

    def show(self, data: Any, *lines: str) -> None:
        """Print a command's result: `data` as JSON, or `lines` for people."""
        if self.json:
            self.screen.json(data)
        else:
            for line in lines:
                self.screen.line(line)

    def fail(self, error: ReplError) -> int:
        """Print an error and return the exit code."""
        if self.json:
            reply = error.reply
            status = reply.status if reply is not None and reply.status else ["done", "error", error.code]
            self.screen.failure(
                error.message,
                status,
                error.code,
                error.exit,
                hint=error.hint,
                retry_after_ms=error.retry_after_ms,
                blank=self.empty_result,
            )
            return error.exit
        cause = error.reply.cause if error.reply is not None else None
        self.screen.notice(f"{error.message} ({cause})" if cause and cause not in error.message else error.message)
        if (why := plan_notice(error.reply)) is not None:
            self.screen.notice(why)
        if (hint := hint_for(error.code, error.hint)) is not None:
            self.screen.notice(f"hint: {hint}")
        if error.retry_after_ms is not None:
            self.screen.notice(f"try again in {format_duration(error.retry_after_ms)}")
        return error.exit

    def _on_started(self, started: BrokerReady) -> None:
        where = ", ".join(started.listening)
        self.screen.notice(f"started a broker at {where} (pid {started.pid})")
        if started.lost_sessions:
            names = ", ".join(started.lost_sessions)
            self.screen.notice(f"the previous broker ended unexpectedly; sessions lost with it: {names}")
        for warning in started.warnings:
            self.screen.notice(warning)


def reply_fields(reply: Reply, *keys: str) -> dict[str, object]:
    """Return these fields of a reply, null if absent, and its status."""
    data = msgspec.to_builtins(reply)
    return {"status": data.get("status"), **{key: data.get(key) for key in keys}}


session_argument = click.argument("session", type=SessionName())
session_option = click.option(
    "-s",
    "--session",
    default=DEFAULT_SESSION,
    show_default=True,
    metavar="NAME",
    type=SessionName(),
    help="Session to use.",
)


def with_common_options(function: Command) -> Command:
    """Add the common options to a command. The command receives a CommandContext and returns an exit code or None."""

    @click.option("--endpoint", metavar="URL", help="Address of the broker.")
    @click.option("--json", is_flag=True, help="Print one JSON object on one line.")
    @click.option("--no-start", is_flag=True, help="Do not start a broker if none is running.")
    @click.option("--agent", metavar="NAME", help="Agent label used for fair scheduling. [REPLCTL_AGENT, or cli]")
    @functools.wraps(function)
    def command(endpoint: str | None, json: bool, no_start: bool, agent: str | None, **options: Any) -> int:
        context = CommandContext(endpoint, json, no_start, agent)
        try:
            return int(function(context, **options) or ExitCode.OK)
        except ReplError as error:
            return context.fail(error)

    return command

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
from replctl.commands.params import SessionName, suggest_name
from replctl.durations import format_duration
from replwire.faults import ExitCode
from replwire.identifiers import DEFAULT_SESSION
from replwire.replies import Reply

if TYPE_CHECKING:
    from replctl.client.start import BrokerReady

Command = Callable[..., int | None]
_BY_OPTION = "session_by_option"  # the option that takes the place of the argument


class CommandContext:
    """One invocation of a command: its options and its output."""

    def __init__(self, endpoint: str | None, json: bool, no_start: bool, agent: str | None) -> None:
        self.endpoint = endpoint
        self.json = json
        self.start = not no_start
        self.agent = agent or os.environ.get("REPLCTL_AGENT") or "cli"
        self.screen = CommandOutput()
        self.empty_result: dict[str, Any] = {}  # template of the --json output for errors
        self.session: str | None = None  # the session that the command is about

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
        if (hint := self._meant_session(error) or hint_for(error.code, error.hint)) is not None:
            self.screen.notice(f"hint: {hint}")
        if error.retry_after_ms is not None:
            self.screen.notice(f"try again in {format_duration(error.retry_after_ms)}")
        return error.exit

    def _meant_session(self, error: ReplError) -> str | None:
        """Return which session a mistyped name may have meant, or None."""
        if error.code != "session-not-found" or self.session is None:
            return None
        try:
            with self.client(start=False) as client:
                meant = suggest_name(self.session, [entry.ref for entry in client.sessions()])
        except ReplError:
            return None
        return f"did you mean {meant}? replctl ls lists sessions" if meant else None

    def _on_started(self, started: BrokerReady) -> None:
        where = ", ".join(started.listening)
        self.screen.notice(f"started a broker at {where} (pid {started.pid})")
        if started.lost_sessions:
            names = ", ".join(started.lost_sessions)
            self.screen.notice(f"{started.lost_cause}; sessions lost with it: {names}")
        for warning in started.warnings:
            self.screen.notice(warning)


def reply_fields(reply: Reply, *keys: str) -> dict[str, object]:
    """Return these fields of a reply, null if absent, and its status."""
    data = msgspec.to_builtins(reply)
    return {"status": data.get("status"), **{key: data.get(key) for key in keys}}


class SessionCommand(click.Command):
    """A command whose session is its first argument, or the option `-s`; then it has no such argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words. The option takes the place of the argument, so a first look must find it."""
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        named = isinstance(found.get(_BY_OPTION), str)
        ctx.meta[_BY_OPTION] = named
        rest = super().parse_args(ctx, args)
        take_session(ctx.params)
        return rest

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, without the argument if the option is given."""
        params = super().get_params(ctx)
        if not ctx.meta.get(_BY_OPTION):
            return params
        return [each for each in params if not (isinstance(each, click.Argument) and each.name == "session")]


def take_session(options: dict[str, Any]) -> None:
    """Let the session of the option be the session."""
    if (named := options.pop(_BY_OPTION, None)) is not None:
        options["session"] = named


def _session_parameters(**argument: Any) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        by_option = click.option(
            "-s", "--session", _BY_OPTION, metavar="NAME", type=SessionName(), help="Session, instead of the argument."
        )
        return click.argument("session", type=SessionName(), **argument)(by_option(function))

    return add


session_argument = _session_parameters()  # for commands of the class SessionCommand
default_session_argument = _session_parameters(default=DEFAULT_SESSION)
optional_session_argument = _session_parameters(required=False)
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
        take_session(options)
        context.session = options.get("session")
        try:
            return int(function(context, **options) or ExitCode.OK)
        except ReplError as error:
            return context.fail(error)

    return command

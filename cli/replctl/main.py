"""The command group. A command's module is loaded when it is called, and with it only what it needs."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any, NamedTuple, NoReturn

import click

from replctl import __version__


class CommandEntry(NamedTuple):
    """Where a command lives, and its line in the list of commands."""

    target: str
    help: str


COMMANDS = {
    "eval": CommandEntry("replctl.commands.eval:eval_", "Run code in a session."),
    "read": CommandEntry("replctl.commands.eval:read", "Output and answer of an eval, now or later."),
    "interrupt": CommandEntry("replctl.commands.sessions:interrupt", "Interrupt what a session runs; its state stays."),
    "stdin": CommandEntry("replctl.commands.sessions:stdin", "Give input to a session."),
    "attach": CommandEntry("replctl.commands.attach:attach", "An interactive prompt on a live session."),
    "new": CommandEntry("replctl.commands.sessions:new", "Open a session."),
    "ls": CommandEntry("replctl.commands.listing:ls", "List the sessions."),
    "info": CommandEntry("replctl.commands.listing:info", "All there is to know of a session."),
    "jobs": CommandEntry("replctl.commands.listing:jobs", "A session's queued, running and recent evals."),
    "vars": CommandEntry("replctl.commands.inspection:vars_", "A session's variables."),
    "history": CommandEntry("replctl.commands.inspection:history", "Code that a session was given."),
    "tail": CommandEntry("replctl.commands.tail:tail", "What happens, as it happens."),
    "top": CommandEntry("replctl.commands.top:top", "Sessions, agents and evals on one screen, live."),
    "export": CommandEntry(
        "replctl.commands.transcripts:export", "A session's transcript as a notebook, script or page."
    ),
    "replay": CommandEntry("replctl.commands.transcripts:replay", "Run a transcript again and compare."),
    "complete": CommandEntry("replctl.commands.inspection:complete", "Ways to go on with a piece of code."),
    "lookup": CommandEntry("replctl.commands.inspection:lookup", "What a name means in a session."),
    "stack": CommandEntry("replctl.commands.inspection:stack", "Where a session's code is at this moment."),
    "load": CommandEntry("replctl.commands.copies:load", "Run a file of the broker's machine."),
    "env": CommandEntry("replctl.commands.env:env", "A session's python environment and packages."),
    "clone": CommandEntry("replctl.commands.copies:clone", "Copy a session."),
    "mode": CommandEntry("replctl.commands.copies:mode", "Put a session into plan mode, or back."),
    "share": CommandEntry("replctl.commands.sharing:share", "Let others see a session, or use it."),
    "hand-over": CommandEntry("replctl.commands.sharing:transfer", "Offer a session to somebody else, or take one."),
    "reset": CommandEntry("replctl.commands.sessions:reset", "Give a session a fresh worker; its state is gone."),
    "close": CommandEntry("replctl.commands.sessions:close", "End sessions."),
    "status": CommandEntry("replctl.commands.broker:status", "Is there a broker, and what does it do?"),
    "acp": CommandEntry("replctl.commands.acp:acp", "Speak the Agent Client Protocol on stdio, for editors."),
    "serve": CommandEntry("replctl.commands.serve:serve", "Run a broker in the foreground."),
    "shutdown": CommandEntry("replctl.commands.broker:shutdown", "End the broker and all sessions."),
    "mcp": CommandEntry("replctl.commands.mcp:mcp", "Serve MCP: sessions as an agent's tools."),
    "tools": CommandEntry("replctl.commands.tools:tools", "Print a tool set's schemas."),
    "install": CommandEntry("replctl.commands.install:install", "Tell an MCP client how to start `replctl mcp`."),
    "keys": CommandEntry("replctl.commands.keys:keys", "Who may come to the broker from elsewhere."),
    "audit": CommandEntry("replctl.commands.audit:audit", "Who asked the broker what, and how it ended."),
    "doctor": CommandEntry("replctl.commands.doctor:doctor", "What is wrong here, why, and what mends it."),
    "extensions": CommandEntry("replctl.commands.extensions:extensions", "What extensions contribute."),
    "completion": CommandEntry("replctl.commands.completion:completion", "Completion script for a shell."),
    "config": CommandEntry("replctl.commands.config:config", "Settings, and where each came from."),
    "version": CommandEntry("replctl.commands.broker:version", "Version of replctl, and of the broker if one answers."),
}


class CommandGroup(click.Group):
    """A group that knows its commands by name and loads them by need; extensions bring more."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            from replctl.commands.extensions import find_command

            return find_command(cmd_name)
        module, _, function = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands, without loading one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])
        if more := _extension_commands():
            with formatter.section("Commands of extensions"):
                formatter.write_dl(more)


def _extension_commands() -> list[tuple[str, str]]:
    """Name and summary of each command that extensions bring; nothing is loaded where the config names none."""
    from replctl.commands.configured import configured_extensions

    try:
        if not configured_extensions():
            return []
    except click.UsageError:  # whoever asks for help is not to be refused it
        return []
    from replctl.commands.extensions import list_commands

    return list_commands()


EPILOG = """\b
Exit codes: 0 done, 1 the code raised, 2 usage, 3 no broker, 4 no such session
or name taken, 5 refused by a limit or policy, 6 timed out, 7 interrupted,
8 worker lost, 9 still running, 141 the reader of our output went away."""


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="replctl")
def cli() -> None:
    """Persistent, isolated REPL sessions for agents and people."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code.

    Without `argv` this is the whole program: once a command has closed what it opened, the process ends at once,
    because taking the interpreter apart costs 10 ms. A broker that ran in it has things to do at exit, and does them.
    """
    _open_standard_files()
    args = sys.argv[1:] if argv is None else argv
    try:
        code: Any = cli.main(args=args, prog_name="replctl", standalone_mode=False)
    except click.ClickException as error:
        code = _show_usage_error(error, args)
    except (click.Abort, KeyboardInterrupt):
        from replwire.faults import ExitCode

        code = ExitCode.INTERRUPTED
    if argv is None and "replbroker" not in sys.modules:
        _exit_now(int(code or 0))
    sys.exit(int(code or 0))


def _exit_now(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, AttributeError):  # nobody reads it, or it was closed from the start
            pass
    os._exit(code)


def _show_usage_error(error: click.ClickException, args: list[str]) -> int:
    from replctl.commands.output import CommandOutput

    if "--json" in args:
        CommandOutput().failure(error.format_message(), ["done", "error"], "invalid-request", error.exit_code)
    else:
        shown = io.StringIO()
        error.show(shown)
        CommandOutput().block(shown.getvalue().rstrip("\n"), "err")
    return error.exit_code


def _open_standard_files() -> None:
    """A descriptor that is closed would be given to a socket, and our output would then be sent to the broker."""
    while (got := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(got)

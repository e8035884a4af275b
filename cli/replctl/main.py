"""The command group. A command's module is loaded when it is called, and with it only what it needs."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any, NamedTuple, NoReturn

import click

from replctl import __version__


class Entry(NamedTuple):
    """Where a command lives, and its line in the list of commands."""

    home: str
    help: str


COMMANDS = {
    "eval": Entry("replctl.commands.eval:eval_", "Run code in a session."),
    "read": Entry("replctl.commands.eval:read", "Output and answer of an eval, now or later."),
    "interrupt": Entry("replctl.commands.sessions:interrupt", "Interrupt what a session runs; its state stays."),
    "stdin": Entry("replctl.commands.sessions:stdin", "Give input to a session."),
    "attach": Entry("replctl.commands.attach:attach", "An interactive prompt on a live session."),
    "new": Entry("replctl.commands.sessions:new", "Open a session."),
    "ls": Entry("replctl.commands.listing:ls", "List the sessions."),
    "info": Entry("replctl.commands.listing:info", "All there is to know of a session."),
    "jobs": Entry("replctl.commands.listing:jobs", "A session's queued, running and recent evals."),
    "vars": Entry("replctl.commands.names:vars_", "A session's variables."),
    "history": Entry("replctl.commands.names:history", "Code that a session was given."),
    "tail": Entry("replctl.commands.tail:tail", "What happens, as it happens."),
    "top": Entry("replctl.commands.top:top", "Sessions, agents and evals on one screen, live."),
    "export": Entry("replctl.commands.past:export", "A session's transcript as a notebook, script or page."),
    "replay": Entry("replctl.commands.past:replay", "Run a transcript again and compare."),
    "complete": Entry("replctl.commands.names:complete", "Ways to go on with a piece of code."),
    "lookup": Entry("replctl.commands.names:lookup", "What a name means in a session."),
    "stack": Entry("replctl.commands.names:stack", "Where a session's code is at this moment."),
    "load": Entry("replctl.commands.copies:load", "Run a file of the broker's machine."),
    "env": Entry("replctl.commands.env:env", "A session's python environment and packages."),
    "clone": Entry("replctl.commands.copies:clone", "Copy a session."),
    "mode": Entry("replctl.commands.copies:mode", "Put a session into plan mode, or back."),
    "share": Entry("replctl.commands.sharing:share", "Let others see a session, or use it."),
    "hand-over": Entry("replctl.commands.sharing:hand_over", "Offer a session to somebody else, or take one."),
    "reset": Entry("replctl.commands.sessions:reset", "Give a session a fresh worker; its state is gone."),
    "close": Entry("replctl.commands.sessions:close", "End sessions."),
    "status": Entry("replctl.commands.broker:status", "Is there a broker, and what does it do?"),
    "acp": Entry("replctl.commands.acp:acp", "Speak the Agent Client Protocol on stdio, for editors."),
    "serve": Entry("replctl.commands.serve:serve", "Run a broker in the foreground."),
    "shutdown": Entry("replctl.commands.broker:shutdown", "End the broker and all sessions."),
    "mcp": Entry("replctl.commands.mcp:mcp", "Serve MCP: sessions as an agent's tools."),
    "tools": Entry("replctl.commands.tools:tools", "Print a tool set's schemas."),
    "install": Entry("replctl.commands.install:install", "Tell an MCP client how to start `replctl mcp`."),
    "keys": Entry("replctl.commands.keys:keys", "Who may come to the broker from elsewhere."),
    "audit": Entry("replctl.commands.audit:audit", "Who asked the broker what, and how it ended."),
    "doctor": Entry("replctl.commands.doctor:doctor", "What is wrong here, why, and what mends it."),
    "extensions": Entry("replctl.commands.extensions:extensions", "What extensions contribute."),
    "completion": Entry("replctl.commands.completion:completion", "Completion script for a shell."),
    "config": Entry("replctl.commands.config:config", "Settings, and where each came from."),
    "version": Entry("replctl.commands.broker:version", "Version of replctl, and of the broker if one answers."),
}


class Commands(click.Group):
    """A group that knows its commands by name and loads them by need; extensions bring more."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            from replctl.commands.extensions import as_command

            return as_command(cmd_name)
        module, _, function = entry.home.partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands, without loading one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])
        if more := _more_commands():
            with formatter.section("Commands of extensions"):
                formatter.write_dl(more)


def _more_commands() -> list[tuple[str, str]]:
    """Name and summary of each command that extensions bring; nothing is loaded where the config names none."""
    from replctl.commands.configured import configured

    try:
        if not configured():
            return []
    except click.UsageError:  # whoever asks for help is not to be refused it
        return []
    from replctl.commands.extensions import entries

    return entries()


EPILOG = """\b
Exit codes: 0 done, 1 the code raised, 2 usage, 3 no broker, 4 no such session
or name taken, 5 refused by a limit or policy, 6 timed out, 7 interrupted,
8 worker lost, 9 still running, 141 the reader of our output went away."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
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
        code = _usage(error, args)
    except (click.Abort, KeyboardInterrupt):
        from replwire.faults import Exit

        code = Exit.INTERRUPTED
    if argv is None and "replbroker" not in sys.modules:
        _end(int(code or 0))
    sys.exit(int(code or 0))


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, AttributeError):  # nobody reads it, or it was closed from the start
            pass
    os._exit(code)


def _usage(error: click.ClickException, args: list[str]) -> int:
    from replctl.commands.screen import Screen

    if "--json" in args:
        Screen().failure(error.format_message(), ["done", "error"], "invalid-request", error.exit_code)
    else:
        shown = io.StringIO()
        error.show(shown)
        Screen().block(shown.getvalue().rstrip("\n"), "err")
    return error.exit_code


def _open_standard_files() -> None:
    """A descriptor that is closed would be given to a socket, and our output would then be sent to the broker."""
    while (got := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(got)

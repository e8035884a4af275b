"""The command group. A command's module is imported only when the command is called."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any, NamedTuple, NoReturn

import click

from replctl import __version__


class CommandEntry(NamedTuple):
    """Import path of a command, and its line in the list of commands."""

    target: str
    help: str


COMMANDS = {
    "eval": CommandEntry("replctl.commands.eval:eval_", "Run code in a session."),
    "run": CommandEntry("replctl.commands.run:run", "Run a script with arguments in a session."),
    "read": CommandEntry("replctl.commands.eval:read", "Show an eval's output and result."),
    "interrupt": CommandEntry(
        "replctl.commands.sessions:interrupt", "Interrupt a session's running eval; variables are kept."
    ),
    "stdin": CommandEntry("replctl.commands.sessions:stdin", "Send input to a session."),
    "attach": CommandEntry("replctl.commands.attach:attach", "Open an interactive prompt on a session."),
    "new": CommandEntry("replctl.commands.sessions:new", "Open a session."),
    "ls": CommandEntry("replctl.commands.listing:ls", "List sessions."),
    "info": CommandEntry("replctl.commands.listing:info", "Show session details."),
    "jobs": CommandEntry("replctl.commands.listing:jobs", "List queued, running and recent evals."),
    "vars": CommandEntry("replctl.commands.inspection:vars_", "List a session's variables."),
    "history": CommandEntry("replctl.commands.inspection:history", "Show the code sent to a session."),
    "tail": CommandEntry("replctl.commands.tail:tail", "Follow events live."),
    "top": CommandEntry("replctl.commands.top:top", "Show sessions, agents and evals on a live screen."),
    "export": CommandEntry("replctl.commands.transcripts:export", "Export a transcript as notebook, script or page."),
    "transcripts": CommandEntry("replctl.commands.transcript_files:transcripts", "List and delete transcripts."),
    "replay": CommandEntry("replctl.commands.transcripts:replay", "Run a transcript again and compare results."),
    "complete": CommandEntry("replctl.commands.inspection:complete", "List completions for a piece of code."),
    "lookup": CommandEntry(
        "replctl.commands.inspection:lookup", "Show signature, type and docs for a name (like `?` in IPython)."
    ),
    "stack": CommandEntry("replctl.commands.inspection:stack", "Show the current stack of a running session."),
    "load": CommandEntry("replctl.commands.eval:load", "Run a file on the broker's machine."),
    "cp": CommandEntry("replctl.commands.files:cp", "Copy a file into a session, or from it."),
    "env": CommandEntry("replctl.commands.env:env", "Manage Python environments and packages."),
    "allow-hosts": CommandEntry("replctl.commands.network:allow_hosts", "Let a session reach more hosts for a time."),
    "clone": CommandEntry("replctl.commands.sessions:clone", "Clone a session."),
    "save": CommandEntry("replctl.commands.checkpoints:save", "Save a session's variables in a file."),
    "checkpoint": CommandEntry("replctl.commands.checkpoints:checkpoint", "Keep a session's state, to go back to."),
    "checkpoints": CommandEntry("replctl.commands.checkpoints:checkpoints", "List a session's checkpoints."),
    "rollback": CommandEntry("replctl.commands.checkpoints:rollback", "Undo evals: go back to a checkpoint."),
    "branch": CommandEntry("replctl.commands.checkpoints:branch", "Branch a session: go on with a copy of it."),
    "diff": CommandEntry("replctl.commands.checkpoints:diff", "Show what a session changed in its directory."),
    "mode": CommandEntry("replctl.commands.sessions:mode", "Switch plan mode on or off."),
    "share": CommandEntry("replctl.commands.sessions:share", "Share a session with others."),
    "transfer": CommandEntry("replctl.commands.sessions:transfer", "Transfer a session to another owner."),
    "hibernate": CommandEntry("replctl.commands.sessions:hibernate", "End a session's processes until its next eval."),
    "reset": CommandEntry("replctl.commands.sessions:reset", "Restart a session; variables are lost."),
    "close": CommandEntry("replctl.commands.sessions:close", "Close sessions."),
    "status": CommandEntry("replctl.commands.broker:status", "Show whether a broker is running, and its counters."),
    "logs": CommandEntry("replctl.commands.logs:logs", "Show the broker's log."),
    "acp": CommandEntry("replctl.commands.acp:acp", "Speak the Agent Client Protocol on stdio, for editors."),
    "serve": CommandEntry("replctl.commands.serve:serve", "Run a broker in the foreground."),
    "service": CommandEntry("replctl.commands.service:service", "Have systemd run the broker."),
    "shutdown": CommandEntry("replctl.commands.broker:shutdown", "Stop the broker and all sessions."),
    "restart": CommandEntry("replctl.commands.broker:restart", "Restart the broker; sessions go on."),
    "mcp": CommandEntry("replctl.commands.mcp:mcp", "Serve MCP: sessions as tools for an agent."),
    "tools": CommandEntry("replctl.commands.mcp:tools", "Print a tool set's schemas."),
    "install": CommandEntry("replctl.commands.install:install", "Add `replctl mcp` to an MCP client's configuration."),
    "keys": CommandEntry("replctl.commands.keys:keys", "Manage keys and tokens for remote clients."),
    "audit": CommandEntry("replctl.commands.audit:audit", "Show the audit log."),
    "doctor": CommandEntry("replctl.commands.doctor:doctor", "Check the installation and suggest fixes."),
    "extensions": CommandEntry("replctl.commands.extensions:extensions", "List what extensions contribute."),
    "completion": CommandEntry("replctl.commands.completion:completion", "Print a shell completion script."),
    "config": CommandEntry("replctl.commands.config:config", "Show and change settings."),
    "version": CommandEntry("replctl.commands.broker:version", "Show the versions of replctl and of a running broker."),
}

ALIASES = {"list": "ls", "rm": "close", "undo": "rollback", "variables": "vars"}  # other words for commands


class CommandGroup(click.Group):
    """A group that imports its commands on demand; extensions may add more."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            from replctl.commands.extensions import find_command

            found = find_command(cmd_name)
            return self.get_command(ctx, ALIASES[cmd_name]) if found is None and cmd_name in ALIASES else found
        module, _, function = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of these words. Raises a usage error that names the command most like an unknown one."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            from replctl.commands.params import suggest_name

            meant = suggest_name(name, [*COMMANDS, *ALIASES])
            also = f"did you mean {meant}?" if meant else "replctl --help lists them."
            ctx.fail(f"No command {name!r}; {also}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])
        if more := _extension_commands():
            with formatter.section("Commands of extensions"):
                formatter.write_dl(more)


def _extension_commands() -> list[tuple[str, str]]:
    """Return name and summary of each extension command; nothing is loaded unless the config names extensions."""
    from replctl.settings import configured_extensions

    try:
        if not configured_extensions():
            return []
    except click.UsageError:  # help must work with a broken configuration
        return []
    from replctl.commands.extensions import list_commands

    return list_commands()


EPILOG = """\b
Exit codes: 0 done, 1 the code raised, 2 usage, 3 no broker, 4 no such session
or name taken, 5 refused by a limit or policy, 6 timed out, 7 interrupted,
8 worker lost, 9 still running, 141 output pipe closed."""


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="replctl")
def cli() -> None:
    """Persistent, isolated REPL sessions for agents and people."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code.

    Without `argv` this is the whole program: once a command has closed what it opened, the process exits at once,
    because an orderly interpreter shutdown costs 10 ms. A process that ran a broker exits in order.
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
        except (OSError, AttributeError):  # no reader, or closed from the start
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
    """Open closed standard descriptors, or a socket would get their number and receive our output."""
    while (got := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(got)

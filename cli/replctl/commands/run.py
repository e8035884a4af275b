"""`replctl run`: a script with arguments in a session, and its exit status."""

from __future__ import annotations

import click
import msgspec

from replctl.client import request_fields
from replctl.client.result import Result
from replctl.commands.context import CommandContext, session_option, with_common_options
from replctl.commands.foreground import ForegroundEval, confirm_at_terminal, empty_eval_json
from replctl.commands.messages import end_notices
from replctl.commands.params import Duration, directory_for_new, parse_env, read_source, runtime_for_new
from replctl.commands.program import (
    exit_status_of,
    last_words,
    open_session,
    program_inputs,
    runtime_of_file,
    set_arguments,
)

FOLLOW_SECONDS = 86_400.0  # the longest wait that a broker may allow; its own limit is usually less


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("file", metavar="FILE")
@click.argument("arguments", nargs=-1, metavar="[ARG]...", type=click.UNPROCESSED)
@session_option
@click.option("--ephemeral", is_flag=True, help="Run in a session without a name, closed afterwards.")
@click.option("--timeout", type=Duration(), help="Limit of the run time.")
@click.option("--runtime", metavar="NAME|PATH", help="Runtime of a new session. [by the file's suffix, else python]")
@click.option("--cwd", metavar="DIR", help="Working directory of a new session. [the current one]")
@click.option("--env", multiple=True, metavar="K=V", help="Environment variable of a new session; repeatable.")
@click.option("--stdin", "feed", metavar="TEXT", help="Input for input(); a newline is added.")
@with_common_options
def run(
    context: CommandContext,
    file: str,
    arguments: tuple[str, ...],
    session: str,
    ephemeral: bool,
    timeout: float | None,
    runtime: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    feed: str | None,
) -> int:
    """Run the local script FILE with ARGs in a session; options come before FILE.

    The script finds its arguments in sys.argv (Python), process.argv (Node) or $1 (Bash). The exit code is the script's
    own. It may run for the time limit of a job, and Ctrl-C interrupts it.
    """
    code = read_source(file)
    context.empty_result = empty_eval_json(None if ephemeral else session)
    with context.client() as client:
        directory = directory_for_new(cwd, client.address.endpoint)
        wanted = runtime_for_new(runtime or runtime_of_file(file), None)[0]
        name = None if ephemeral else session
        where = open_session(context, client, name, wanted, directory, parse_env(env), cwd is not None)
        try:
            set_arguments(client, where, file, arguments, runtime_of_file(file))
            fields = request_fields.eval_fields(code, where, timeout=timeout, wait=FOLLOW_SECONDS, create=False)
            return ForegroundEval(context, client, fields, program_inputs(feed), confirm_at_terminal, show_end).run()
        finally:
            if ephemeral:
                client.close(where)


def show_end(context: CommandContext, result: Result) -> int:
    """Print how a program ended, without a value, and return its own exit status if it chose one."""
    status = exit_status_of(result)
    code = int(result.exit) if status is None else status
    if context.json:
        context.screen.json({**msgspec.to_builtins(result), "code": result.code, "exit": code})
        return code
    if status is not None:
        if (text := last_words(result)) is not None:
            context.screen.block(text, "err")
        return code
    if result.traceback or (not result.ok and result.error):
        context.screen.block((result.traceback or result.error or "").rstrip("\n"), "err")
    for notice in end_notices(result):
        context.screen.notice(notice)
    return code

"""`replctl eval`, `read` and `load`: run code and fetch results."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from replctl.client import request_fields
from replctl.client.result import Result
from replctl.commands import images
from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    session_argument,
    session_option,
    with_common_options,
)
from replctl.commands.foreground import (
    TERMINAL,
    ForegroundEval,
    confirm_at_terminal,
    empty_eval_json,
    show_result,
)
from replctl.commands.params import Duration, directory_for_new, parse_env, read_source, runtime_for_new
from replctl.commands.program import (
    exit_status_of,
    given_input,
    open_session,
    program_inputs,
    runtime_of_file,
    set_arguments,
)
from replwire.faults import ExitCode

if TYPE_CHECKING:
    from replctl.commands.terminal_images import Encoder


@click.command()
@click.argument("words", nargs=-1, metavar="CODE | -f FILE [ARG]...")
@click.option("-f", "--file", type=click.Path(), help="Run this file, with ARGs as sys.argv; - for stdin.")
@session_option
@click.option("--ephemeral", is_flag=True, help="Run in an ephemeral session, deleted afterwards.")
@click.option("--timeout", type=Duration(), help="Limit of the run time.")
@click.option("--wait", type=Duration(), help="How long to wait; the eval continues and `replctl read` shows the rest.")
@click.option("--runtime", metavar="NAME|PATH", help="Runtime of a new session.")
@click.option("--cwd", metavar="DIR", help="Working directory of a new session. [the current one]")
@click.option("--env", multiple=True, metavar="K=V", help="Environment variable of a new session; repeatable.")
@click.option("--fail", is_flag=True, help="Exit with the status of bash's last command, or of sys.exit().")
@click.option("--mime", multiple=True, metavar="TYPE", help="Rich form wanted with --json, best first; repeatable.")
@click.option("--save-images", metavar="DIR", help="Write figures, and a value that is a picture, to files in DIR.")
@click.option("--silent", is_flag=True, help="Do not send the value.")
@click.option("--no-create", is_flag=True, help="Fail if the session does not exist.")
@click.option("--idempotency-key", metavar="KEY", help="Never run the code twice for the same key.")
@click.option(
    "--expect-epoch", type=click.IntRange(min=0), metavar="N", help="Fail if the session was reset since epoch N."
)
@click.option("--stdin", "feed", metavar="TEXT", help="Input for input(); a newline is added.")
@click.option(
    "--traceparent", envvar="TRACEPARENT", metavar="ID", help="Trace context of the caller; also $TRACEPARENT."
)
@with_common_options
def eval_(
    context: CommandContext,
    words: tuple[str, ...],
    file: str | None,
    session: str,
    ephemeral: bool,
    timeout: float | None,
    wait: float | None,
    runtime: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    fail: bool,
    mime: tuple[str, ...],
    save_images: str | None,
    silent: bool,
    no_create: bool,
    idempotency_key: str | None,
    expect_epoch: int | None,
    feed: str | None,
    traceparent: str | None,
) -> int:
    """Run CODE in a persistent session; - reads the code from stdin.

    Output is shown live, the value of the last expression at the end.
    """
    text, from_stdin = _read_code(words, file)
    arguments = words if file is not None else ()
    if arguments and (ephemeral or no_create):
        raise click.UsageError("ARGs need a session: replctl run --ephemeral FILE ARG... opens one for a script")
    if timeout is not None and timeout <= 0:
        raise click.UsageError("--timeout must be positive")
    piped = ephemeral and not os.isatty(0)  # of no use: what it cannot answer, no other client could
    answers = given_input(feed) if from_stdin or piped else program_inputs(feed)
    decide = confirm_at_terminal if TERMINAL in answers and os.isatty(2) and not context.json else None
    if save_images is not None:
        images.make_image_directory(save_images)
    encode = None if context.json or mime or save_images is not None else _inline_encoder()
    context.empty_result = empty_eval_json(session)
    with context.client() as client:
        directory = directory_for_new(cwd, client.address.endpoint)
        wanted = runtime_for_new(runtime, None)[0]
        if file is not None and arguments:
            open_session(context, client, session, wanted, directory, parse_env(env), cwd is not None)
            set_arguments(client, session, file, arguments, runtime_of_file(file))
        fields = request_fields.eval_fields(
            text,
            session,
            timeout=timeout,
            wait=wait,
            silent=silent,
            create=not no_create,
            ephemeral=ephemeral,
            runtime=wanted,
            cwd=directory,
            cwd_needed=cwd is not None,
            env=parse_env(env),
            expect_epoch=expect_epoch,
            idempotency_key=idempotency_key,
            traceparent=traceparent,
            mime=(*mime, images.ANY_IMAGE) if save_images is not None or encode is not None else mime,
            allow_stdin=bool(answers) or not ephemeral,  # no other client can send input to an ephemeral session
        )

        def report(context: CommandContext, result: Result) -> int:
            code = show_result(context, result, status=exit_status_of(result) if fail else None)
            if encode is not None:
                from replctl.commands.terminal_images import show_images

                show_images(context.screen, result, encode)
            return code if save_images is None else _save_images(context, result, save_images) or code

        return ForegroundEval(context, client, fields, answers, decide, report).run()


def _inline_encoder() -> Encoder | None:
    """Return the encoder of pictures for the terminal, if stdout is one that shows them."""
    if not os.isatty(1):
        return None
    from replctl.commands.terminal_images import find_encoder  # of use at a terminal only

    return find_encoder(os.environ)


def _save_images(context: CommandContext, result: Result, directory: str) -> int:
    """Write the pictures and say where they are. Returns an exit code, 0 unless a file could not be written."""
    try:
        for path in images.save_images(result, directory):
            if not context.json:
                context.screen.notice(f"saved {path}")
    except OSError as error:
        context.screen.notice(f"cannot write to {directory}: {error.strerror}")
        return ExitCode.RAISED
    for path in result.files if not context.json else ():
        context.screen.notice(f"larger than an answer may be, saved in the session: {path}")
    return ExitCode.OK


@click.command(cls=SessionCommand)
@session_argument
@click.argument("eval_id", type=click.IntRange(min=0))
@click.option("--wait", type=Duration(), help="How long to wait for the end of the eval.")
@click.option(
    "--offset", type=click.IntRange(min=0), default=0, help="Skip this many bytes; see `offset` of the last read."
)
@click.option("--stream", type=click.Choice(["out", "err", "both"]), default="both", show_default=True)
@click.option("--max-bytes", type=click.IntRange(min=1), help="Limit of the output in bytes.")
@click.option("--grep", metavar="TEXT", help="Only lines that contain TEXT.")
@click.option("--raw", is_flag=True, help="Print the output unchanged, even to a terminal.")
@with_common_options
def read(
    context: CommandContext,
    session: str,
    eval_id: int,
    wait: float | None,
    offset: int,
    stream: str,
    max_bytes: int | None,
    grep: str | None,
    raw: bool,
) -> int:
    """Show the output and result of eval EVAL_ID of SESSION. EVAL_ID 0 is output printed between evals.

    The output may come from anyone who may use the session: on a terminal only line breaks, tabs and colours are shown,
    and all other control sequences are removed unless --raw is given. A pipe or file gets the output unchanged.
    """
    context.empty_result = empty_eval_json(session)
    with context.client() as client:
        live = None if context.json else context.screen.live if raw else context.screen.write_stored
        result = client.read(session, eval_id, wait, offset, stream, max_bytes, grep, live)
    return show_result(context, result, None if raw or not os.isatty(1) else context.screen.block)


@click.command()
@click.argument("file")
@session_option
@click.option("--reload", is_flag=True, help="First delete what the file defined before.")
@click.option("--timeout", type=Duration(), help="Limit of the run time.")
@click.option("--wait", type=Duration(), help="How long to wait; the eval continues and `replctl read` shows the rest.")
@with_common_options
def load(
    context: CommandContext, file: str, session: str, reload: bool, timeout: float | None, wait: float | None
) -> int:
    """Run FILE on the broker's machine, from a directory allowed by session.load-paths.

    To run a local file regardless of that setting: replctl eval -f FILE.
    """
    context.empty_result = empty_eval_json(session)
    with context.client() as client:
        live = None if context.json else context.screen.live
        if not reload:
            client.new(session, reuse=True)
        return show_result(context, client.load(os.path.abspath(file), session, reload, timeout, wait, live))


def _read_code(words: tuple[str, ...], file: str | None) -> tuple[str, bool]:
    """Return the code, and True if it came from stdin."""
    if file is None and len(words) != 1:
        raise click.UsageError("pass either CODE, -f FILE, or - for stdin")
    if file is None and words[0] != "-":
        return words[0], False
    return read_source(file or "-"), file in (None, "-")

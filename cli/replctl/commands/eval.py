"""`replctl eval` and `replctl read`: run code, and fetch what it gave."""

from __future__ import annotations

import os

import click

from replctl.client import protocol, request_fields
from replctl.client.sync import DEFAULT_TIMEOUT
from replctl.commands.context import CommandContext, session_argument, session_option, with_common_options
from replctl.commands.durations import Duration
from replctl.commands.foreground import (
    TERMINAL,
    ForegroundEval,
    confirm_at_terminal,
    empty_eval_json,
    show_result,
    single_input,
)
from replctl.commands.session_defaults import directory_for_new, parse_env, runtime_for_new


@click.command()
@click.argument("code", required=False)
@click.option("-f", "--file", type=click.Path(), help="Run this file; - is stdin.")
@session_option
@click.option("--ephemeral", is_flag=True, help="Run it in a throw-away session.")
@click.option("--timeout", type=Duration(), help="How long the code may run.")
@click.option("--wait", type=Duration(), help="How long to wait for its end; it can be read later.")
@click.option("--runtime", metavar="NAME|PATH", help="What a session that is created runs.")
@click.option("--cwd", metavar="DIR", help="Folder of a session that is created. [this one]")
@click.option("--env", multiple=True, metavar="K=V", help="Environment of a session that is created.")
@click.option("--silent", is_flag=True, help="Do not send the value.")
@click.option("--no-create", is_flag=True, help="Fail when there is no such session.")
@click.option("--idempotency-key", metavar="KEY", help="A repeat with this key never runs the code twice.")
@click.option("--expect-epoch", type=click.IntRange(min=0), metavar="N", help="Fail when the session was reset since.")
@click.option("--stdin", "feed", metavar="TEXT", help="Answer to input(); a newline is added.")
@click.option("--traceparent", envvar="TRACEPARENT", metavar="ID", help="The span that calls; also $TRACEPARENT.")
@with_common_options
def eval_(
    face: CommandContext,
    code: str | None,
    file: str | None,
    session: str,
    ephemeral: bool,
    timeout: float | None,
    wait: float | None,
    runtime: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    silent: bool,
    no_create: bool,
    idempotency_key: str | None,
    expect_epoch: int | None,
    feed: str | None,
    traceparent: str | None,
) -> int:
    """Run CODE in a session that keeps its state; - reads the code from stdin.

    What the code prints comes live, its last value is printed at the end.
    """
    text, from_stdin = _read_code(code, file)
    if timeout is not None and timeout <= 0:
        raise click.UsageError("--timeout must be longer than nothing")
    answers = [] if feed is None else [single_input(feed + "\n")]
    if os.isatty(0) and not from_stdin:
        answers.append(TERMINAL)
    decide = confirm_at_terminal if TERMINAL in answers and os.isatty(2) and not face.json else None
    face.empty_result = empty_eval_json(session)
    with face.client() as client:
        fields = request_fields.eval_fields(
            text,
            session,
            timeout=timeout,
            wait=wait,
            silent=silent,
            create=not no_create,
            ephemeral=ephemeral,
            runtime=runtime_for_new(runtime, None)[0],
            cwd=directory_for_new(cwd, client.address.endpoint),
            cwd_needed=cwd is not None,
            env=parse_env(env),
            expect_epoch=expect_epoch,
            idempotency_key=idempotency_key,
            traceparent=traceparent,
            allow_stdin=bool(answers) or not ephemeral,  # nobody else knows a throw-away session, to send it input
        )
        return ForegroundEval(face, client, fields, answers, decide).run()


@click.command()
@session_argument
@click.argument("eval_id", type=click.IntRange(min=0))
@click.option("--wait", type=Duration(), help="How long to wait for its end.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Skip this much; `offset` of the last read.")
@click.option("--stream", type=click.Choice(["out", "err", "both"]), default="both", show_default=True)
@click.option("--max-bytes", type=click.IntRange(min=1), help="At most this much text.")
@click.option("--grep", metavar="TEXT", help="Only lines with this text.")
@click.option("--raw", is_flag=True, help="To a terminal too: every byte as it was printed.")
@with_common_options
def read(
    face: CommandContext,
    session: str,
    eval_id: int,
    wait: float | None,
    offset: int,
    stream: str,
    max_bytes: int | None,
    grep: str | None,
    raw: bool,
) -> int:
    """Output and answer of eval EVAL_ID of SESSION. 0 is what the session printed between evals.

    Whoever may use the session may have printed it: a terminal is given lines, tabs and colours of it, and no other
    control sequence unless with --raw. A pipe or file gets it as it is.
    """
    face.empty_result = empty_eval_json(session)
    with face.client() as client:
        fields = request_fields.read_fields(session, eval_id, wait, offset, stream, max_bytes, grep)
        live = None if face.json else face.screen.live if raw else face.screen.write_stored
        gathering = client.send("read", fields, live)
        client.wait(gathering, DEFAULT_TIMEOUT + (wait or 0))
        return show_result(
            face, protocol.eval_result(gathering), None if raw or not os.isatty(1) else face.screen.block
        )


def _read_code(code: str | None, file: str | None) -> tuple[str, bool]:
    """The code, and whether it came from stdin."""
    if (code is None) == (file is None):
        raise click.UsageError("give the code, or -f FILE, or - for stdin")
    if file is None and code != "-":
        assert code is not None
        return code, False
    try:
        if file in (None, "-"):
            with open(0, "rb", closefd=False) as piped:
                return piped.read().decode(), True
        with open(str(file), "rb") as source:
            return source.read().decode(), False
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file or 'stdin'} is not UTF-8: {error}") from None

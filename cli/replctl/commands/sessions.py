"""Commands that do one thing to a session: new, reset, close, interrupt, stdin."""

from __future__ import annotations

import click
import msgspec

from replctl.client.errors import ReplError
from replctl.commands.completion import SessionName
from replctl.commands.context import CommandContext, session_argument, with_common_options
from replctl.commands.session_defaults import directory_for_new, parse_env, runtime_for_new
from replwire.faults import ExitCode
from replwire.replies import Reply

_MANY = 20_000  # bytes of stdin sent in one message: far below any message limit, whatever the characters


@click.command()
@click.argument("name", required=False)
@click.option("--runtime", metavar="NAME|PATH", help="python, node, bash, or the path of a python environment.")
@click.option("--cwd", metavar="DIR", help="Its folder. [this one]")
@click.option("--env", multiple=True, metavar="K=V", help="Its environment, beside the usual.")
@click.option("--reuse", is_flag=True, help="A session of this name is fine.")
@click.option("--share", type=click.Choice(["read", "write"]), help="Let everybody see it, or use it.")
@with_common_options
def new(
    face: CommandContext,
    name: str | None,
    runtime: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    reuse: bool,
    share: str | None,
) -> None:
    """Open a session, and print its name (or its id, when it has none)."""
    with face.client() as client:
        folder = directory_for_new(cwd, client.address.endpoint)
        wanted, found = runtime_for_new(runtime, folder)
        reply = client.new(name, wanted, folder, parse_env(env), reuse, cwd_needed=cwd is not None)
        if share:
            client.share(reply.session or "", share)
    face.show(
        _reply_fields(reply, "session", "name", "cwd", "epoch", "created", "state", "cause", "notice"),
        reply.name or reply.session or "",
    )
    if reply.cause:
        _notice(face, f"the session of this name before it was lost: {reply.cause}")
    if reply.notice:
        _notice(face, reply.notice)
    if found and reply.created:
        _notice(face, f"runs in {found}, which is here (--runtime python does not)")


@click.command()
@session_argument
@with_common_options
def reset(face: CommandContext, session: str) -> None:
    """Kill SESSION's worker and give it a fresh one. Name, folder and environment stay."""
    with face.client() as client:
        reply = client.reset(session)
    face.show(_reply_fields(reply, "session", "name", "epoch", "state", "notice"))
    _notice(face, f"session {session!r} has a fresh worker (epoch {reply.epoch}); its state is gone")
    if reply.notice:
        _notice(face, reply.notice)


@click.command()
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...", type=SessionName())
@with_common_options
def close(face: CommandContext, sessions: tuple[str, ...]) -> int:
    """End sessions, with all that they started. With several, one that fails does not keep the others."""
    failed: list[ReplError] = []
    closed: list[str] = []
    with face.client() as client:
        for session in sessions:
            try:
                client.close(session)
                closed.append(session)
            except ReplError as error:
                failed.append(error)
    if len(sessions) == len(failed) == 1:
        return face.fail(failed[0])
    code = failed[0].exit if failed else ExitCode.OK
    errors = [{"word": each.code, "err": each.message} for each in failed]
    face.show({"status": ["done"], "closed": closed, "failed": errors, "exit": code})
    for each in failed:
        _notice(face, each.message)
    if closed:
        _notice(face, "closed " + ", ".join(closed))
    return code


@click.command()
@session_argument
@click.option("--id", "eval_id", type=click.IntRange(min=0), metavar="N", help="This eval, running or queued.")
@click.option("--all", "everything", is_flag=True, help="The running eval and all that wait.")
@with_common_options
def interrupt(face: CommandContext, session: str, eval_id: int | None, everything: bool) -> None:
    """Interrupt what SESSION runs. Nothing to interrupt is no error."""
    with face.client() as client:
        reply = client.interrupt(session, eval_id, everything)
    face.show(_reply_fields(reply, "interrupted", "interrupted-id"))
    which = f"eval {reply.interrupted_id} of {session}" if reply.interrupted_id else session
    _notice(face, f"interrupted {which}" if reply.interrupted else f"nothing to interrupt in {session}")


@click.command()
@session_argument
@click.argument("text")
@click.option("-n", "bare", is_flag=True, help="Do not add a newline.")
@with_common_options
def stdin(face: CommandContext, session: str, text: str, bare: bool) -> None:
    """Give TEXT and a newline to what SESSION runs, or to the next that reads; - sends stdin as it is."""
    if text == "-":
        with open(0, "rb", closefd=False) as piped:
            text = piped.read().decode("utf-8", "replace")
    elif not bare:
        text += "\n"
    with face.client() as client:
        for begin in range(0, max(1, len(text)), _MANY):
            reply = client.stdin(session, text[begin : begin + _MANY])
    face.show(_reply_fields(reply, "delivered", "buffered"))
    if reply.buffered:
        _notice(face, f"{session} reads nothing now; kept for later")


def _reply_fields(reply: Reply, *keys: str) -> dict[str, object]:
    """These keys of a reply, null where absent, and its status."""
    data = msgspec.to_builtins(reply)
    return {"status": data.get("status"), **{key: data.get(key) for key in keys}}


def _notice(face: CommandContext, text: str) -> None:
    if not face.json:
        face.screen.notice(text)

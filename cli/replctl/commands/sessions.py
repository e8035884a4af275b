"""Commands that do one thing to a session: new, reset, close, interrupt, stdin."""

from __future__ import annotations

import click
import msgspec

from replctl.client.errors import ReplError
from replctl.commands.common import Face, common, session_argument
from replctl.commands.completion import SessionName
from replctl.commands.where import folder_to_send, parse_env, runtime_to_send
from replwire.faults import Exit
from replwire.replies import Reply

_MANY = 20_000  # bytes of stdin sent in one message: far below any message limit, whatever the characters


@click.command()
@click.argument("name", required=False)
@click.option("--runtime", metavar="NAME|PATH", help="python, node, bash, or the path of a python environment.")
@click.option("--cwd", metavar="DIR", help="Its folder. [this one]")
@click.option("--env", multiple=True, metavar="K=V", help="Its environment, beside the usual.")
@click.option("--reuse", is_flag=True, help="A session of this name is fine.")
@click.option("--share", type=click.Choice(["read", "write"]), help="Let everybody see it, or use it.")
@common
def new(
    face: Face,
    name: str | None,
    runtime: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    reuse: bool,
    share: str | None,
) -> None:
    """Open a session, and print its name (or its id, when it has none)."""
    with face.client() as client:
        folder = folder_to_send(cwd, client.address.endpoint)
        wanted, found = runtime_to_send(runtime, folder)
        reply = client.new(name, wanted, folder, parse_env(env), reuse, cwd_needed=cwd is not None)
        if share:
            client.share(reply.session or "", share)
    face.show(
        _plain(reply, "session", "name", "cwd", "epoch", "created", "state", "cause", "notice"),
        reply.name or reply.session or "",
    )
    if reply.cause:
        _say(face, f"the session of this name before it was lost: {reply.cause}")
    if reply.notice:
        _say(face, reply.notice)
    if found and reply.created:
        _say(face, f"runs in {found}, which is here (--runtime python does not)")


@click.command()
@session_argument
@common
def reset(face: Face, session: str) -> None:
    """Kill SESSION's worker and give it a fresh one. Name, folder and environment stay."""
    with face.client() as client:
        reply = client.reset(session)
    face.show(_plain(reply, "session", "name", "epoch", "state", "notice"))
    _say(face, f"session {session!r} has a fresh worker (epoch {reply.epoch}); its state is gone")
    if reply.notice:
        _say(face, reply.notice)


@click.command()
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...", type=SessionName())
@common
def close(face: Face, sessions: tuple[str, ...]) -> int:
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
    code = failed[0].exit if failed else Exit.OK
    errors = [{"word": each.word, "err": each.err} for each in failed]
    face.show({"status": ["done"], "closed": closed, "failed": errors, "exit": code})
    for each in failed:
        _say(face, each.err)
    if closed:
        _say(face, "closed " + ", ".join(closed))
    return code


@click.command()
@session_argument
@click.option("--id", "eval_id", type=click.IntRange(min=0), metavar="N", help="This eval, running or queued.")
@click.option("--all", "everything", is_flag=True, help="The running eval and all that wait.")
@common
def interrupt(face: Face, session: str, eval_id: int | None, everything: bool) -> None:
    """Interrupt what SESSION runs. Nothing to interrupt is no error."""
    with face.client() as client:
        reply = client.interrupt(session, eval_id, everything)
    face.show(_plain(reply, "interrupted", "interrupted-id"))
    which = f"eval {reply.interrupted_id} of {session}" if reply.interrupted_id else session
    _say(face, f"interrupted {which}" if reply.interrupted else f"nothing to interrupt in {session}")


@click.command()
@session_argument
@click.argument("text")
@click.option("-n", "bare", is_flag=True, help="Do not add a newline.")
@common
def stdin(face: Face, session: str, text: str, bare: bool) -> None:
    """Give TEXT and a newline to what SESSION runs, or to the next that reads; - sends stdin as it is."""
    if text == "-":
        with open(0, "rb", closefd=False) as piped:
            text = piped.read().decode("utf-8", "replace")
    elif not bare:
        text += "\n"
    with face.client() as client:
        for begin in range(0, max(1, len(text)), _MANY):
            reply = client.stdin(session, text[begin : begin + _MANY])
    face.show(_plain(reply, "delivered", "buffered"))
    if reply.buffered:
        _say(face, f"{session} reads nothing now; kept for later")


def _plain(reply: Reply, *keys: str) -> dict[str, object]:
    """These keys of a reply, null where absent, and its status."""
    data = msgspec.to_builtins(reply)
    return {"status": data.get("status"), **{key: data.get(key) for key in keys}}


def _say(face: Face, text: str) -> None:
    if not face.json:
        face.screen.notice(text)

"""`replctl attach`: an interactive prompt on a live session, or its input from a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from replctl.client.sync import Client
from replctl.commands.attach_blocks import BlockOutcome, can_be_sent
from replctl.commands.attach_dialogue import Detached, SessionDialogue, detach_on_quit_signal
from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    default_session_argument,
    with_common_options,
)
from replctl.commands.foreground import TERMINAL, InputSource
from replctl.commands.params import directory_for_new
from replwire.faults import ExitCode


@click.command(cls=SessionCommand)
@default_session_argument
@click.option("--runtime", metavar="NAME", help="Runtime of a new session.")
@with_common_options
def attach(context: CommandContext, session: str, runtime: str | None) -> int:
    """Open an interactive prompt on SESSION, creating it if it does not exist.

    If an eval is running, its output is shown and followed. Enter runs a complete block, Alt-Enter adds a line. Ctrl-C
    clears the line, or interrupts running code; Ctrl-\\ leaves it running. Ctrl-D leaves; the session keeps running.
    name? shows signature and docs; /help lists the rest.
    """
    with context.client() as client:
        cwd = directory_for_new(None, client.address.endpoint)
        opened = client.new(session, runtime, cwd, reuse=True, cwd_needed=False)
        if opened.created:
            where = f" in {opened.cwd}" if opened.cwd else ""
            lost = f"; the previous session of this name was lost: {opened.cause}" if opened.cause else ""
            context.screen.notice(f"new session {session!r}{where}{lost}")
        if opened.notice:
            context.screen.notice(opened.notice)
        runs = str(client.info(session, variables=False).get("runtime"))
        if not os.isatty(0):
            with open(0, encoding="utf-8", errors="replace", closefd=False) as lines:
                answer = InputSource(lambda: lines.readline() or None)
                return _run_piped(SessionDialogue(context, client, session, runs, answer), lines.readline)
        return _run_interactive(context, SessionDialogue(context, client, session, runs, TERMINAL), client)


def _run_piped(dialogue: SessionDialogue, lines: Callable[[], str]) -> int:
    """Run each block of stdin. Returns the exit code of the last block that failed.

    Input that the code reads comes from the same source, between two blocks.
    """
    code, block = 0, ""
    while line := lines():
        block += line
        text = block.removesuffix("\n")
        if not can_be_sent(text, dialogue.runtime):
            continue
        outcome = dialogue.handle_block(text)
        if outcome is BlockOutcome.MORE:
            block = dialogue.insertion
            continue
        block = ""
        if outcome is BlockOutcome.LEAVE:
            return code
        code = dialogue.exit or code
    if block.strip():
        dialogue.handle_block(block + "\n\n")  # an empty line: nothing more comes
        code = dialogue.exit or code
    return code


def _run_interactive(context: CommandContext, dialogue: SessionDialogue, client: Client) -> int:
    from replctl.commands.attach_others import OtherEvals
    from replctl.commands.attach_prompt import SessionCompleter, build_prompt, status_line

    session = dialogue.session
    completer = SessionCompleter(dialogue, lambda: context.client(start=False))
    status = ""
    shell = build_prompt(dialogue, completer, lambda: status)
    others = OtherEvals(session, dialogue.own_evals, lambda: context.client(start=False), context.screen.block)
    begun = ""  # lines of a block that goes on
    try:
        with detach_on_quit_signal():
            dialogue.follow_running()
            while True:
                try:
                    status = status_line(client, session)
                    block = shell.prompt(default=begun, pre_run=lambda: others.start(shell.app))
                    outcome = dialogue.handle_block(block)
                except KeyboardInterrupt:  # at the prompt, or just before or after an eval
                    begun = ""
                    continue
                except EOFError:
                    break
                begun = dialogue.insertion if outcome is BlockOutcome.MORE else ""
                if outcome is BlockOutcome.LEAVE:
                    break
    except Detached:
        context.screen.note_terminal_echo(line=False)
        context.screen.notice(
            f"detached; the eval goes on in session {session!r}: replctl attach {session} shows it, "
            f"replctl interrupt {session} stops it"
        )
        return ExitCode.OK
    finally:
        completer.close()
    context.screen.notice(
        f"detached; session {session!r} keeps running with its variables: replctl attach {session} comes back, "
        f"replctl close {session} ends it"
    )
    return ExitCode.OK

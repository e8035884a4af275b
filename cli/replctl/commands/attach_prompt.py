"""The prompt of `replctl attach`: keys, completion, colours, suggestions, bottom line. Needs prompt_toolkit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer

from replctl.client.errors import ReplError
from replctl.client.sync import Client
from replctl.commands.attach_blocks import can_be_sent
from replctl.commands.attach_dialogue import SessionDialogue
from replwire.paths import state_dir
from replwire.private_directories import make_private_directory
from replwire.terminal import escape_control

_MIB = 1024 * 1024
_LEXERS = {"bash": "bash", "node": "javascript"}
_MAX_COMPLETIONS = 200


class SessionCompleter(Completer):
    """Completions of the session itself, over a connection of their own: the dialogue's may be in use."""

    def __init__(self, dialogue: SessionDialogue, connect: Callable[[], Client]) -> None:
        self._dialogue, self._connect = dialogue, connect
        self._client: Client | None = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield completions at the cursor; while typing only after a name or a dot."""
        text = document.text
        if text.startswith("/"):
            word = document.text_before_cursor
            names = [f"/{name}" for name in self._dialogue.slash_commands.names]
            yield from (Completion(each, -len(word)) for each in names if each.startswith(word))
            return
        before = document.char_before_cursor
        if not complete_event.completion_requested and not (before.isidentifier() or before == "."):
            return
        try:
            if self._client is None:
                self._client = self._connect()
            reply = self._client.complete(text, document.cursor_position, self._dialogue.session)
        except ReplError:
            self.close()
            return
        start = len(text.encode()[: reply.start or 0].decode("utf-8", "ignore"))
        for each in (reply.completions or [])[:_MAX_COMPLETIONS]:
            shown = escape_control(each.text)
            yield Completion(each.text, start - document.cursor_position, display=shown, display_meta=each.type)

    def close(self) -> None:
        """Close the connection; the next completion opens another."""
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()


def build_prompt(dialogue: SessionDialogue, completer: Completer, status: Callable[[], str]) -> PromptSession[str]:
    """Return the prompt of a session.

    Args:
        dialogue: The dialogue that it is for.
        completer: Completes what is typed.
        status: Returns the text of the bottom line.
    """
    return PromptSession(
        message=f"{dialogue.session}> ",
        multiline=True,
        prompt_continuation=lambda width, _line, _wraps: "." * (width - 1) + " ",
        history=FileHistory(_history_file()),
        key_bindings=_key_bindings(dialogue.runtime),
        enable_open_in_editor=True,
        auto_suggest=AutoSuggestFromHistory(),
        completer=completer,
        complete_in_thread=True,
        complete_while_typing=True,
        lexer=_lexer(dialogue.runtime),
        bottom_toolbar=status,
    )


def status_line(client: Client, session: str) -> str:
    """Return the bottom line: session, runtime, directory, state, evals, queue, memory; empty if there is none."""
    try:
        facts = client.info(session, variables=False)
    except ReplError:
        return ""
    memory = (facts.get("memory") or {}).get("used")
    parts = [
        session,
        str(facts.get("runtime")),
        str(facts.get("directory") or facts.get("cwd") or ""),
        str(facts.get("state")),
        f"eval {facts.get('eval-count')}, epoch {facts.get('epoch')}",
        f"{facts['queued']} queued" if facts.get("queued") else "",
        f"{memory / _MIB:.1f} MiB" if memory else "",
        "plan mode" if facts.get("session-mode") == "plan" else "",
    ]
    return escape_control("  ".join(part for part in parts if part))


def _lexer(runtime: str) -> Lexer | None:
    """Return colours for the runtime's language, if pygments is installed."""
    if find_spec("pygments") is None:
        return None
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers import get_lexer_by_name

    return PygmentsLexer(type(get_lexer_by_name(_LEXERS.get(runtime, "python"))))


def _history_file() -> str:
    """Return the path of the user's history file, created with mode 0600."""
    directory = state_dir(os.environ)
    make_private_directory(directory)
    path = os.path.join(directory, "history")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return path


def _key_bindings(runtime: str) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None  # the chosen completion stays
        elif buffer.document.is_cursor_at_the_end and can_be_sent(buffer.text, runtime):
            buffer.validate_and_handle()
        else:
            opens = buffer.document.current_line_before_cursor.rstrip().endswith(":")
            buffer.newline()
            if opens:
                buffer.insert_text("    ")

    @keys.add("escape", "enter")
    def _another_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    @keys.add("c-\\")
    def _leave(event: KeyPressEvent) -> None:
        event.app.exit(exception=EOFError)

    return keys

"""Evals of others in the session, shown above the prompt of `attach` with their names."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from replctl.client.errors import ReplError
from replctl.client.result import display_value
from replctl.client.sync import Client

if TYPE_CHECKING:
    from prompt_toolkit.application import Application

_EVENTS = ("eval/accepted", "eval/started", "eval/finished")
_MAX_KEPT = 100  # evals that have ended while no prompt was shown
_LINES = 20  # lines of code and of output that are shown


class OtherEvals:
    """Follows the evals of a session over a connection of its own, in a thread that ends with the process.

    Args:
        session: The session.
        own_evals: Numbers of the evals that the dialogue has sent, which grow.
        connect: Opens a connection.
        show: Prints a text.
    """

    def __init__(
        self, session: str, own_evals: set[int], connect: Callable[[], Client], show: Callable[[str], None]
    ) -> None:
        self._session, self._own, self._connect, self._show = session, own_evals, connect, show
        self._open: dict[int, dict[str, Any]] = {}
        self._end_lines: list[tuple[int, str]] = []
        self._lock = threading.Lock()
        self._app: Application[str] | None = None

    def start(self, app: Application[str]) -> None:
        """Show what has ended since the last prompt; at the first one begin to follow."""
        if self._app is None:
            self._app = app
            threading.Thread(target=self._follow, daemon=True).start()
        self._flush()

    def _follow(self) -> None:
        try:
            with self._connect() as client:
                for event in client.events(self._session, _EVENTS):
                    self._add(event)
        except ReplError:  # the session or the broker has ended: the dialogue says so
            pass

    def _add(self, event: dict[str, Any]) -> None:
        number = event.get("eval")
        if not isinstance(number, int):
            return
        if event["type"] != "eval/finished":
            if len(self._open) < _MAX_KEPT:
                self._open.setdefault(number, {}).update({key: each for key, each in event.items() if each})
            return
        begun = self._open.pop(number, {})
        with self._lock:
            self._end_lines = [*self._end_lines[-_MAX_KEPT:], (number, describe_eval(number, begun, event))]
        self._flush()

    def _flush(self) -> None:
        """Print above the prompt, if it is shown; else the next prompt does."""
        app = self._app
        if app is None or not app.is_running or app.loop is None:
            return
        with self._lock:
            ended, self._end_lines = self._end_lines, []
        texts = [text for number, text in ended if number not in self._own]
        if texts:
            app.loop.call_soon_threadsafe(self._print, app, "\n".join(texts))

    def _print(self, app: Application[str], text: str) -> None:
        from prompt_toolkit.application import run_in_terminal
        from prompt_toolkit.application.current import set_app

        with set_app(app):
            run_in_terminal(lambda: self._show(text))


def describe_eval(number: int, begun: dict[str, Any], ended: dict[str, Any]) -> str:
    """Return an eval of somebody else as lines: its sender and code, then what it printed, its value or error."""
    who = ended.get("agent") or begun.get("agent") or "another client"
    lines = [f"[{who}, eval {number}] " + _shorten(str(begun.get("code") or begun.get("op") or ""))]
    value = display_value(ended.get("value"), ended.get("ns"))
    for text in (ended.get("out"), ended.get("err"), value, ended.get("error")):
        if text and text.strip():
            lines.append(_shorten(text.rstrip("\n")))
    if ended.get("status") != "ok" and not ended.get("error"):
        lines.append(str(ended.get("status")))
    return "\n".join(lines)


def _shorten(text: str) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[:_LINES], f"… {len(lines) - _LINES} more lines"] if len(lines) > _LINES else lines)

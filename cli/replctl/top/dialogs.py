"""Dialogs: confirmation and help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from replctl.top.cell_text import pad

KEYS = (
    ("up down j k", "move between rows; also PgUp PgDn Home End"),
    ("Tab 1 2 3 4", "switch pane: sessions, output, jobs, agents"),
    ("Enter a", "attach: a prompt on the session; Ctrl-D returns here"),
    ("i", "interrupt the running eval; in jobs: this eval"),
    ("u", "undo the session's last eval"),
    ("r", "reset the session; variables are lost"),
    ("c", "close the session and everything it started"),
    ("/", "filter sessions and jobs; Esc clears it"),
    ("s S", "sort by the next column; reverse the order"),
    ("G", "in the output: jump to the end and follow"),
    ("? q", "this help; quit. Sessions keep running"),
)


class ConfirmDialog(ModalScreen[bool]):
    """Yes-or-no question."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)"),
        Binding("n,escape,q,enter,ctrl+c", "answer(False)"),
    ]

    def __init__(self, question: str, consequence: str) -> None:
        super().__init__()
        self._text = Text.assemble(
            (question, "bold"), f"\n\n{consequence}\n\n", (" y ", "reverse"), " yes   ", (" n ", "reverse"), " no"
        )

    def compose(self) -> ComposeResult:
        """Create the box."""
        yield Vertical(Static(self._text), classes="dialog")

    def action_answer(self, yes: bool) -> None:
        """Close with the decision."""
        self.dismiss(yes)


class HelpDialog(ModalScreen[None]):
    """List of all keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter,ctrl+c", "dismiss")]

    def __init__(self, more: Sequence[tuple[str, str]] = ()) -> None:
        """Create the dialog. `more` are keys of extensions."""
        super().__init__()
        self._keys = [*KEYS, *more]

    def compose(self) -> ComposeResult:
        """Create the box."""
        text = Text.assemble(("Keys\n", "bold"))
        for keys, description in self._keys:
            text.append(f"\n{pad(keys, 13)}", "bold cyan")
            text.append(description, "")
        text.append("\n\nEsc to close", "dim")
        yield Vertical(Static(text), classes="dialog")

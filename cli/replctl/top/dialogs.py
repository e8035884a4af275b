"""What comes over the screen: a question before something is lost, and the help."""

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
    ("up down j k", "another row; PgUp PgDn Home End, too"),
    ("Tab 1 2 3 4", "another pane: sessions, output, jobs, agents"),
    ("Enter a", "attach: a prompt on the session; Ctrl-D comes back here"),
    ("i", "interrupt what runs; among jobs: this eval"),
    ("r", "reset: a fresh worker, variables are lost"),
    ("c", "close the session, with all that it started"),
    ("/", "filter sessions and jobs; Esc ends it"),
    ("s S", "sort by another column; the other way round"),
    ("G", "in the output: the end, and follow"),
    ("? q", "this help; quit. The sessions live on"),
)


class ConfirmDialog(ModalScreen[bool]):
    """Yes or no."""

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
        """One box."""
        yield Vertical(Static(self._text), classes="dialog")

    def action_answer(self, yes: bool) -> None:
        """It is decided."""
        self.dismiss(yes)


class HelpDialog(ModalScreen[None]):
    """All keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter,ctrl+c", "dismiss")]

    def __init__(self, more: Sequence[tuple[str, str]] = ()) -> None:
        """`more` are keys of extensions."""
        super().__init__()
        self._keys = [*KEYS, *more]

    def compose(self) -> ComposeResult:
        """One box."""
        text = Text.assemble(("Keys\n", "bold"))
        for keys, told in self._keys:
            text.append(f"\n{pad(keys, 13)}", "bold cyan")
            text.append(told, "")
        text.append("\n\nEsc closes this", "dim")
        yield Vertical(Static(text), classes="dialog")

"""Dialogs: confirmation, checkpoints and help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from replctl.checkpoint_tree import COLUMNS
from replctl.top.cell_text import pad

_TREE_LINES = 12  # of a tree, at once

KEYS = (
    ("up down j k", "move between rows; also PgUp PgDn Home End"),
    ("Tab 1 2 3 4", "switch pane: sessions, output, jobs, agents"),
    ("Enter a", "attach: a prompt on the session; Ctrl-D returns here"),
    ("i", "interrupt the running eval; in jobs: this eval"),
    ("u", "undo the session's last eval"),
    ("t", "tree of the session's checkpoints: go back to one"),
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


class CheckpointDialog(ModalScreen[int | None]):
    """Tree of a session's checkpoints, with a cursor; closes with the number of the one to go back to."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("enter", "choose"),
        Binding("escape,q,ctrl+c", "dismiss(None)"),
    ]

    def __init__(self, label: str, rows: Sequence[tuple[int, Sequence[object]]]) -> None:
        """Create the dialog.

        Args:
            label: The session.
            rows: Number and cells of each checkpoint, at least one.
        """
        super().__init__()
        self._title = f"Go back to a checkpoint of session {label}"
        self._rows = rows
        self._at = len(rows) - 1
        self._first = 0

    def compose(self) -> ComposeResult:
        """Create the box."""
        yield Vertical(Static(self._draw()), classes="dialog")

    def _draw(self) -> Text:
        table = [COLUMNS, *(["-" if cell is None else str(cell) for cell in cells] for _, cells in self._rows)]
        widths = [max(len(str(row[at])) for row in table) for at in range(len(COLUMNS))]
        lines = ["  ".join(pad(str(cell), width) for cell, width in zip(row, widths, strict=True)) for row in table]
        self._first = max(min(self._first, self._at), self._at - _TREE_LINES + 1)
        text = Text.assemble((self._title, "bold"), "\n\n", (lines[0], "dim"))
        for at in range(self._first, min(len(self._rows), self._first + _TREE_LINES)):
            text.append("\n")
            text.append(lines[at + 1], "reverse" if at == self._at else "")
        return text.append("\n\nEnter: go back, evals since are undone; Esc: leave", "dim")

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self._at = max(0, min(len(self._rows) - 1, self._at + by))
        self.query_one(Static).update(self._draw())

    def action_choose(self) -> None:
        """Close with the checkpoint under the cursor."""
        self.dismiss(self._rows[self._at][0])


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

"""Panes of the screen: titled lines with a cursor or a scroll position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.text import Text
from textual.widget import Widget

from replctl.top.cell_text import Column as TableColumn
from replctl.top.cell_text import Line, TableRow, one_line, pad, table, width_of
from replctl.top.scrollback import Scrollback
from replctl.top.tables import clip
from replwire.quantities import count_of


class Pane(Widget):
    """A title and lines below it; redrawn only when they change."""

    DEFAULT_CSS = "Pane { height: 1fr; }"

    def __init__(self, number: str, name: str) -> None:
        super().__init__(id=name.lower())
        self.can_focus = bool(number)
        self._number = number
        self._title = name
        self._drawn: Text | None = None
        self.others = ""  # panes that share this place, by number

    @property
    def room(self) -> int:
        """Lines below the title."""
        return max(0, self.size.height - 1)

    def title(self) -> str:
        """Return the first line, after the pane's number."""
        return self._title

    def lines(self, width: int, height: int) -> list[Line]:  # noqa: ARG002
        """Return the lines below the title, at most `height`; none by default."""
        return []

    def scroll_by(self, lines: int) -> None:
        """Scroll down, or up if negative."""

    def draw(self) -> None:
        """Redraw if the lines have changed."""
        width = self.size.width
        whole = [self._head(width), *self.lines(width, self.room)][: self.size.height]
        drawn = to_rich_text(whole)
        if drawn != self._drawn or (self._drawn is not None and drawn.spans != self._drawn.spans):
            self._drawn = drawn
            self.refresh()

    def _head(self, width: int) -> Line:
        text = f" {self._number} {self.title()} "
        style = "bold reverse" if self.has_focus else "bold cyan"
        others = f" {self.others} " if self.others else ""
        rule = max(0, width - width_of(text) - width_of(others) - 4)
        return clip([("──", "dim"), (text, style), ("─" * rule, "dim"), (others, "cyan"), ("──", "dim")], width)

    def render(self) -> Text:
        """Return the current text."""
        return self._drawn or Text("")

    def on_resize(self) -> None:
        """Redraw for the new size."""
        self.draw()

    def on_focus(self) -> None:
        """Redraw the title."""
        self.draw()

    def on_blur(self) -> None:
        """Redraw the title."""
        self.draw()


class ExtensionPane(Pane):
    """A box of an extension with the height it asks for; hidden in a low terminal."""

    def __init__(self, number: int, title: str, height: int) -> None:
        super().__init__("", f"part-{number}")
        self._title = one_line(title)
        self._lines: list[Line] = []
        self.styles.height = height + 1
        self.add_class("part")

    def show(self, lines: list[Line]) -> None:
        """Set the lines."""
        self._lines = lines
        self.draw()

    def lines(self, width: int, height: int) -> list[Line]:  # noqa: ARG002
        """Return the lines that fit."""
        return self._lines[:height]


class TablePane(Pane):
    """Rows with a cursor, which follows its row whatever the order."""

    def __init__(
        self, number: str, name: str, columns: Sequence[TableColumn], nothing: str, marks: bool = False
    ) -> None:
        """Create the pane. `marks`: the cursor is visible from other panes as well."""
        super().__init__(number, name)
        self._columns = columns
        self._empty_text = nothing
        self._cursor_always = marks
        self._rows: list[TableRow] = []
        self._at = 0
        self._top = 0
        self.note = ""

    def show(self, rows: list[TableRow]) -> None:
        """Set the rows."""
        key = self.selected
        self._rows = rows
        found = next((at for at, row in enumerate(rows) if row.key == key), None)
        self._at = max(0, min(self._at, len(rows) - 1)) if found is None else found
        self.draw()

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        return self._rows[self._at].key if self._at < len(self._rows) else None

    def select(self, key: str) -> None:
        """Move the cursor to a row, if it exists."""
        self._at = next((at for at, row in enumerate(self._rows) if row.key == key), self._at)
        self.draw()

    def scroll_by(self, lines: int) -> None:
        """Move the cursor."""
        self._at = max(0, min(self._at + lines, len(self._rows) - 1))
        self.draw()

    def title(self) -> str:
        """Return the name with the number of rows and a note."""
        return f"{self._title} ({len(self._rows)})" + (f"  {self.note}" if self.note else "")

    def lines(self, width: int, height: int) -> list[Line]:
        """Return header and rows around the cursor."""
        if not self._rows:
            return [[(f"   {self._empty_text}", "dim")]]
        body = max(1, height - 1)
        self._top = max(0, min(self._top, self._at, len(self._rows) - body), self._at - body + 1)
        head, *rest = table(self._columns, self._rows[self._top : self._top + body], width - 2)
        found: list[Line] = [[(" ", ""), *head]]
        for at, line in enumerate(rest, self._top):
            if at == self._at and (self.has_focus or self._cursor_always):
                found.append([(pad(" " + "".join(text for text, _ in line), width), "reverse")])
            else:
                found.append([(" ", ""), *line])
        return found


class OutputPane(Pane):
    """The end of a session's output, or an earlier part while scrolled up."""

    def __init__(self, number: str, name: str) -> None:
        super().__init__(number, name)
        self._label = ""
        self._source: Scrollback | None = None
        self._lines_below = 0  # lines below the last visible one

    def show(self, label: str, source: Scrollback | None) -> None:
        """Set the output to show."""
        if label != self._label:
            self._label, self._lines_below = label, 0
        self._source = source
        self.draw()

    def scroll_by(self, lines: int) -> None:
        """Scroll up and stop following, or down to the end and follow."""
        self._lines_below = max(0, self._lines_below - lines)
        self.draw()

    def title(self) -> str:
        """Return the name with the session's label."""
        if not self._label:
            return self._title
        return f"{self._title} of {self._label}" + (
            f"  {count_of(self._lines_below, 'line')} below; G follows" if self._lines_below else ""
        )

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the last lines that fit, from the scroll position."""
        if not self._source:
            return [[("   no output yet", "dim")]] if self._label else []
        some = list(islice(self._source.backwards(max(1, width - 2)), self._lines_below + height))
        self._lines_below = max(0, min(self._lines_below, len(some) - height))
        return [[(" ", ""), *line] for line in reversed(some[self._lines_below : self._lines_below + height])]


class Bar(Widget):
    """Lines without a title: the broker at the top, the keys at the bottom."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._drawn = Text("")

    def show(self, lines: Sequence[Line]) -> None:
        """Set the lines."""
        drawn = to_rich_text([[(" ", ""), *clip(line, self.size.width - 1)] for line in lines])
        if drawn != self._drawn or drawn.spans != self._drawn.spans:
            self._drawn = drawn
            self.refresh()

    def render(self) -> Text:
        """Return the current text."""
        return self._drawn


def to_rich_text(lines: Sequence[Line]) -> Text:
    """Return lines as a textual text."""
    text = Text(no_wrap=True, end="")
    for at, line in enumerate(lines):
        if at:
            text.append("\n")
        for part, style in line:
            text.append(part, style or None)
    return text

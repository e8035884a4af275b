"""The screen of `replctl top`: panes that show the model, and the keys that change the view."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from replctl.top import tables
from replctl.top.cell_text import Line, one_line
from replctl.top.dialogs import HelpDialog
from replctl.top.entities import SessionRow
from replctl.top.feed import clock
from replctl.top.model import TopModel
from replctl.top.panes import Bar, ExtensionPane, OutputPane, Pane, TablePane
from replctl.top.screen_extensions import ScreenExtensions
from replctl.top.snapshot import snapshot_data

DRAW_SECONDS = 0.25  # redraw interval
NOTICE_SECONDS = 8.0  # display time of a notice
_KEYS = (
    ("i", "interrupt"),
    ("r", "reset"),
    ("c", "close"),
    ("a", "attach"),
    ("/", "filter"),
    ("s", "sort"),
    ("?", "help"),
    ("q", "quit"),
)
_OTHERS = {"output": "3 Jobs  4 Agents", "jobs": "2 Output  4 Agents", "agents": "2 Output  3 Jobs"}


class BrokerView(App[int]):
    """Panes of one broker's agents, sessions, jobs and output, and the keys that change the view."""

    TITLE = "replctl top"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (32, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help"),
        Binding("slash", "filter"),
        Binding("s", "sort(1)"),
        Binding("S", "reverse"),
        Binding("escape", "escape"),
        Binding("1", "pane('sessions')"),
        Binding("2", "pane('output')"),
        Binding("3", "pane('jobs')"),
        Binding("4", "pane('agents')"),
        Binding("down,j", "move(1)"),
        Binding("up,k", "move(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("pageup", "page(-1)"),
        Binding("home,g", "move(-1000000)"),
        Binding("end,G", "move(1000000)"),
    ]

    def __init__(self, model: TopModel, parts: ScreenExtensions | None = None) -> None:
        """Create the screen of `model`, with the `parts` of extensions."""
        super().__init__(ansi_color=True)  # the terminal's own colours; none with NO_COLOR
        self.theme = "ansi-dark"
        self.model = model
        self.now = clock
        self.screen_extensions = parts or ScreenExtensions()
        self._sort = "name"
        self._descending = False
        self._filter = ""
        self._footer_notice: tuple[str, str, float] = ("", "", 0.0)
        self._shown_warning = ""
        self._drawn_state = (-1, 0.0)  # the model's revision at the last redraw, and its time

    def compose(self) -> ComposeResult:
        """Create the panes, in Tab order."""
        yield Bar("broker")
        if self.screen_extensions.has_statuses:
            yield Bar("statuses")
        yield TablePane("1", "Sessions", tables.SESSIONS, "no sessions", marks=True)
        yield OutputPane("2", "Output")
        with Horizontal(id="more"):
            yield TablePane("3", "Jobs", tables.JOBS, "no evals")
            yield TablePane("4", "Agents", tables.AGENTS, "no agents")
        for number, (_, panel) in enumerate(self.screen_extensions.panels()):
            yield ExtensionPane(number, panel.title, panel.height)
        yield Input(placeholder="filter: words in name, state, runtime, owner, agent, code", id="filter", compact=True)
        yield Bar("keys")

    def on_mount(self) -> None:
        """Start the redraw timer."""
        self.query_one("#filter").display = False
        self.action_pane("output")
        self.action_pane("sessions")
        self.set_interval(DRAW_SECONDS, self._tick)
        self.call_after_refresh(self.draw)

    @property
    def is_visible(self) -> bool:
        """True if no dialog covers the panes."""
        return len(self.screen_stack) == 1 and self.is_running

    @property
    def selected_session(self) -> SessionRow | None:
        """The session under the cursor."""
        return self.model.sessions.get(self.query_one("#sessions", TablePane).selected or "")

    def _tick(self) -> None:
        """Redraw after a change, and once a second for elapsed times."""
        if self.model.revision != self._drawn_state[0] or self.now() - self._drawn_state[1] >= 1.0:
            self.draw()

    def draw(self) -> None:
        """Redraw all panes."""
        self._drawn_state = self.model.revision, self.now()
        if not self.is_visible:
            return
        model, now = self.model, self.now()
        sessions = self.query_one("#sessions", TablePane)
        visible = "" if model.may_introspect else f"  that {one_line(model.identity) or 'you'} may see"
        sessions.note = f"by {self._sort}" + (", reversed" if self._descending else "") + visible + self._filter_note()
        sessions.show(tables.session_rows(model, now, self._sort, self._descending, self._filter))
        jobs = self.query_one("#jobs", TablePane)
        jobs.note = self._filter_note().strip()
        jobs.show(tables.job_rows(model, now, self._filter))
        self.query_one("#agents", TablePane).show(tables.agent_rows(model))
        shared = self.screen.has_class("-narrow") or self.screen.has_class("-low")
        for name, others in _OTHERS.items():
            self.query_one(f"#{name}", Pane).others = others if shared else ""
        chosen = self.selected_session
        self.query_one("#output", OutputPane).show(chosen.label if chosen else "", chosen.output if chosen else None)
        self.query_one("#broker", Bar).show(tables.broker_lines(model, self.size.width - 2))
        if self.screen_extensions.needs_snapshot:
            self._draw_extensions(snapshot_data(model, now))
        self.query_one("#keys", Bar).show([self._footer(now)])

    def _draw_extensions(self, shown: dict[str, Any]) -> None:
        if self.screen_extensions.has_statuses:
            self.query_one("#statuses", Bar).show([self.screen_extensions.statuses(shown)])
        for number, (record, panel) in enumerate(self.screen_extensions.panels()):
            pane = self.query_one(f"#part-{number}", ExtensionPane)
            pane.show(self.screen_extensions.lines(record, panel, shown, pane.size.width))

    def _filter_note(self) -> str:
        return f"  /{self._filter}" if self._filter else ""

    def _footer(self, now: float) -> Line:
        problem = self.model.warning or self.screen_extensions.warning
        if problem != self._shown_warning:
            self._shown_warning = problem
            if self._shown_warning:
                self.notify_footer(self._shown_warning, "bold yellow")
        if not self.model.connected:
            return [(one_line(self.model.warning), "bold red")]
        text, style, until = self._footer_notice
        if text and now < until:
            return [(text, style)]
        line: Line = []
        for key, text in _KEYS:
            line += [(f" {key} ", "reverse"), (text + " ", "")]
        return line

    def notify_footer(self, text: str, style: str = "bold") -> None:
        """Show a message in the footer for a few seconds."""
        self._footer_notice = one_line(text), style, self.now() + NOTICE_SECONDS

    # --- keys

    def action_move(self, lines: int) -> None:
        """Move the cursor, or scroll the output."""
        if isinstance(self.focused, Pane):
            self.focused.scroll_by(lines)
            self.draw()

    def action_page(self, pages: int) -> None:
        """Move by a page."""
        if isinstance(self.focused, Pane):
            self.action_move(pages * max(1, self.focused.room - 2))

    def action_pane(self, name: str) -> None:
        """Focus a pane. In a small terminal output, jobs and agents share one place."""
        if name != "sessions":
            for each in ("output", "jobs", "agents"):
                self.query_one(f"#{each}").set_class(each == name, "-shown")
            self.query_one("#more").set_class(name != "output", "-shown")
        self.query_one(f"#{name}").focus()
        self.call_after_refresh(self.draw)

    def action_sort(self, by: int) -> None:
        """Sort by the next column."""
        names = list(tables.SORTS)
        self._sort = names[(names.index(self._sort) + by) % len(names)]
        self.draw()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._descending = not self._descending
        self.draw()

    def action_filter(self) -> None:
        """Open the filter input."""
        field = self.query_one("#filter", Input)
        field.value = self._filter
        field.display = True
        self.query_one("#keys").display = False
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self._filter = event.value
        self.draw()

    def on_input_submitted(self) -> None:
        """Close the filter input and keep the filter."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#keys").display = True
        self.query_one("#sessions").focus()
        self.call_after_refresh(self.draw)

    def action_escape(self) -> None:
        """Clear the filter, or go back to the sessions."""
        self._filter = ""
        self._close_filter()

    def action_help(self) -> None:
        """Show all keys."""
        self.push_screen(HelpDialog(self.screen_extensions.keys()))

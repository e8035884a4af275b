"""The live screen. It shows the model, and acts through the client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.events import Key
from textual.widgets import Input
from textual.worker import Worker, WorkerCancelled

from replctl.client.aio import AsyncClient
from replctl.client.errors import ReplError
from replctl.top import tables
from replctl.top.attach import attach
from replctl.top.cell_text import Line, one_line
from replctl.top.dialogs import ConfirmDialog, HelpDialog
from replctl.top.entities import SessionRow
from replctl.top.feed import BrokerFeed, clock
from replctl.top.model import TopModel
from replctl.top.panes import Bar, ExtensionPane, OutputPane, Pane, TablePane
from replctl.top.polling import CONNECTION_FAULTS
from replctl.top.screen_extensions import ScreenExtensions
from replctl.top.snapshot import snapshot_data
from replwire.replies import Reply

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


class TopApp(App[int]):
    """Screen with one broker's agents, sessions, jobs and output. `return_value` is the exit code."""

    TITLE = "replctl top"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (32, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", priority=False),
        Binding("question_mark", "help"),
        Binding("slash", "filter"),
        Binding("i", "interrupt"),
        Binding("u", "undo"),
        Binding("r", "reset"),
        Binding("c", "close"),
        Binding("a", "attach"),
        Binding("enter", "enter"),
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

    def __init__(
        self,
        model: TopModel,
        connect: Callable[[], AsyncClient] | None = None,
        interval: float = 2.0,
        agent: str = "cli",
        environ: Mapping[str, str] | None = None,
        parts: ScreenExtensions | None = None,
    ) -> None:
        """Create the screen.

        Args:
            model: The model to show.
            connect: Creates a client; None to show the model without a connection.
            interval: Seconds between polls.
            agent: Agent label, also for `attach`.
            environ: Environment for `attach`.
            parts: Screen extensions.
        """
        super().__init__(ansi_color=True)  # the terminal's own colours; none with NO_COLOR
        self.theme = "ansi-dark"
        self.model = model
        self.now = clock
        self.screen_extensions = parts or ScreenExtensions()
        self._feed = BrokerFeed(model, connect, interval) if connect is not None else None
        self._agent = agent
        self._environ = environ or {}
        self._feed_worker: Worker[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sort = "name"
        self._descending = False
        self._filter = ""
        self._footer_notice: tuple[str, str, float] = ("", "", 0.0)
        self._shown_warning = ""
        self._drawn_state = (-1, 0.0)  # the model's revision at the last redraw, and its time
        self.exit_error: ReplError | None = None

    # --- what there is to see ---

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
        """Start the feed and the redraw timer."""
        self.query_one("#filter").display = False
        self.action_pane("output")
        self.action_pane("sessions")
        self.set_interval(DRAW_SECONDS, self._tick)
        self.call_after_refresh(self.draw)
        self._loop = asyncio.get_running_loop()
        self._start_feed()

    def _start_feed(self) -> None:
        if self._feed is not None:
            self._feed_worker = self.run_worker(self._run_feed(self._feed), group="feed")

    async def _run_feed(self, feed: BrokerFeed) -> None:
        try:
            await feed.run()
        except ReplError as error:
            self.exit_error = error
            self.exit(int(error.exit))

    async def _pause_feed(self) -> None:
        """Stop the feed while another program uses the terminal."""
        if self._feed_worker is not None:
            self._feed_worker.cancel()
            try:
                await self._feed_worker.wait()
            except WorkerCancelled:
                pass

    def request_exit(self, code: int) -> None:
        """Exit with this code; for signal handlers."""
        if self._loop is None:
            raise SystemExit(code)
        self._loop.call_soon_threadsafe(self.exit, code)

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
        if len(self.screen_stack) != 1 or not self.is_running:
            return
        model, now = self.model, self.now()
        sessions = self.query_one("#sessions", TablePane)
        whose = "" if model.may_introspect else f"  that {one_line(model.identity) or 'you'} may see"
        sessions.note = f"by {self._sort}" + (", reversed" if self._descending else "") + whose + self._filter_note()
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
        if self._feed is not None and chosen is not None and (job := self._feed.earlier_output_of(chosen)) is not None:
            self.run_worker(self._feed.load_earlier_output(chosen, job), group="back")

    def _draw_extensions(self, shown: dict[str, Any]) -> None:
        if self.screen_extensions.has_statuses:
            self.query_one("#statuses", Bar).show([self.screen_extensions.statuses(shown)])
        for number, (record, panel) in enumerate(self.screen_extensions.panels()):
            pane = self.query_one(f"#part-{number}", ExtensionPane)
            pane.show(self.screen_extensions.lines(record, panel, shown, pane.size.width))

    def _filter_note(self) -> str:
        return f"  /{self._filter}" if self._filter else ""

    def _footer(self, now: float) -> Line:
        trouble = self.model.warning or self.screen_extensions.warning
        if trouble != self._shown_warning:
            self._shown_warning = trouble
            if self._shown_warning:
                self.notify_footer(self._shown_warning, "bold yellow")
        if not self.model.connected:
            return [(one_line(self.model.warning), "bold red")]
        text, style, until = self._footer_notice
        if text and now < until:
            return [(text, style)]
        line: Line = []
        for key, told in _KEYS:
            line += [(f" {key} ", "reverse"), (told + " ", "")]
        return line

    def notify_footer(self, text: str, style: str = "bold") -> None:
        """Show a message in the footer for a few seconds."""
        self._footer_notice = one_line(text), style, self.now() + NOTICE_SECONDS

    # --- keys: looking ---

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

    # --- keys: doing ---

    def _run_action_on(
        self, session: SessionRow, what: Callable[[AsyncClient], Awaitable[Any]], told: Callable[[Any], str]
    ) -> None:
        client = self._feed.client if self._feed is not None else None
        if client is None:
            self.notify_footer("not connected to the broker", "bold red")
            return

        async def run() -> None:
            try:
                self.notify_footer(told(await what(client)))
            except ReplError as error:
                hint = f" ({error.hint})" if error.hint and error.code not in CONNECTION_FAULTS else ""
                self.notify_footer(f"{session.label}: {error.message}{hint}", "bold red")
            self.draw()

        self.run_worker(run(), group="do")

    def on_key(self, event: Key) -> None:
        """Run an extension's key."""
        if len(self.screen_stack) == 1 and event.character in self.screen_extensions.controls:
            event.stop()
            self._run_control(event.character)

    def _run_control(self, key: str) -> None:
        """Run an extension's key in a thread with its own connection; a stuck one does not block quitting."""
        session = self.selected_session
        label = session.label if session is not None else None
        loop = asyncio.get_running_loop()

        def told(*what: str) -> None:
            self.notify_footer(*what)
            self.draw()

        def work() -> None:
            from replctl.client.sync import Client

            what: tuple[str, ...]
            try:
                with Client(self.model.endpoint, self._agent, start=False) as client:
                    what = (self.screen_extensions.run(key, client, label),)
            except ReplError as error:
                what = (error.message, "bold red")
            with contextlib.suppress(RuntimeError):  # the screen was closed
                loop.call_soon_threadsafe(told, *what)

        threading.Thread(target=work, name=f"key {key}", daemon=True).start()

    def action_interrupt(self) -> None:
        """Interrupt the session's running eval, or the eval under the cursor."""
        jobs = self.query_one("#jobs", TablePane)
        job = self.model.active.get(jobs.selected or "") if jobs.has_focus else None
        session = self.model.sessions.get(job.session) if job is not None else self.selected_session
        if session is None or (jobs.has_focus and job is None):
            self.notify_footer("nothing to interrupt here", "bold yellow")
            return
        label, number = session.label, job.eval_id if job is not None else None

        def told(reply: Reply) -> str:
            which = f"eval {number or reply.interrupted_id} of {label}"
            return f"interrupting {which}" if reply.interrupted else f"nothing to interrupt in {label}"

        self._run_action_on(session, lambda client: client.interrupt(session.id, number), told)

    def action_undo(self) -> None:
        """Undo the last eval of the selected session (asks for confirmation)."""
        self._confirm_then(
            "Undo the last eval of",
            "Variables and imports are as before it. A running eval is interrupted, queued ones end.",
            lambda client, key: client.rollback(key),
            "is as before its last eval",
        )

    def action_reset(self) -> None:
        """Reset the selected session (asks for confirmation)."""
        self._confirm_then(
            "Reset",
            "Its worker is killed, and its variables are lost.",
            lambda client, key: client.reset(key),
            "was reset; its variables are lost",
        )

    def action_close(self) -> None:
        """Close the selected session (asks for confirmation)."""
        self._confirm_then(
            "Close",
            "Its variables are lost, and everything it started ends.",
            lambda client, key: client.close(key),
            "is closed",
        )

    def _confirm_then(
        self, verb: str, consequence: str, what: Callable[[AsyncClient, str], Awaitable[Any]], told: str
    ) -> None:
        session = self.selected_session
        if session is None:
            self.notify_footer("no session is selected", "bold yellow")
            return

        def decided(yes: bool | None) -> None:
            if yes:
                self._run_action_on(
                    session, lambda client: what(client, session.id), lambda _: f"{session.label} {told}"
                )

        running = f"\nIt is running eval {session.running}." if session.running is not None else ""
        self.push_screen(ConfirmDialog(f"{verb} session {session.label}?", consequence + running), decided)

    async def action_enter(self) -> None:
        """Attach to the session; among jobs, show the output of its session."""
        jobs = self.query_one("#jobs", TablePane)
        if not jobs.has_focus:
            await self.action_attach()
        elif jobs.selected:
            self.query_one("#sessions", TablePane).select(jobs.selected.rpartition(":")[0])
            self.action_pane("output")

    async def action_attach(self) -> None:
        """Leave the terminal to `replctl attach`, and come back."""
        session = self.selected_session
        if session is None or session.name is None:
            self.notify_footer("attach needs a session with a name", "bold yellow")
            return
        await self._pause_feed()
        with self.suspend():
            code = attach(session.name, self.model.endpoint, self._agent, self._environ)
        self._start_feed()
        self.notify_footer(f"attach ended with exit code {code}" if code else f"back from {session.name}")
        self.draw()

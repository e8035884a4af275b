"""The live screen: the view, its feed, and the keys that act on sessions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.worker import Worker, WorkerCancelled

from replctl.checkpoint_tree import tree_rows
from replctl.client.aio import AsyncClient
from replctl.client.errors import ReplError
from replctl.top.attach import attach
from replctl.top.dialogs import CheckpointDialog, ConfirmDialog
from replctl.top.entities import SessionRow
from replctl.top.feed import BrokerFeed
from replctl.top.model import TopModel
from replctl.top.panes import TablePane
from replctl.top.polling import CONNECTION_FAULTS
from replctl.top.screen_extensions import ScreenExtensions
from replctl.top.view import BrokerView
from replwire.replies import Reply


class TopApp(BrokerView):
    """View of one broker that acts on its sessions through a client. `return_value` is the exit code."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", priority=False),
        Binding("i", "interrupt"),
        Binding("u", "undo"),
        Binding("t", "checkpoints"),
        Binding("r", "reset"),
        Binding("c", "close"),
        Binding("a", "attach"),
        Binding("enter", "enter"),
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
        super().__init__(model, parts)
        self._feed = BrokerFeed(model, connect, interval) if connect is not None else None
        self._agent = agent
        self._environ = environ or {}
        self._feed_worker: Worker[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.exit_error: ReplError | None = None

    # --- the feed ---

    def on_mount(self) -> None:
        """Start the feed."""
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

    def draw(self) -> None:
        """Redraw all panes, and load the earlier output of the session under the cursor."""
        super().draw()
        if self._feed is not None and self.is_visible and (chosen := self.selected_session) is not None:
            job = self._feed.earlier_output_of(chosen)
            if job is not None:
                self.run_worker(self._feed.load_earlier_output(chosen, job), group="back")

    # --- keys ---

    def _run_action_on(
        self, session: SessionRow, what: Callable[[AsyncClient], Awaitable[Any]], describe: Callable[[Any], str]
    ) -> None:
        client = self._feed.client if self._feed is not None else None
        if client is None:
            self.notify_footer("not connected to the broker", "bold red")
            return

        async def run() -> None:
            try:
                self.notify_footer(describe(await what(client)))
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

        def notify(*what: str) -> None:
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
                loop.call_soon_threadsafe(notify, *what)

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

        def describe(reply: Reply) -> str:
            which = f"eval {number or reply.interrupted_id} of {label}"
            return f"interrupting {which}" if reply.interrupted else f"nothing to interrupt in {label}"

        self._run_action_on(session, lambda client: client.interrupt(session.id, number), describe)

    def action_undo(self) -> None:
        """Undo the last eval of the selected session (asks for confirmation)."""
        self._confirm_then(
            "Undo the last eval of",
            "Variables and imports are as before it. A running eval is interrupted, queued ones end.",
            lambda client, key: client.rollback(key),
            "is as before its last eval",
        )

    def action_checkpoints(self) -> None:
        """Show the checkpoints of the selected session, and go back to the chosen one."""
        session = self.selected_session
        if session is None:
            self.notify_footer("no session is selected", "bold yellow")
            return

        def decided(number: int | None) -> None:
            if number is not None:
                self._run_action_on(
                    session,
                    lambda client: client.rollback(session.id, number),
                    lambda reply: f"{session.label} is back at checkpoint {reply.checkpoint}",
                )

        def show(reply: Reply) -> str:
            rows = list(tree_rows(reply.checkpoints or [], time.time()))
            if not rows:
                return f"{session.label} has no checkpoints" + (f": {off}" if (off := reply.checkpoints_off) else "")
            self.push_screen(CheckpointDialog(session.label, rows), decided)
            return ""

        self._run_action_on(session, lambda client: client.list_checkpoints(session.id), show)

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
        self, verb: str, consequence: str, what: Callable[[AsyncClient, str], Awaitable[Any]], outcome: str
    ) -> None:
        session = self.selected_session
        if session is None:
            self.notify_footer("no session is selected", "bold yellow")
            return

        def decided(yes: bool | None) -> None:
            if yes:
                self._run_action_on(
                    session, lambda client: what(client, session.id), lambda _: f"{session.label} {outcome}"
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

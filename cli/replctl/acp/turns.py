"""One prompt from start to stop reason: mode, permission, eval or command, cancel, transcript."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from replctl.acp import permissions, render, store
from replctl.acp.broker_connection import AcpBrokerConnection, unreachable_error
from replctl.acp.client_connection import AcpClientConnection
from replctl.acp.modes import Mode, stricter
from replctl.acp.permissions import Decision
from replctl.acp.rpc import one_line
from replctl.acp.slash_commands import SlashCall, SlashCommands, SlashContext
from replctl.acp.turn_updates import TurnUpdates
from replctl.client.errors import ReplError
from replctl.client.protocol import ALWAYS_ACCEPTED_BYTES
from replwire.quantities import count_of

if TYPE_CHECKING:
    from replctl.acp.sessions import AcpSession
    from replctl.client.result import Result
    from replwire.replies import Approval

WAIT_SECONDS = 3600.0  # wait of one request; then `read` continues. The eval itself has no such limit
INTERRUPT_SECONDS = 5.0  # time for the code of a cancelled turn to react to the interrupt


@dataclass(frozen=True, slots=True)
class AcpServices:
    """Services shared by all turns."""

    client: AcpClientConnection
    broker: AcpBrokerConnection
    store: store.AcpSessionStore
    commands: SlashCommands = field(default_factory=SlashCommands)
    permission_seconds: float = permissions.PERMISSION_SECONDS


class _CancelledBeforeStart(Exception):
    """Cancel arrived before the code was sent."""


class PromptTurn:
    """A prompt in progress. It is its session's `turn` from the moment it is read until it is resolved."""

    def __init__(self, services: AcpServices, session: AcpSession, text: str, links: int, mode: Mode) -> None:
        self.services, self.session, self.text = services, session, text
        self._links, self._requested_mode = links, mode
        self._record = store.StoredTurn(turn=secrets.token_hex(6), at=store.now(), prompt=store.truncate_middle(text))
        self.updates = TurnUpdates(services.client, session.id, self._record)
        self._cancelled = self._abandoned = False
        self._permission_request: int | None = None  # id of the pending permission request
        self._eval_request_id: str | None = None  # id of the eval's request, once sent
        self._eval_id: int | None = None  # the eval's number, once `read` continues it
        self._task: asyncio.Task[Any] | None = None
        self._end_event = asyncio.Event()

    @property
    def mode(self) -> Mode:
        """The effective mode: the session's mode or the prompt's, whichever is stricter."""
        return stricter(self.session.record.mode, self._requested_mode)

    def _is_plan_mode(self) -> bool:
        return self.mode is Mode.PLAN

    async def run(self) -> str:
        """Run the turn and return its stop reason. Raises RpcError if no broker can be reached."""
        self._task = asyncio.current_task()
        self._save()
        try:
            await self._work()
        except _CancelledBeforeStart:
            self.updates.close_tool_call("failed", "Not run: cancelled.")
        except asyncio.CancelledError:
            if not self._abandoned or self._task is None:
                raise
            self._task.uncancel()
            self.updates.close_tool_call("failed")
            self.updates.send_message(
                "The code ignores the interrupt and keeps running; `/jobs` shows it, `/reset` ends it."
                if self._eval_request_id is not None
                else "The command cannot be stopped and continues."
            )
        except ReplError as error:
            self.updates.close_tool_call("failed")
            if error.code == "no-broker" and not self._cancelled:
                self._record.messages.append(one_line(error.message))
                raise unreachable_error(error) from None
            self.updates.send_message(self._denial_text(error) or render.error_text(error))
            if error.code == "broker-lost":
                self.updates.send_message("The code may run on: `/jobs` shows it once a broker listens again.")
        finally:
            stop = self._resolve()
        return stop

    def _resolve(self) -> str:
        """End the turn; the only place where a turn ends. A cancel received before wins over any outcome.

        Nothing is awaited between this call and the response to the prompt.
        """
        self.updates.close_tool_call("failed")  # still open only after an internal error
        self.session.turn = None
        stop = "cancelled" if self._cancelled else "end_turn"
        self._record.stop = stop
        self._record.tool = self.updates.tool_call
        self._save()
        self._end_event.set()
        return stop

    async def _work(self) -> None:
        await self.session.wait_settled()
        self.session.set_title(self.text)
        if (mismatch := self.services.broker.take_mismatch()) is not None:
            self.updates.send_message(f"{mismatch}.")
        if self._links:
            ignored = count_of(self._links, "linked resource")
            self.updates.send_message(f"{ignored} ignored: only a prompt's text is run, as code.")
        if (call := self.services.commands.parse(self.text)) is not None:
            await self._run_command(call)
        elif self.text.strip():
            await self._evaluate()
        else:
            self.updates.send_message("Nothing to run.")

    def _save(self) -> None:
        try:
            self.services.store.append(self.session.id, self._record)
        except OSError as error:
            self.services.client.note(f"cannot write the transcript: {error.strerror}")

    # --- cancel ---

    def cancel(self) -> None:
        """Interrupt the code and give it some time to stop; the turn ends as `cancelled` either way."""
        if self._cancelled:
            return
        self._cancelled = True
        asyncio.get_running_loop().call_later(INTERRUPT_SECONDS, self.abandon)
        if self._permission_request is not None:
            self.services.client.cancel_request(self._permission_request)
        if self._eval_request_id is not None:
            self.session.run_in_background(self._interrupt())

    async def wait_ended(self) -> None:
        """Wait for the end of the turn, which comes soon after a cancel."""
        await self._end_event.wait()

    async def _interrupt(self) -> None:
        client = self.services.broker.client
        try:
            if self._eval_id is not None:
                await client.interrupt(self.session.repl_session, self._eval_id)
            else:
                await client.request("interrupt", request_id=self._eval_request_id)
        except ReplError as error:
            self.services.client.note(f"the interrupt failed: {error.message}")

    def abandon(self) -> None:
        """Stop waiting for code that ignores the interrupt; the code keeps running."""
        if not self._end_event.is_set() and self._task is not None:
            self._abandoned = True
            self._task.cancel()

    def _on_request_id(self, request: str) -> None:
        if self._cancelled:
            raise _CancelledBeforeStart
        self._eval_request_id = request

    # --- commands ---

    async def _run_command(self, call: SlashCall) -> None:
        command, commands, client = call.command, self.services.commands, self.services.broker.client
        if command is None:
            names = ", ".join(f"/{name}" for name in commands.names)
            self.updates.send_message(f"Unknown command /{call.name[:40]}. Commands: {names}")
            return
        if command.changes and not await self.authorize(f"/{call.name} {call.argument}".strip(), "other", self.text):
            return
        at = SlashContext(client, self.session.repl_session, self.mode, commands, self._on_approval)
        try:
            text = await command.run(at, call.argument)
        except ReplError as error:
            if error.code != "session-not-found" or self.session.record.session is not None:
                raise
            text = "Nothing has been run in this session yet."
        self.updates.close_tool_call("completed")
        self.updates.send_message(render.as_markdown(text))

    # --- permission ---

    async def authorize(self, title: str, kind: str, code: str) -> bool:
        """Open a tool call and return True if it may proceed; if not, close it and send the reason."""
        if self._is_plan_mode():
            self.updates.open_tool_call(title, kind, "failed", code)
            self.updates.send_message(
                "Not run: the session is in plan mode, which changes nothing. `/help` lists read-only commands."
            )
            return False
        asks = self.mode is Mode.ASK
        self.updates.open_tool_call(title, kind, "pending" if asks else "in_progress", code)
        if not asks:
            return True
        decision = await self._request_permission(code)
        self._record.permission = decision
        if decision is not Decision.ALLOWED:
            self.updates.close_tool_call("failed", permissions.DENIAL_TEXTS[decision])
            return False
        if self._is_plan_mode():  # mode changed while asking
            self.updates.close_tool_call("failed", "Not run: the session is in plan mode now.")
            return False
        self.updates.update_tool_call(status="in_progress")
        return True

    async def _on_approval(self, approval: Approval) -> bool:
        """Ask the user about an eval that a hook of the broker wants approved, whatever the session's mode."""
        self.updates.update_tool_call(title=f"{approval.title} {approval.reason}", status="pending")
        self._record.permission = decision = await self._request_permission(self.text)
        if decision is Decision.ALLOWED:
            self.updates.update_tool_call(title=render.title(self.text), status="in_progress")
        return decision is Decision.ALLOWED

    def _denial_text(self, error: ReplError) -> str | None:
        """Return the message for a user who denied a hook's approval request, or None."""
        decided = self._record.permission if error.approval is not None else None
        return None if decided is None else permissions.DENIAL_TEXTS.get(Decision(decided))

    async def _request_permission(self, code: str) -> Decision:
        if self._cancelled:
            return Decision.CANCELLED
        assert self.updates.tool_call is not None
        tool = {**self.updates.tool_call, "rawInput": {"code": code}, "content": render.tool_content(code)}
        self._permission_request = permissions.request_permission(self.services.client, self.session.id, tool)
        response = await self.services.client.wait_response(self._permission_request, self.services.permission_seconds)
        self._permission_request = None
        return Decision.CANCELLED if self._cancelled else permissions.parse_decision(response)

    # --- eval ---

    async def _evaluate(self) -> None:
        code = self.text
        await self._check_size(code)
        if not await self.authorize(render.title(code), "execute", code):
            return
        had_turns = self.session.last_turn is not None
        result = await self._run(code)
        self.updates.stop_live_output()
        self.session.on_eval_finished(result)
        record = self._record
        record.home, record.epoch, record.eval_id = self.session.repl_session_id, result.epoch, result.eval_id
        self.session.last_turn = record
        self.updates.close_tool_call(
            "completed" if result.ok else "failed", None, result.traceback or "", rawOutput=render.raw_output(result)
        )
        if self._cancelled:
            return
        for picture in render.images(result):
            self.updates.send_chunk(picture)
        for text in render.messages(result, had_turns):
            self.updates.send_message(text)

    async def _check_size(self, code: str) -> None:
        """Refuse code over the broker's limit before it is shown, which would send it back whole."""
        if len(code) > ALWAYS_ACCEPTED_BYTES // 6:
            limits = (await self.services.broker.client.describe()).limits or {}
            size, most = len(code.encode("utf-8", "surrogatepass")), limits.get("max-message-bytes")
            if most is not None and size > most:
                err = f"a prompt of {size} bytes is longer than a request may be (max-message-bytes = {most})"
                raise ReplError("message-too-large", err)

    async def _run(self, code: str) -> Result:
        session, client = self.session, self.services.broker.client
        own = session.record.session is None
        result = await client.eval(
            code,
            session.repl_session,
            wait=WAIT_SECONDS,
            on_output=self.updates.on_output,
            on_status=self.updates.on_status,
            on_request=self._on_request_id,
            create=own,
            runtime=session.record.runtime if own else None,
            cwd=session.record.cwd if own else None,
            cwd_needed=False,
            allow_stdin=False,
            mime=render.IMAGES,
            on_approval=self._on_approval,
        )
        while result.running and result.eval_id is not None:
            self._eval_id = result.eval_id
            offset = len(result.out.encode()) + len(result.err.encode())
            more = await client.read(
                session.repl_session, result.eval_id, wait=WAIT_SECONDS, offset=offset, on_output=self.updates.on_output
            )
            more.out, more.err, more.created = result.out + more.out, result.err + more.err, result.created
            more.session_id = result.session_id
            result = more
        return result

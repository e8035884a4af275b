"""One prompt from its start to its stop reason: posture, permission, eval or command, cancel, and the transcript."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from replctl.acp import permissions, records, render
from replctl.acp.commands import Commands
from replctl.acp.link import Link, unreachable
from replctl.acp.modes import Mode, narrower
from replctl.acp.peer import Peer
from replctl.acp.permissions import Decision
from replctl.acp.rpc import one_line
from replctl.client.errors import ReplError

if TYPE_CHECKING:
    from replctl.acp.sessions import Session
    from replctl.client.result import Result
    from replwire.replies import Approval, Reply

WAIT_SECONDS = 3600.0  # how long one request waits for an eval; past it, it is read on. No bound on the eval
OBEY_SECONDS = 5.0  # how long a cancelled turn waits for its code to obey the interrupt
_SHOW_SECONDS = 0.1  # between two updates with live output: each repeats all that is shown


@dataclass(frozen=True, slots=True)
class Desk:
    """What every turn works with."""

    peer: Peer
    link: Link
    records: records.Records
    commands: Commands = field(default_factory=Commands)
    permission_seconds: float = permissions.PERMISSION_SECONDS


class _Cancelled(Exception):
    """Cancel came before the code was sent."""


class Turn:
    """A prompt under way. It is in its session's `turn` from the moment it was read until it resolves."""

    def __init__(self, desk: Desk, session: Session, text: str, links: int, mode: Mode) -> None:
        self.desk, self.session, self.text = desk, session, text
        self._links, self._asked_mode = links, mode
        self._record = records.Turn(turn=secrets.token_hex(6), at=records.now(), prompt=records.bounded(text))
        self._call: dict[str, Any] | None = None  # the tool call as it stands
        self._shown = render.Shown()
        self._cancelled = self._gave_up = False
        self._asking: int | None = None  # a request for permission that is not yet answered
        self._request: str | None = None  # the eval's request, once it is sent
        self._eval: int | None = None  # its number, when it is read on
        self._task: asyncio.Task[Any] | None = None
        self._showing: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()

    @property
    def mode(self) -> Mode:
        """How much this turn may do now: the session's mode, narrowed by what the prompt asked for."""
        return narrower(self.session.record.mode, self._asked_mode)

    def _plans(self) -> bool:
        return self.mode is Mode.PLAN

    # --- from start to end ---

    async def run(self) -> str:
        """Do it; the stop reason. Raises RpcError when no broker can be reached."""
        self._task = asyncio.current_task()
        self._note_down()
        try:
            await self._work()
        except _Cancelled:
            self._end_call("failed", "Not run: cancelled.")
        except asyncio.CancelledError:
            if not self._gave_up or self._task is None:
                raise
            self._task.uncancel()
            self._end_call("failed")
            self.say(
                "The code does not obey the interrupt and runs on; `/jobs` shows it, `/reset` ends it."
                if self._request is not None
                else "The command cannot be stopped and goes on."
            )
        except ReplError as error:
            self._end_call("failed")
            if error.word == "no-broker" and not self._cancelled:
                self._record.messages.append(one_line(error.err))
                raise unreachable(error) from None
            self.say(self._denied(error) or render.refusal(error))
            if error.word == "broker-lost":
                self.say("The variables are lost with the broker; the next prompt starts a new one.")
        finally:
            stop = self._resolve()
        return stop

    def _resolve(self) -> str:
        """The one place where a turn ends. A cancel that was heard before wins over any outcome; one after is late.

        Nothing is awaited between this and the answer to the prompt.
        """
        self._end_call("failed")  # one that is still open here was left by a defect
        self.session.turn = None
        stop = "cancelled" if self._cancelled else "end_turn"
        self._record.stop = stop
        self._record.tool = self._call
        self._note_down()
        self._ended.set()
        return stop

    async def _work(self) -> None:
        await self.session.settled()
        self.session.entitle(self.text)
        if (mismatch := self.desk.link.take_mismatch()) is not None:
            self.say(f"{mismatch}.")
        if self._links:
            self.say(f"{self._links} linked resource(s) are left out: a prompt's text is run as code.")
        if (found := self.desk.commands.parse(self.text)) is not None:
            await found(self)
        elif self.text.strip():
            await self._evaluate()
        else:
            self.say("Nothing to run.")

    def _note_down(self) -> None:
        try:
            self.desk.records.append(self.session.id, self._record)
        except OSError as error:
            self.desk.peer.note(f"the transcript cannot be written: {error.strerror}")

    # --- cancel ---

    def cancel(self) -> None:
        """Stop it. The code is interrupted and gets a moment to obey; the turn ends `cancelled` either way."""
        if self._cancelled:
            return
        self._cancelled = True
        asyncio.get_running_loop().call_later(OBEY_SECONDS, self.give_up)
        if self._asking is not None:
            self.desk.peer.withdraw(self._asking)
        if self._request is not None:
            self.session.background(self._interrupt())

    async def ended(self) -> None:
        """Wait for its end; after a cancel that is soon."""
        await self._ended.wait()

    async def _interrupt(self) -> None:
        client = self.desk.link.client
        try:
            if self._eval is not None:
                await client.interrupt(self.session.home, self._eval)
            else:
                await client.request("interrupt", request_id=self._request)
        except ReplError as error:
            self.desk.peer.note(f"the interrupt failed: {error.err}")

    def give_up(self) -> None:
        """Wait no longer for code that does not obey; it runs on."""
        if not self._ended.is_set() and self._task is not None:
            self._gave_up = True
            self._task.cancel()

    def _sending(self, request: str) -> None:
        if self._cancelled:
            raise _Cancelled
        self._request = request

    # --- what the client is told ---

    def say(self, text: str) -> None:
        """A message of the agent; several of them are paragraphs."""
        first = not self._record.messages
        self._record.messages.append(records.bounded(text))
        self.desk.peer.update(
            self.session.id, "agent_message_chunk", content=render.text_block(text if first else f"\n\n{text}")
        )

    def _begin_call(self, title: str, kind: str, status: str, code: str) -> None:
        self._call = {"toolCallId": f"call-{self._record.turn}", "title": title, "kind": kind, "status": status}
        self.desk.peer.update(self.session.id, "tool_call", **self._call, rawInput={"code": code})

    def _change_call(self, **fields: Any) -> None:
        assert self._call is not None
        self._call |= fields
        self.desk.peer.update(self.session.id, "tool_call_update", toolCallId=self._call["toolCallId"], **fields)

    def _end_call(self, status: str, say: str | None = None, *texts: str, **fields: Any) -> None:
        """Close the tool call, if there is one that is open, and say why."""
        if self._showing is not None:
            self._showing.cancel()
        if self._call is not None and self._call["status"] not in ("completed", "failed"):
            content = render.in_tool(self._shown.text(), *texts)
            self._change_call(status=status, content=content, **fields)
        if say is not None:
            self.say(say)

    def done(self, text: str) -> None:
        """A command's answer, which ends it."""
        self._end_call("completed")
        self.say(render.shown(text))

    # --- permission ---

    async def may(self, title: str, kind: str, code: str) -> bool:
        """Begin a tool call and find out whether it may go on; when not, it is closed and the reason said."""
        if self._plans():
            self._begin_call(title, kind, "failed", code)
            self.say("Not run: the session is in plan mode, which changes nothing. `/help` lists what only looks.")
            return False
        asks = self.mode is Mode.ASK
        self._begin_call(title, kind, "pending" if asks else "in_progress", code)
        if not asks:
            return True
        decision = await self._ask(code)
        self._record.permission = decision
        if decision is not Decision.ALLOWED:
            self._end_call("failed", permissions.WHY_NOT[decision])
            return False
        if self._plans():  # since it was asked
            self._end_call("failed", "Not run: the session is in plan mode now.")
            return False
        self._change_call(status="in_progress")
        return True

    async def _approved(self, approval: Approval) -> bool:
        """What a hook of the broker wants a person to decide, in whatever mode the session is."""
        self._change_call(title=f"{approval.title} {approval.reason}", status="pending")
        self._record.permission = decision = await self._ask(self.text)
        if decision is Decision.ALLOWED:
            self._change_call(title=render.title(self.text), status="in_progress")
        return decision is Decision.ALLOWED

    def _denied(self, error: ReplError) -> str | None:
        """What is told who was asked for a hook, and said no."""
        decided = self._record.permission if error.approval is not None else None
        return None if decided is None else permissions.WHY_NOT.get(Decision(decided))

    async def _ask(self, code: str) -> Decision:
        if self._cancelled:
            return Decision.CANCELLED
        assert self._call is not None
        tool = {**self._call, "rawInput": {"code": code}, "content": render.in_tool(code)}
        self._asking = permissions.ask(self.desk.peer, self.session.id, tool)
        response = await self.desk.peer.response(self._asking, self.desk.permission_seconds)
        self._asking = None
        return Decision.CANCELLED if self._cancelled else permissions.read(response)

    # --- eval ---

    async def _evaluate(self) -> None:
        code = self.text
        if not await self.may(render.title(code), "execute", code):
            return
        had_turns = self.session.last is not None
        result = await self._run(code)
        if self._showing is not None:
            self._showing.cancel()
        self.session.ran(result)
        record = self._record
        record.home, record.epoch, record.eval_id = self.session.home_id, result.epoch, result.eval_id
        self.session.last = record
        self._end_call(
            "completed" if result.ok else "failed", None, result.traceback or "", rawOutput=render.raw(result)
        )
        if self._cancelled:
            return
        for picture in render.images(result):
            self.desk.peer.update(self.session.id, "agent_message_chunk", content=picture)
        for text in render.messages(result, had_turns):
            self.say(text)

    async def _run(self, code: str) -> Result:
        session, client = self.session, self.desk.link.client
        own = session.record.session is None
        result = await client.eval(
            code,
            session.home,
            wait=WAIT_SECONDS,
            on_output=self._printed,
            on_status=self._status,
            on_request=self._sending,
            create=own,
            runtime=session.record.runtime if own else None,
            cwd=session.record.cwd if own else None,
            cwd_needed=False,
            allow_stdin=False,
            mime=render.IMAGES,
            on_approval=self._approved,
        )
        while result.running and result.eval_id is not None:
            self._eval = result.eval_id
            heard = len(result.out.encode()) + len(result.err.encode())
            more = await client.read(
                session.home, result.eval_id, wait=WAIT_SECONDS, offset=heard, on_output=self._printed
            )
            more.out, more.err, more.created = result.out + more.out, result.err + more.err, result.created
            more.session_id = result.session_id
            result = more
        return result

    def _printed(self, _stream: str, text: str) -> None:
        self._shown.add(text)
        self._show_soon()

    def _status(self, reply: Reply) -> None:
        status = reply.status or ()
        if "queued" in status:
            ahead = reply.queue_position or 0
            self._change_call(content=render.in_tool(f"waiting: {ahead} eval(s) go first"))
        elif "output-dropped" in status:
            self._shown.add(f"\n…[{reply.dropped_bytes or 0} bytes came too fast to be shown]…\n")

    def _show_soon(self) -> None:
        if self._showing is None:
            self._showing = asyncio.get_running_loop().call_later(_SHOW_SECONDS, self._show)

    def _show(self) -> None:
        self._showing = None
        if self.desk.peer.slow:
            self._show_soon()
        else:
            self._change_call(content=render.in_tool(self._shown.text()))

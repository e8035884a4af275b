"""The ACP sessions that this process has open, and how one is made, found again, closed and forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from replctl.acp import options, render, store
from replctl.acp.modes import Mode
from replctl.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from replctl.acp.schema import unknown_session
from replctl.client.errors import ReplError
from replwire.faults import ExitCode

if TYPE_CHECKING:
    from replctl.acp.turns import AcpServices, PromptTurn
    from replctl.client.result import Result
    from replwire.replies import SessionEntry

MAX_OPEN = 1000  # ACP sessions that one process keeps open
_PAGE = 100  # entries of one answer to `session/list`


class AcpSession:
    """One of them. What it has beyond its record is lost with this process, and found again from the transcript."""

    def __init__(self, desk: AcpServices, record: store.AcpSessionRecord) -> None:
        self._services = desk
        self.record = record
        self.turn: PromptTurn | None = None  # the prompt under way
        self.last_turn: store.StoredTurn | None = None  # the latest one that ran something
        self.broker_snapshot = options.BrokerSnapshot()
        self.repl_session_id: str | None = None  # the broker's id of the session it works in, as far as it is known
        self.options_lock = asyncio.Lock()  # held while an option is being set: prompts wait for it
        self._background_tasks: set[asyncio.Task[Any]] = set()

    @property
    def id(self) -> str:
        """ACP's id."""
        return self.record.id

    @property
    def repl_session(self) -> str:
        """The broker's session."""
        return options.repl_session_name(self.record)

    async def wait_settled(self) -> None:
        """Wait until options that were set before are in force."""
        async with self.options_lock:
            pass

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something bounded beside the turn."""
        task = asyncio.get_running_loop().create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def set_title(self, text: str) -> None:
        """The first prompt gives the session its title."""
        if self.record.title is not None or not text.strip():
            return
        self.record.title = render.title(text)
        try:
            self._services.store.save(self.record)
        except OSError as error:
            self._services.client.note(f"the session's record cannot be written: {error.strerror}")
        self._services.client.send_update(
            self.id, "session_info_update", title=self.record.title, updatedAt=store.now()
        )

    def on_eval_finished(self, result: Result) -> None:
        """An eval has ended: keep what tells later whether its variables are still there."""
        if result.session_id is not None:
            self.repl_session_id = result.session_id

    def set_option(self, option: str, value: str) -> None:
        """Set an option, on disk before it is in force: a restart must not widen what was narrowed. Raises RpcError."""
        before, changed = self.repl_session, store.copy_record(self.record)
        options.set_option(changed, option, value, self.broker_snapshot)
        save_record(self._services, changed)
        self.record = changed
        if self.repl_session != before:
            entry = find_entry(self.repl_session, self.broker_snapshot.sessions)
            self.repl_session_id, self.last_turn = entry.session if entry else None, None

    def variables_state(self) -> dict[str, Any]:
        """What became of its variables: `kept`, `lost`, or `new` when there have been none."""
        entry = find_entry(self.repl_session, self.broker_snapshot.sessions)
        if entry is not None:
            self.repl_session_id = entry.session
        if entry is None:
            state = "new" if self.last_turn is None else "lost"
        elif self.last_turn is None:
            state = "kept" if entry.eval_count else "new"
        else:
            same = self.last_turn.home in (None, entry.session) and self.last_turn.epoch == entry.epoch
            state = "kept" if same and entry.state != "vacant" else "lost"
        cwd = entry.cwd if entry else self.record.cwd
        return {"state": state, "session": self.repl_session, "cwd": cwd, "epoch": entry.epoch if entry else None}


class AcpSessions:
    """All of them."""

    def __init__(self, desk: AcpServices, mode: Mode) -> None:
        self._services, self._mode = desk, mode
        self._open_sessions: dict[str, AcpSession] = {}

    def get(self, session_id: str) -> AcpSession:
        """One that is open. Raises RpcError."""
        session = self._open_sessions.get(session_id)
        if session is None:
            raise unknown_session(session_id, "no such session, or it is not open: load or resume it")
        return session

    def new(self, cwd: str) -> AcpSession:
        """A new one, on disk so that another process can find it. The broker hears of it with its first eval."""
        self._check_capacity()
        record = store.AcpSessionRecord(
            id=store.new_id(), cwd=cwd, created=store.now(), mode=self._mode, runtime=options.RUNTIMES[0]
        )
        save_record(self._services, record)
        self._services.store.prune(set(self._open_sessions))
        session = self._open_sessions[record.id] = AcpSession(self._services, record)
        return session

    def open(self, session_id: str, cwd: str) -> tuple[AcpSession, list[store.StoredTurn]]:
        """One of before, with its posture, and its transcript. Raises RpcError: it must exist, and be readable."""
        session = self._open_sessions.get(session_id)
        if session is None:
            record = self._load_record(session_id)
            self._check_capacity()
            session = AcpSession(self._services, record)
        turns = self._transcript(session_id)
        if session.turn is None:
            session.last_turn = next((turn for turn in reversed(turns) if turn.eval_id is not None), None)
        if session.record.cwd != cwd:
            session.record.cwd = cwd
            save_record(self._services, session.record)
        self._open_sessions[session_id] = session
        return session, turns

    def list_page(self, cwd: str | None, cursor: str | None) -> dict[str, Any]:
        """A page of all that are known, the newest first. A cursor is the id that the page before ended with."""
        newest = self._services.store.list_newest()
        if cursor is not None:
            at = next((at for at, (name, _) in enumerate(newest) if name == cursor), None)
            if at is None:
                raise RpcError(INVALID_PARAMS, "invalid cursor", {"field": "cursor"})
            newest = newest[at + 1 :]
        entries: list[dict[str, Any]] = []
        for name, used in newest:
            try:
                record = self._services.store.get(name)
            except (store.UnreadableRecord, OSError):
                continue
            if record is None or (cwd is not None and record.cwd != cwd):
                continue
            if len(entries) == _PAGE:
                return {"sessions": entries, "nextCursor": entries[-1]["sessionId"]}
            moment = datetime.fromtimestamp(used, UTC).isoformat(timespec="milliseconds")
            entries.append({"sessionId": name, "cwd": record.cwd, "title": record.title, "updatedAt": moment})
        return {"sessions": entries}

    async def close(self, session_id: str) -> None:
        """End what runs, and the broker's session if it is the ACP session's own. Its transcript stays."""
        session = self._open_sessions.get(session_id)
        if session is None:
            session = AcpSession(self._services, self._load_record(session_id))
        if session.turn is not None:
            session.turn.cancel()
            await session.turn.wait_ended()
        self._open_sessions.pop(session_id, None)
        client = self._services.broker.client
        for entry in await client.sessions():
            if entry.ref != session_id and not entry.ref.startswith(f"{session_id}-"):  # one for each runtime
                continue
            try:
                await client.close(entry.session)
            except ReplError as error:
                if error.exit is not ExitCode.NAME:  # it is gone meanwhile
                    raise

    async def delete(self, session_id: str) -> None:
        """Close it and forget it; one that is not there is deleted already."""
        try:
            await self.close(session_id)
        except RpcError:  # not known: there is nothing to close
            pass
        except ReplError as error:
            self._services.client.note(f"deleted, though its session could not be closed: {error}")
        self._services.store.delete(session_id)

    async def stop(self, seconds: float) -> None:
        """Interrupt what runs, because nobody is left to cancel it, and wait this long for it to end."""
        turns = [session.turn for session in self._open_sessions.values() if session.turn is not None]
        for turn in turns:
            turn.cancel()
        try:
            async with asyncio.timeout(seconds):
                for turn in turns:
                    await turn.wait_ended()
        except TimeoutError:
            for turn in turns:
                turn.abandon()

    def _load_record(self, session_id: str) -> store.AcpSessionRecord:
        try:
            record = self._services.store.get(session_id)
        except (store.UnreadableRecord, OSError) as error:
            # Without its record its mode is not known, and a guess could allow more than was allowed.
            self._services.client.note(f"the record of {session_id} cannot be read: {error}")
            raise RpcError(INTERNAL_ERROR, "the session's record cannot be read", {"kind": "record"}) from None
        if record is None:
            raise unknown_session(session_id)
        return record

    def _check_capacity(self) -> None:
        if len(self._open_sessions) >= MAX_OPEN:
            raise RpcError(INTERNAL_ERROR, f"{MAX_OPEN} sessions are open: close some", {"kind": "session-limit"})

    def _transcript(self, session_id: str) -> list[store.StoredTurn]:
        try:
            return self._services.store.turns(session_id)
        except OSError as error:
            self._services.client.note(f"the transcript cannot be read: {error.strerror}")
            return []


def find_entry(name: str, sessions: Sequence[SessionEntry]) -> SessionEntry | None:
    """The broker's session that this reference or id means."""
    return next((each for each in sessions if name in (each.ref, each.session)), None)


def save_record(desk: AcpServices, record: store.AcpSessionRecord) -> None:
    """Write a record. Raises RpcError: what is not on disk is not in force."""
    try:
        desk.store.save(record)
    except OSError as error:
        data = {"kind": "record", "detail": str(error)}
        raise RpcError(INTERNAL_ERROR, "the session's record cannot be written", data) from None

"""ACP sessions open in this process: creating, opening, closing and deleting them."""

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
    """An ACP session open in this process. State besides the record is rebuilt from the transcript after a restart."""

    def __init__(self, services: AcpServices, record: store.AcpSessionRecord) -> None:
        self._services = services
        self.record = record
        self.turn: PromptTurn | None = None  # the running prompt
        self.last_turn: store.StoredTurn | None = None  # the last turn that ran code
        self.broker_snapshot = options.BrokerSnapshot()
        self.repl_session_id: str | None = None  # id of the REPL session, if known
        self.options_lock = asyncio.Lock()  # held while an option is set; prompts wait for it
        self._background_tasks: set[asyncio.Task[Any]] = set()

    @property
    def id(self) -> str:
        """The ACP session id."""
        return self.record.id

    @property
    def repl_session(self) -> str:
        """Reference of the REPL session."""
        return options.repl_session_name(self.record)

    async def wait_settled(self) -> None:
        """Wait until options that were set before are in effect."""
        async with self.options_lock:
            pass

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a bounded task beside the turn."""
        task = asyncio.get_running_loop().create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    def set_title(self, text: str) -> None:
        """Set the session's title from the first prompt."""
        if self.record.title is not None or not text.strip():
            return
        self.record.title = render.title(text)
        try:
            self._services.store.save(self.record)
        except OSError as error:
            self._services.client.note(f"cannot write the session's record: {error.strerror}")
        self._services.client.send_update(
            self.id, "session_info_update", title=self.record.title, updatedAt=store.now()
        )

    def on_eval_finished(self, result: Result) -> None:
        """Remember the session that ran an eval, to tell later whether its variables survived."""
        if result.session_id is not None:
            self.repl_session_id = result.session_id

    def set_option(self, option: str, value: str) -> None:
        """Set an option, on disk first: a restart must not make a mode more permissive. Raises RpcError."""
        before, changed = self.repl_session, store.copy_record(self.record)
        options.set_option(changed, option, value, self.broker_snapshot)
        save_record(self._services, changed)
        self.record = changed
        if self.repl_session != before:
            entry = find_entry(self.repl_session, self.broker_snapshot.sessions)
            self.repl_session_id, self.last_turn = entry.session if entry else None, None

    def variables_state(self) -> dict[str, Any]:
        """Return the state of the session's variables: `kept`, `rolled-back`, `hibernated`, `lost`, or `new`."""
        entry = find_entry(self.repl_session, self.broker_snapshot.sessions)
        if entry is not None:
            self.repl_session_id = entry.session
        if entry is None:
            state = "new" if self.last_turn is None else "lost"
        elif self.last_turn is None:
            state = "kept" if entry.eval_count else "new"
        else:
            epoch, same = self.last_turn.epoch, self.last_turn.home in (None, entry.session)
            alive = same and epoch is not None and epoch >= entry.worker_epoch and entry.state != "vacant"
            state = "lost" if not alive else "kept" if epoch == entry.epoch else "rolled-back"
            state = "hibernated" if alive and entry.hibernated is not None else state
        cwd = entry.cwd if entry else self.record.cwd
        return {"state": state, "session": self.repl_session, "cwd": cwd, "epoch": entry.epoch if entry else None}


class AcpSessions:
    """All ACP sessions open in this process."""

    def __init__(self, services: AcpServices, mode: Mode) -> None:
        self._services, self._mode = services, mode
        self._open_sessions: dict[str, AcpSession] = {}

    def get(self, session_id: str) -> AcpSession:
        """Return an open session. Raises RpcError."""
        session = self._open_sessions.get(session_id)
        if session is None:
            raise unknown_session(session_id, "no such session, or not open: load or resume it first")
        return session

    def new(self, cwd: str) -> AcpSession:
        """Create and store a session, so another process can find it. The broker learns of it with the first eval."""
        self._check_capacity()
        record = store.AcpSessionRecord(
            id=store.new_id(), cwd=cwd, created=store.now(), mode=self._mode, runtime=options.RUNTIMES[0]
        )
        save_record(self._services, record)
        self._services.store.prune(set(self._open_sessions))
        session = self._open_sessions[record.id] = AcpSession(self._services, record)
        return session

    def open(self, session_id: str, cwd: str) -> tuple[AcpSession, list[store.StoredTurn]]:
        """Open a stored session and return it with its transcript. Raises RpcError if it is missing or unreadable."""
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
        """Return a page of all stored sessions, newest first. The cursor is the last id of the previous page."""
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
        """Cancel the running turn and close the REPL session if it is the ACP session's own. The transcript stays."""
        session = self._open_sessions.get(session_id)
        if session is None:
            session = AcpSession(self._services, self._load_record(session_id))
        if session.turn is not None:
            session.turn.cancel()
            await session.turn.wait_ended()
        self._open_sessions.pop(session_id, None)
        client = self._services.broker.client
        for entry in await client.sessions():
            if entry.ref != session_id and not entry.ref.startswith(f"{session_id}-"):  # one per runtime
                continue
            try:
                await client.close(entry.session)
            except ReplError as error:
                if error.exit is not ExitCode.NAME:  # closed in the meantime
                    raise

    async def delete(self, session_id: str) -> None:
        """Close and delete a session; deleting a missing session is not an error."""
        try:
            await self.close(session_id)
        except RpcError:  # unknown session: nothing to close
            pass
        except ReplError as error:
            self._services.client.note(f"deleted, but its session could not be closed: {error}")
        self._services.store.delete(session_id)

    async def stop(self, seconds: float) -> None:
        """Interrupt running turns when the client is gone, and wait up to `seconds` for them to end."""
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
            # Without the record the mode is unknown, and a guess could be too permissive.
            self._services.client.note(f"cannot read the record of {session_id}: {error}")
            raise RpcError(INTERNAL_ERROR, "cannot read the session's record", {"kind": "record"}) from None
        if record is None:
            raise unknown_session(session_id)
        return record

    def _check_capacity(self) -> None:
        if len(self._open_sessions) >= MAX_OPEN:
            raise RpcError(INTERNAL_ERROR, f"{MAX_OPEN} sessions are open: close some first", {"kind": "session-limit"})

    def _transcript(self, session_id: str) -> list[store.StoredTurn]:
        try:
            return self._services.store.turns(session_id)
        except OSError as error:
            self._services.client.note(f"cannot read the transcript: {error.strerror}")
            return []


def find_entry(name: str, sessions: Sequence[SessionEntry]) -> SessionEntry | None:
    """Return the broker's session with this reference or id, or None."""
    return next((each for each in sessions if name in (each.ref, each.session)), None)


def save_record(services: AcpServices, record: store.AcpSessionRecord) -> None:
    """Write a record. Raises RpcError: a setting that is not on disk does not take effect."""
    try:
        services.store.save(record)
    except OSError as error:
        data = {"kind": "record", "detail": str(error)}
        raise RpcError(INTERNAL_ERROR, "cannot write the session's record", data) from None

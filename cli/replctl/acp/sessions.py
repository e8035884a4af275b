"""The ACP sessions that this process has open, and how one is made, found again, closed and forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from replctl.acp import options, records, render
from replctl.acp.modes import Mode
from replctl.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from replctl.acp.schema import unknown_session
from replctl.client.errors import ReplError
from replwire.faults import Exit

if TYPE_CHECKING:
    from replctl.acp.turns import Desk, Turn
    from replctl.client.result import Result
    from replwire.replies import SessionEntry

MAX_OPEN = 1000  # ACP sessions that one process keeps open
_PAGE = 100  # entries of one answer to `session/list`


class Session:
    """One of them. What it has beyond its record is lost with this process, and found again from the transcript."""

    def __init__(self, desk: Desk, record: records.Record) -> None:
        self._desk = desk
        self.record = record
        self.turn: Turn | None = None  # the prompt under way
        self.last: records.Turn | None = None  # the latest one that ran something
        self.seen = options.Seen()
        self.home_id: str | None = None  # the broker's id of the session it works in, as far as it is known
        self.settling = asyncio.Lock()  # held while an option is being set: prompts wait for it
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def id(self) -> str:
        """ACP's id."""
        return self.record.id

    @property
    def home(self) -> str:
        """The broker's session."""
        return options.home(self.record)

    async def settled(self) -> None:
        """Wait until options that were set before are in force."""
        async with self.settling:
            pass

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something bounded beside the turn."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def entitle(self, text: str) -> None:
        """The first prompt gives the session its title."""
        if self.record.title is not None or not text.strip():
            return
        self.record.title = render.title(text)
        try:
            self._desk.records.save(self.record)
        except OSError as error:
            self._desk.peer.note(f"the session's record cannot be written: {error.strerror}")
        self._desk.peer.update(self.id, "session_info_update", title=self.record.title, updatedAt=records.now())

    def ran(self, result: Result) -> None:
        """An eval has ended: keep what tells later whether its variables are still there."""
        if result.session_id is not None:
            self.home_id = result.session_id

    def choose(self, option: str, value: str) -> None:
        """Set an option, on disk before it is in force: a restart must not widen what was narrowed. Raises RpcError."""
        before, changed = self.home, records.copy(self.record)
        options.choose(changed, option, value, self.seen)
        save(self._desk, changed)
        self.record = changed
        if self.home != before:
            entry = find(self.home, self.seen.sessions)
            self.home_id, self.last = entry.session if entry else None, None

    def state(self) -> dict[str, Any]:
        """What became of its variables: `kept`, `lost`, or `new` when there have been none."""
        entry = find(self.home, self.seen.sessions)
        if entry is not None:
            self.home_id = entry.session
        if entry is None:
            state = "new" if self.last is None else "lost"
        elif self.last is None:
            state = "kept" if entry.eval_count else "new"
        else:
            same = self.last.home in (None, entry.session) and self.last.epoch == entry.epoch
            state = "kept" if same and entry.state != "vacant" else "lost"
        cwd = entry.cwd if entry else self.record.cwd
        return {"state": state, "session": self.home, "cwd": cwd, "epoch": entry.epoch if entry else None}


class Sessions:
    """All of them."""

    def __init__(self, desk: Desk, mode: Mode) -> None:
        self._desk, self._mode = desk, mode
        self._open: dict[str, Session] = {}

    def get(self, session_id: str) -> Session:
        """One that is open. Raises RpcError."""
        session = self._open.get(session_id)
        if session is None:
            raise unknown_session(session_id, "no such session, or it is not open: load or resume it")
        return session

    def new(self, cwd: str) -> Session:
        """A new one, on disk so that another process can find it. The broker hears of it with its first eval."""
        self._room()
        record = records.Record(
            id=records.new_id(), cwd=cwd, created=records.now(), mode=self._mode, runtime=options.RUNTIMES[0]
        )
        save(self._desk, record)
        self._desk.records.prune(set(self._open))
        session = self._open[record.id] = Session(self._desk, record)
        return session

    def open(self, session_id: str, cwd: str) -> tuple[Session, list[records.Turn]]:
        """One of before, with its posture, and its transcript. Raises RpcError: it must exist, and be readable."""
        session = self._open.get(session_id)
        if session is None:
            record = self._known(session_id)
            self._room()
            session = Session(self._desk, record)
        turns = self._transcript(session_id)
        if session.turn is None:
            session.last = next((turn for turn in reversed(turns) if turn.eval_id is not None), None)
        if session.record.cwd != cwd:
            session.record.cwd = cwd
            save(self._desk, session.record)
        self._open[session_id] = session
        return session, turns

    def listed(self, cwd: str | None, cursor: str | None) -> dict[str, Any]:
        """A page of all that are known, the newest first. A cursor is the id that the page before ended with."""
        newest = self._desk.records.newest()
        if cursor is not None:
            at = next((at for at, (name, _) in enumerate(newest) if name == cursor), None)
            if at is None:
                raise RpcError(INVALID_PARAMS, "invalid cursor", {"field": "cursor"})
            newest = newest[at + 1 :]
        entries: list[dict[str, Any]] = []
        for name, used in newest:
            try:
                record = self._desk.records.get(name)
            except (records.Unreadable, OSError):
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
        session = self._open.get(session_id)
        if session is None:
            session = Session(self._desk, self._known(session_id))
        if session.turn is not None:
            session.turn.cancel()
            await session.turn.ended()
        self._open.pop(session_id, None)
        client = self._desk.link.client
        for entry in await client.sessions():
            if entry.ref != session_id and not entry.ref.startswith(f"{session_id}-"):  # one for each runtime
                continue
            try:
                await client.close(entry.session)
            except ReplError as error:
                if error.exit is not Exit.NAME:  # it is gone meanwhile
                    raise

    async def delete(self, session_id: str) -> None:
        """Close it and forget it; one that is not there is deleted already."""
        try:
            await self.close(session_id)
        except RpcError:  # not known: there is nothing to close
            pass
        except ReplError as error:
            self._desk.peer.note(f"deleted, though its session could not be closed: {error}")
        self._desk.records.delete(session_id)

    async def stop(self, seconds: float) -> None:
        """Interrupt what runs, because nobody is left to cancel it, and wait this long for it to end."""
        turns = [session.turn for session in self._open.values() if session.turn is not None]
        for turn in turns:
            turn.cancel()
        try:
            async with asyncio.timeout(seconds):
                for turn in turns:
                    await turn.ended()
        except TimeoutError:
            for turn in turns:
                turn.give_up()

    def _known(self, session_id: str) -> records.Record:
        try:
            record = self._desk.records.get(session_id)
        except (records.Unreadable, OSError) as error:
            # Without its record its mode is not known, and a guess could allow more than was allowed.
            self._desk.peer.note(f"the record of {session_id} cannot be read: {error}")
            raise RpcError(INTERNAL_ERROR, "the session's record cannot be read", {"kind": "record"}) from None
        if record is None:
            raise unknown_session(session_id)
        return record

    def _room(self) -> None:
        if len(self._open) >= MAX_OPEN:
            raise RpcError(INTERNAL_ERROR, f"{MAX_OPEN} sessions are open: close some", {"kind": "session-limit"})

    def _transcript(self, session_id: str) -> list[records.Turn]:
        try:
            return self._desk.records.turns(session_id)
        except OSError as error:
            self._desk.peer.note(f"the transcript cannot be read: {error.strerror}")
            return []


def find(name: str, sessions: Sequence[SessionEntry]) -> SessionEntry | None:
    """The broker's session that this reference or id means."""
    return next((each for each in sessions if name in (each.ref, each.session)), None)


def save(desk: Desk, record: records.Record) -> None:
    """Write a record. Raises RpcError: what is not on disk is not in force."""
    try:
        desk.records.save(record)
    except OSError as error:
        data = {"kind": "record", "detail": str(error)}
        raise RpcError(INTERNAL_ERROR, "the session's record cannot be written", data) from None

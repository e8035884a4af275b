"""The methods of ACP, each with the function that answers it, and the life of the process around them."""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from replctl import __version__
from replctl.acp import modes, options, rpc, schema
from replctl.acp.modes import Mode
from replctl.acp.peer import Notes, Peer
from replctl.acp.records import Turn as PastTurn
from replctl.acp.replay import news, replay
from replctl.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from replctl.acp.sessions import Session, Sessions
from replctl.acp.stdio import MAX_LINE, Reader, Writer
from replctl.acp.turns import Desk, Turn
from replctl.client.errors import ReplError

MAX_UNDER_WAY = 256  # requests of the client that are not yet answered
STOP_SECONDS = 3.0  # how long code may take to obey its interrupt when the client is gone
_FLUSH_SECONDS = 1.0

Params = dict[str, Any]
Then = Callable[[], None]
Answer = tuple[Params, Then | None]  # the result, and what is said after it


class Server:
    """One client's conversation."""

    def __init__(self, desk: Desk, mode: Mode) -> None:
        self._desk, self._peer = desk, desk.peer
        self.sessions = Sessions(desk, mode)
        self._tasks: dict[rpc.Id, asyncio.Task[None]] = {}
        self._turns: dict[rpc.Id, Turn] = {}
        self._requests: dict[str, Callable[[Params], Awaitable[Answer]]] = {
            "initialize": self._initialize,
            "authenticate": self._nothing,
            "logout": self._nothing,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/delete": self._delete,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_config_option,
        }

    # --- messages ---

    def hear(self, line: bytes | None) -> None:
        """Take a line from the client; None is one that was too long. Requests begin in the order they came."""
        if line is None:
            self._peer.fail(None, RpcError(rpc.PARSE_ERROR, f"Parse error: a line has more than {MAX_LINE} bytes"))
            return
        match rpc.decode(line):
            case rpc.Request() as request:
                self._request(request)
            case rpc.Notification(method, params):
                self._notification(method, params)
            case rpc.Response() as response:
                self._peer.answered(response)
            case rpc.Invalid(error, name):
                self._peer.fail(name, error)
            case None:
                self._peer.note("dropped a response without an id")

    def _request(self, request: rpc.Request) -> None:
        try:
            work = self._begin(request)
        except RpcError as error:
            self._peer.fail(request.id, error)
            return
        self._tasks[request.id] = asyncio.get_running_loop().create_task(self._serve(request, work))

    def _begin(self, request: rpc.Request) -> Coroutine[Any, Any, Answer] | Awaitable[Answer]:
        """What answers a request. A prompt takes its place here, so that a cancel right behind it finds it."""
        if request.id in self._tasks:
            raise RpcError(rpc.INVALID_REQUEST, "Invalid request: this id is in use")
        if len(self._tasks) >= MAX_UNDER_WAY:
            raise RpcError(INTERNAL_ERROR, f"{MAX_UNDER_WAY} requests are under way", {"kind": "too-many-requests"})
        if request.method == "session/prompt":
            return self._prompt(request)
        handler = self._requests.get(request.method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", {"method": request.method[:100]})
        return handler(request.params)

    async def _serve(self, request: rpc.Request, work: Awaitable[Answer]) -> None:
        then = None
        try:
            result, then = await work
        except RpcError as error:
            self._peer.fail(request.id, error)
        except ReplError as error:
            self._peer.fail(request.id, RpcError(INTERNAL_ERROR, error.err, {"kind": error.word}))
        except asyncio.CancelledError:
            self._peer.fail(request.id, RpcError(rpc.CANCELLED, "Request cancelled"))
        except Exception as error:  # noqa: BLE001 - one request's defect must not end the others
            self._peer.note(_where(error))
            self._peer.fail(request.id, RpcError(INTERNAL_ERROR, f"Internal error: {type(error).__name__}"))
        else:
            self._peer.answer(request.id, result)
        finally:
            self._tasks.pop(request.id, None)
            self._turns.pop(request.id, None)
        if then is not None:
            then()

    def _notification(self, method: str, params: Params) -> None:
        try:
            if method == "session/cancel":
                session = self.sessions.get(schema.read(schema.OneSession, params).session_id)
                if session.turn is not None:
                    session.turn.cancel()
            elif method == "$/cancel_request":
                name = schema.read(schema.CancelRequest, params).request_id
                if (turn := self._turns.get(name)) is not None:
                    turn.cancel()
                elif (task := self._tasks.get(name)) is not None:
                    task.cancel()
        except RpcError as error:  # a notification is never answered
            self._peer.note(f"dropped {method}: {error.message}")

    # --- handshake ---

    async def _initialize(self, params: Params) -> Answer:
        schema.read(schema.Initialize, params)
        no: Params = {}
        return {
            "protocolVersion": schema.PROTOCOL_VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": False, "audio": False, "embeddedContext": False},
                "mcpCapabilities": {"http": False, "sse": False},
                "sessionCapabilities": {"list": no, "delete": no, "resume": no, "close": no},
            },
            "authMethods": [],
            "agentInfo": {"name": "replctl", "title": "replctl", "version": __version__},
            "_meta": {
                "replctl": {
                    "runtimes": list(options.RUNTIMES),
                    "maxLineBytes": MAX_LINE,
                    "permissionTimeoutMs": round(self._desk.permission_seconds * 1000),
                }
            },
        }, None

    async def _nothing(self, _: Params) -> Answer:
        return {}, None

    # --- sessions ---

    async def _new(self, params: Params) -> Answer:
        cwd = schema.check_cwd(schema.read(schema.NewSession, params).cwd)
        seen = await self._desk.link.look()
        session = self.sessions.new(cwd)
        session.seen = seen
        meta = {"replctl": {"session": session.home, "cwd": cwd}}
        return {"sessionId": session.id, **self._posture(session), "_meta": meta}, lambda: self._commands(session)

    async def _load(self, params: Params) -> Answer:
        session, turns, answer = await self._open(params)
        if session.turn is not None:
            raise _busy(session)
        await replay(self._peer, session.id, turns)
        if (text := news(answer["_meta"]["replctl"])) is not None:
            self._peer.update(session.id, "agent_message_chunk", content={"type": "text", "text": text})
        return answer, lambda: self._commands(session)

    async def _resume(self, params: Params) -> Answer:
        session, _, answer = await self._open(params)
        return answer, lambda: self._commands(session)

    async def _open(self, params: Params) -> tuple[Session, list[PastTurn], Params]:
        wanted = schema.read(schema.OpenSession, params)
        name, cwd = schema.check_id(wanted.session_id), schema.check_cwd(wanted.cwd)
        session, turns = self.sessions.open(name, cwd)
        session.seen = await self._desk.link.look()
        state = session.state()
        return session, turns, {**self._posture(session), "_meta": {"replctl": state}}

    async def _list(self, params: Params) -> Answer:
        wanted = schema.read(schema.ListSessions, params)
        if wanted.cwd is not None:
            schema.check_cwd(wanted.cwd)
        return self.sessions.listed(wanted.cwd, wanted.cursor), None

    async def _close(self, params: Params) -> Answer:
        await self.sessions.close(schema.check_id(schema.read(schema.OneSession, params).session_id))
        return {}, None

    async def _delete(self, params: Params) -> Answer:
        await self.sessions.delete(schema.check_id(schema.read(schema.OneSession, params).session_id))
        return {}, None

    def _posture(self, session: Session) -> Params:
        return {"modes": modes.state(session.record.mode), "configOptions": self._options(session)}

    def _options(self, session: Session) -> list[Params]:
        return options.every(session.record, session.seen)

    def _commands(self, session: Session) -> None:
        self._peer.update(session.id, "available_commands_update", availableCommands=self._desk.commands.available())

    # --- modes and options ---

    async def _set_mode(self, params: Params) -> Answer:
        wanted = schema.read(schema.SetMode, params)
        session = self.sessions.get(schema.check_id(wanted.session_id))
        if modes.parse(wanted.mode_id) is None:
            raise RpcError(INVALID_PARAMS, "unknown mode", {"mode": wanted.mode_id[:100]})
        async with session.settling:
            session.choose("mode", wanted.mode_id)

        def then() -> None:
            self._mode_changed(session)
            self._peer.update(session.id, "config_option_update", configOptions=self._options(session))

        return {}, then

    async def _set_config_option(self, params: Params) -> Answer:
        wanted = schema.read(schema.SetConfigOption, params)
        session = self.sessions.get(schema.check_id(wanted.session_id))
        async with session.settling:
            session.seen = await self._desk.link.look()
            session.choose(wanted.config_id, wanted.value)
        then = (lambda: self._mode_changed(session)) if wanted.config_id == "mode" else None
        return {"configOptions": self._options(session)}, then

    def _mode_changed(self, session: Session) -> None:
        self._peer.update(session.id, "current_mode_update", currentModeId=session.record.mode)

    # --- prompts ---

    def _prompt(self, request: rpc.Request) -> Coroutine[Any, Any, Answer]:
        wanted = schema.read(schema.Prompt, request.params)
        session = self.sessions.get(schema.check_id(wanted.session_id))
        text, links = schema.code_of(wanted.prompt)
        if session.turn is not None:
            raise _busy(session)
        mode = modes.asked_for(wanted.meta)
        turn = session.turn = self._turns[request.id] = Turn(self._desk, session, text, links, mode)
        return self._run(turn)

    async def _run(self, turn: Turn) -> Answer:
        return {"stopReason": await turn.run()}, None

    # --- the end ---

    async def stop(self) -> None:
        """Interrupt what runs and end the connection; nothing is waited for longer than a few seconds."""
        await self.sessions.stop(STOP_SECONDS)
        for name, task in list(self._tasks.items()):
            if name not in self._turns:  # those end by themselves now
                task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._desk.link.disconnect()


def _busy(session: Session) -> RpcError:
    return RpcError(INVALID_PARAMS, "a turn is already running", {"sessionId": session.id})


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"internal error: {type(error).__name__}: {error} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"


async def serve(source: int, sink: int, notes: Notes, make_desk: Callable[[Peer], Desk], mode: Mode) -> bool:
    """Talk with the client until its end of file, a signal, or a broken pipe; False when reading failed."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    failed: list[OSError] = []

    def broken(why: str) -> None:
        notes(why)
        over.set()

    def ended(error: OSError | None) -> None:
        if error is not None:
            notes(f"cannot read from the client: {error.strerror}")
            failed.append(error)
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    loop.set_exception_handler(lambda _, context: notes(f"internal error: {context.get('exception') or context}"))
    writer = Writer(sink, broken)
    server = Server(make_desk(Peer(writer, notes)), mode)
    reader = Reader(source, server.hear, ended)
    await over.wait()
    reader.stop()
    await server.stop()
    try:
        async with asyncio.timeout(_FLUSH_SECONDS):
            await writer.flushed()
    except TimeoutError:
        notes("the client did not take the last messages")
    return not failed

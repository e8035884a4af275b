"""ACP method handlers."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from replctl import __version__
from replctl.acp import modes, options, rpc, schema
from replctl.acp.modes import Mode
from replctl.acp.replay import replay, variables_notice
from replctl.acp.rpc import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from replctl.acp.sessions import AcpSession, AcpSessions
from replctl.acp.stdio import MAX_LINE
from replctl.acp.store import StoredTurn
from replctl.acp.turns import AcpServices, PromptTurn
from replctl.client.errors import ReplError

MAX_UNDER_WAY = 256  # requests without a response yet
STOP_SECONDS = 3.0  # time for code to react to the interrupt when the client is gone

Params = dict[str, Any]
Then = Callable[[], None]
HandlerResult = tuple[Params, Then | None]  # the result, and a function to call after sending it


class AcpServer:
    """Conversation with one client."""

    def __init__(self, services: AcpServices, mode: Mode) -> None:
        self._services, self._peer = services, services.client
        self.sessions = AcpSessions(services, mode)
        self._tasks: dict[rpc.Id, asyncio.Task[None]] = {}
        self._turns: dict[rpc.Id, PromptTurn] = {}
        self._requests: dict[str, Callable[[Params], Awaitable[HandlerResult]]] = {
            "initialize": self._handle_initialize,
            "authenticate": self._handle_nothing,
            "logout": self._handle_nothing,
            "session/new": self._handle_new,
            "session/load": self._handle_load,
            "session/resume": self._handle_resume,
            "session/list": self._handle_list,
            "session/close": self._handle_close,
            "session/delete": self._handle_delete,
            "session/set_mode": self._handle_set_mode,
            "session/set_config_option": self._handle_set_config_option,
        }

    # --- messages ---

    def handle_line(self, line: bytes | None) -> None:
        """Handle a line from the client; None is a line that was too long. Requests start in order of arrival."""
        if line is None:
            self._peer.send_error(
                None, RpcError(rpc.PARSE_ERROR, f"Parse error: a line has more than {MAX_LINE} bytes")
            )
            return
        match rpc.decode(line):
            case rpc.RpcRequest() as request:
                self._handle_request(request)
            case rpc.RpcNotification(method, params):
                self._handle_notification(method, params)
            case rpc.RpcResponse() as response:
                self._peer.on_response(response)
            case rpc.InvalidMessage(error, name):
                self._peer.send_error(name, error)
            case None:
                self._peer.note("dropped a response without an id")

    def _handle_request(self, request: rpc.RpcRequest) -> None:
        try:
            work = self._start_handler(request)
        except RpcError as error:
            self._peer.send_error(request.id, error)
            return
        self._tasks[request.id] = asyncio.get_running_loop().create_task(self._run_request(request, work))

    def _start_handler(self, request: rpc.RpcRequest) -> Coroutine[Any, Any, HandlerResult] | Awaitable[HandlerResult]:
        """Return the handler's awaitable. A prompt takes its place here, so a cancel right behind it finds the turn."""
        if request.id in self._tasks:
            raise RpcError(rpc.INVALID_REQUEST, "Invalid request: this id is in use")
        if len(self._tasks) >= MAX_UNDER_WAY:
            raise RpcError(INTERNAL_ERROR, f"{MAX_UNDER_WAY} requests are in progress", {"kind": "too-many-requests"})
        if request.method == "session/prompt":
            return self._handle_prompt(request)
        handler = self._requests.get(request.method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, "Method not found", {"method": request.method[:100]})
        return handler(request.params)

    async def _run_request(self, request: rpc.RpcRequest, work: Awaitable[HandlerResult]) -> None:
        then = None
        try:
            result, then = await work
        except RpcError as error:
            self._peer.send_error(request.id, error)
        except ReplError as error:
            self._peer.send_error(request.id, RpcError(INTERNAL_ERROR, error.message, {"kind": error.code}))
        except asyncio.CancelledError:
            self._peer.send_error(request.id, RpcError(rpc.CANCELLED, "Request cancelled"))
        except Exception as error:  # noqa: BLE001 - one request's defect must not end the others
            self._peer.note(_error_location(error))
            self._peer.send_error(request.id, RpcError(INTERNAL_ERROR, f"Internal error: {type(error).__name__}"))
        else:
            self._peer.send_result(request.id, result)
        finally:
            self._tasks.pop(request.id, None)
            self._turns.pop(request.id, None)
        if then is not None:
            then()

    def _handle_notification(self, method: str, params: Params) -> None:
        try:
            if method == "session/cancel":
                session = self.sessions.get(schema.parse_params(schema.SessionParams, params).session_id)
                if session.turn is not None:
                    session.turn.cancel()
            elif method == "$/cancel_request":
                name = schema.parse_params(schema.CancelRequestParams, params).request_id
                if (turn := self._turns.get(name)) is not None:
                    turn.cancel()
                elif (task := self._tasks.get(name)) is not None:
                    task.cancel()
        except RpcError as error:  # a notification gets no response
            self._peer.note(f"dropped {method}: {error.message}")

    # --- handshake ---

    async def _handle_initialize(self, params: Params) -> HandlerResult:
        schema.parse_params(schema.InitializeParams, params)
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
                    "permissionTimeoutMs": round(self._services.permission_seconds * 1000),
                }
            },
        }, None

    async def _handle_nothing(self, _: Params) -> HandlerResult:
        return {}, None

    # --- sessions ---

    async def _handle_new(self, params: Params) -> HandlerResult:
        cwd = schema.check_cwd(schema.parse_params(schema.NewSessionParams, params).cwd)
        seen = await self._services.broker.fetch_snapshot()
        session = self.sessions.new(cwd)
        session.broker_snapshot = seen
        meta = {"replctl": {"session": session.repl_session, "cwd": cwd}}
        return {
            "sessionId": session.id,
            **self._modes_and_options(session),
            "_meta": meta,
        }, lambda: self._send_commands(session)

    async def _handle_load(self, params: Params) -> HandlerResult:
        session, turns, answer = await self._open(params)
        if session.turn is not None:
            raise _busy_error(session)
        await replay(self._peer, session.id, turns)
        if (text := variables_notice(answer["_meta"]["replctl"])) is not None:
            self._peer.send_update(session.id, "agent_message_chunk", content={"type": "text", "text": text})
        return answer, lambda: self._send_commands(session)

    async def _handle_resume(self, params: Params) -> HandlerResult:
        session, _, answer = await self._open(params)
        return answer, lambda: self._send_commands(session)

    async def _open(self, params: Params) -> tuple[AcpSession, list[StoredTurn], Params]:
        wanted = schema.parse_params(schema.OpenSessionParams, params)
        name, cwd = schema.check_id(wanted.session_id), schema.check_cwd(wanted.cwd)
        session, turns = self.sessions.open(name, cwd)
        session.broker_snapshot = await self._services.broker.fetch_snapshot()
        state = session.variables_state()
        return session, turns, {**self._modes_and_options(session), "_meta": {"replctl": state}}

    async def _handle_list(self, params: Params) -> HandlerResult:
        wanted = schema.parse_params(schema.ListSessionsParams, params)
        if wanted.cwd is not None:
            schema.check_cwd(wanted.cwd)
        return self.sessions.list_page(wanted.cwd, wanted.cursor), None

    async def _handle_close(self, params: Params) -> HandlerResult:
        await self.sessions.close(schema.check_id(schema.parse_params(schema.SessionParams, params).session_id))
        return {}, None

    async def _handle_delete(self, params: Params) -> HandlerResult:
        await self.sessions.delete(schema.check_id(schema.parse_params(schema.SessionParams, params).session_id))
        return {}, None

    def _modes_and_options(self, session: AcpSession) -> Params:
        return {"modes": modes.modes_state(session.record.mode), "configOptions": self._options(session)}

    def _options(self, session: AcpSession) -> list[Params]:
        return options.config_options(session.record, session.broker_snapshot)

    def _send_commands(self, session: AcpSession) -> None:
        self._peer.send_update(
            session.id, "available_commands_update", availableCommands=self._services.commands.available()
        )

    # --- modes and options ---

    async def _handle_set_mode(self, params: Params) -> HandlerResult:
        wanted = schema.parse_params(schema.SetModeParams, params)
        session = self.sessions.get(schema.check_id(wanted.session_id))
        if modes.parse_mode(wanted.mode_id) is None:
            raise RpcError(INVALID_PARAMS, "unknown mode", {"mode": wanted.mode_id[:100]})
        async with session.options_lock:
            session.set_option("mode", wanted.mode_id)

        def then() -> None:
            self._send_mode(session)
            self._peer.send_update(session.id, "config_option_update", configOptions=self._options(session))

        return {}, then

    async def _handle_set_config_option(self, params: Params) -> HandlerResult:
        wanted = schema.parse_params(schema.SetConfigOptionParams, params)
        session = self.sessions.get(schema.check_id(wanted.session_id))
        async with session.options_lock:
            session.broker_snapshot = await self._services.broker.fetch_snapshot()
            session.set_option(wanted.config_id, wanted.value)
        then = (lambda: self._send_mode(session)) if wanted.config_id == "mode" else None
        return {"configOptions": self._options(session)}, then

    def _send_mode(self, session: AcpSession) -> None:
        self._peer.send_update(session.id, "current_mode_update", currentModeId=session.record.mode)

    # --- prompts ---

    def _handle_prompt(self, request: rpc.RpcRequest) -> Coroutine[Any, Any, HandlerResult]:
        wanted = schema.parse_params(schema.PromptParams, request.params)
        session = self.sessions.get(schema.check_id(wanted.session_id))
        text, links = schema.code_of(wanted.prompt)
        if session.turn is not None:
            raise _busy_error(session)
        mode = modes.requested_mode(wanted.meta)
        turn = session.turn = self._turns[request.id] = PromptTurn(self._services, session, text, links, mode)
        return self._run_turn(turn)

    async def _run_turn(self, turn: PromptTurn) -> HandlerResult:
        return {"stopReason": await turn.run()}, None

    # --- the end ---

    async def stop(self) -> None:
        """Interrupt running evals and disconnect, within a few seconds."""
        await self.sessions.stop(STOP_SECONDS)
        for name, task in list(self._tasks.items()):
            if name not in self._turns:  # turns end by themselves
                task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._services.broker.disconnect()


def _busy_error(session: AcpSession) -> RpcError:
    return RpcError(INVALID_PARAMS, "a turn is already running", {"sessionId": session.id})


def _error_location(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"internal error: {type(error).__name__}: {error} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"

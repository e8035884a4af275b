"""Streamable HTTP on loopback, protected by a bearer token in a private file."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from replctl.client.address import directory_problem
from replctl.client.errors import ReplError
from replwire.faults import ExitCode
from replwire.loopback import is_loopback_host
from replwire.paths import state_dir
from replwire.private_directories import make_private_directory

PATH = "/mcp"
TOKEN_FILE = "mcp-http.token"
CLOSE_SECONDS = 2  # time for open streams when the server stops
MAX_TOKEN_BYTES = 1024


def serve_http(server: Server[Any], where: str) -> int:
    """Serve at HOST:PORT until a signal. Raises ReplError if the address or the token cannot be used."""
    listener = bind(where)
    try:
        path = os.path.join(state_dir(os.environ), TOKEN_FILE)
        guarded = TokenGuard(build_app(server, listener), load_token(path), lambda: serving.should_exit)
        url = f"http://{_authority(listener)}{PATH}"
        print(f"replctl: MCP at {url}; its bearer token is in {path}", file=sys.stderr, flush=True)
        config = uvicorn.Config(
            guarded, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=CLOSE_SECONDS
        )
        serving = uvicorn.Server(config)
        serving.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn shut down cleanly and re-raises the signal
        pass
    finally:
        listener.close()
    return ExitCode.OK


def bind(where: str) -> socket.socket:
    """Return a listening socket on loopback; port 0 takes a free one. Raises ReplError."""
    host, _, port = where.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ReplError("invalid-request", f"not HOST:PORT: {where}")
    if not is_loopback_host(host):
        raise ReplError("invalid-request", f"only loopback is served (127.0.0.1, ::1, localhost), not {host}")
    host = "127.0.0.1" if host == "localhost" else host
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise ReplError("invalid-request", f"cannot listen at {where}: {error.strerror}") from None


def load_token(path: str) -> str:
    """Return the token in this file, which is created if missing. Raises ReplError if others could read it."""
    directory = os.path.dirname(path)
    try:
        make_private_directory(directory)
        if (why := directory_problem(directory, os.getuid())) is not None:
            raise ReplError("invalid-request", f"the token's directory cannot be used: {why}")
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            pass
        else:
            with open(made, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        kept = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(kept, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise ReplError("invalid-request", f"others may read the token: chmod 600 {path}")
            text = file.read(MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise ReplError("invalid-request", f"cannot store a token at {path}: {error.strerror}") from None
    if len(text) < 32:
        raise ReplError("invalid-request", f"no token in {path}; delete the file to create a new one")
    return text


class TokenGuard:
    """Rejects requests without the token. `state.ending` tells handlers whether the server is about to stop."""

    def __init__(self, app: ASGIApp, token: str, ending: Callable[[], bool]) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Tokens are compared in constant time."""
        if scope["type"] == "http":
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._expected):
                refusal = PlainTextResponse("a bearer token is required", 401, {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
            scope.setdefault("state", {})["ending"] = self._ending
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._ending():
                raise  # else the stream was still open at the end of the grace period


def build_app(server: Server[Any], listener: socket.socket) -> ASGIApp:
    """Return the SDK's endpoint with Host and Origin checks, which protect against DNS rebinding by a web page."""
    port = listener.getsockname()[1]
    names = {f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", _authority(listener)}
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=sorted(names),
        allowed_origins=sorted(f"http://{name}" for name in names),
    )
    return server.streamable_http_app(streamable_http_path=PATH, transport_security=security)


def _authority(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""MCP servers as contenders: how each is started, and what runs code, resets and shows a picture in it.

A client of bare lines drives all of them: none is slowed by a library on this side.
"""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import ours, procs
from replctl import Client, ReplError

REPLCTL = [sys.executable, "-P", "-m", "replctl", "mcp"]
PYKERNEL = procs.ROOT / ".bench/pykernel/bin/pykernel-mcp"  # `make bench` puts it there: it needs an older `mcp`
POSIT = Path(sys.executable).with_name("mcp-repl")
POOL = 4  # warm workers of our brokers
encode = msgspec.json.Encoder().encode


class ToolAnswer(NamedTuple):
    """Answer of a tool.

    The text that a model reads, the number of pictures, and the characters of the whole message without picture data.
    """

    text: str
    pictures: int
    sent: int


class McpConversation:
    """A server and its client, one request at a time."""

    log: Path | None = None  # where the server's stderr goes, if not to ours

    def __init__(self, argv: list[str], directory: Path, env: dict[str, str] | None = None) -> None:
        self._process = procs.start(argv, env, self.log, cwd=directory)
        assert self._process.stdin is not None
        self._in = self._process.stdin
        self._count = 0
        hello = {"capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.ask("initialize", protocolVersion="2025-06-18", **hello)
        self._put({"method": "notifications/initialized"})

    def _put(self, message: dict[str, Any]) -> None:
        self._in.write(encode({"jsonrpc": "2.0", **message}).decode() + "\n")
        self._in.flush()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its result. Raises KeyError if the answer is an error."""
        self._count += 1
        self._put({"id": self._count, "method": method, "params": params})
        while True:
            message = msgspec.json.decode(procs.read_line(self._process))
            if message.get("id") == self._count and "method" not in message:
                return dict(message["result"])

    def call(self, tool: str, **arguments: Any) -> ToolAnswer:
        """One call of a tool, whatever its code does."""
        result = self.ask("tools/call", name=tool, arguments=arguments)
        text = "\n".join(part.get("text", "") for part in result["content"])
        pictures = 0
        for part in result["content"]:
            holder, key = (part, "data") if part["type"] == "image" else (part.get("resource", {}), "blob")
            if key in holder:
                pictures, holder[key] = pictures + 1, ""
        return ToolAnswer(text, pictures, len(encode(result)))

    def close(self) -> None:
        """End the server, and what it started."""
        below = procs.process_tree(self._process.pid)[1:]
        procs.stop(self._process)
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class McpPeer(McpConversation, ABC):
    """A server that is timed."""

    @abstractmethod
    def eval(self, code: str) -> ToolAnswer:
        """Run code."""

    @abstractmethod
    def reset(self) -> ToolAnswer:
        """Start a fresh process and return its answer to `1+1`."""

    def wait_until_idle(self) -> None:
        """Come to rest: nothing is left over from the call before."""


class ReplctlMcp(McpPeer):
    """`replctl mcp`, in a session that ends with it: the directory it was opened with does too."""

    _session = "bench"
    broker: ours.RawClient | None = None

    def eval(self, code: str) -> ToolAnswer:
        """Run code."""
        return self.call("eval", code=code, session=self._session, wait=60)

    def reset(self) -> ToolAnswer:
        """Reset in two calls."""
        self.call("reset", session=self._session)
        return self.eval("1+1")

    def wait_until_idle(self) -> None:
        """Wait until the pool of warm workers is full again."""
        if self.broker is not None:
            self.broker.wait_warm(POOL)

    def close(self) -> None:
        """End the session and the server. A broker that it started is ended by `ColdReplctlMcp`."""
        self.call("sessions", action="close", session=self._session)
        procs.stop(self._process)


class PositMcp(McpPeer):
    """`mcp-repl`."""

    def eval(self, code: str) -> ToolAnswer:
        """Run code."""
        return self.call("repl", input=code + "\n", timeout_ms=30_000)

    def reset(self) -> ToolAnswer:
        """Reset in one call, whose first character does it."""
        return self.eval("\x041+1")


class PyKernelMcp(McpPeer):
    """`pykernel-mcp`. A model reads its text; the page for people that comes with each answer is only sent."""

    log = Path(os.devnull)  # two lines for each call

    def eval(self, code: str) -> ToolAnswer:
        """Run code."""
        return self.call("execute_python", code=code)

    def reset(self) -> ToolAnswer:
        """Reset in two calls."""
        self.call("restart_kernel")
        return self.eval("1+1")


class McpContender:
    """Contender that can be started, up to its first answer; `conversation` is the one that runs."""

    def __init__(
        self,
        kind: type[McpPeer],
        argv: list[str],
        env: dict[str, str] | None = None,
        broker: ours.RawClient | None = None,
    ) -> None:
        self._kind, self._argv, self._env, self._broker = kind, argv, env, broker
        self._stack = ExitStack()
        self.conversation: McpPeer | None = None

    def start(self) -> None:
        """Start it in a directory of its own, which is its sessions' workspace."""
        self.conversation = self._kind(self._argv, self._stack.enter_context(procs.temporary_directory()), self._env)
        if isinstance(self.conversation, ReplctlMcp):
            self.conversation.broker = self._broker
        self._stack.callback(self.conversation.close)
        assert is_two(self.conversation.eval("1+1"))

    def end(self) -> None:
        """End it, and what it started."""
        self._stack.close()
        self.conversation = None

    def ensure_started(self) -> McpPeer:
        """Return the server, started if it was not."""
        if self.conversation is None:
            self.start()
        assert self.conversation is not None
        return self.conversation


class ColdReplctlMcp(McpContender):
    """Ours when no broker runs yet: the first call starts one."""

    def __init__(self) -> None:
        super().__init__(ReplctlMcp, REPLCTL)

    def start(self) -> None:
        """Start it, with a state directory of its own."""
        state = self._stack.enter_context(procs.temporary_directory())
        self._env = env_of(state)
        self._stack.callback(_stop_broker, f"ipc://{state}/run/broker.sock")
        super().start()


def is_two(expected: ToolAnswer) -> bool:
    """Return whether this answers `1+1`."""
    return "2" in expected.text.splitlines()


def env_of(state: Path) -> dict[str, str]:
    """For a server whose broker keeps its state there."""
    config = state / "config.toml"
    if not config.exists():
        config.write_text(ours.ALLOW_UNSANDBOXED)
    return {"REPLCTL_STATE_DIR": str(state), "REPLCTL_CONFIG": str(config)}


def _stop_broker(endpoint: str) -> None:
    with suppress(ReplError), Client(endpoint, start=False) as client:
        client.shutdown()

"""`replctl mcp` at an MCP client that speaks bare lines, beside posit's mcp-repl, sandboxes on and off.

The peer waits after each call until output has settled, so that late output comes along: its calls take that long.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from bench import ours, procs
from bench.stats import Role, Row, Table
from bench.turns import Plan, Turn, in_turns, scaled
from replctl import Client, ReplError

_REPLCTL = [sys.executable, "-P", "-m", "replctl", "mcp"]
_OURS, _PEER, _COLD = "replctl mcp", "posit mcp-repl", "replctl mcp that starts its broker"
_FLOOD = "for n in range(50_000): print('x' * 99)\n"
_MS = 1e3
_encode = msgspec.json.Encoder().encode


class Talk:
    """A server and its client, one request at a time."""

    def __init__(self, argv: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
        self._process = procs.start(argv, env, cwd=folder)
        assert self._process.stdin is not None
        self._in = self._process.stdin
        self._count = 0
        hello = {"capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self.ask("initialize", protocolVersion="2025-06-18", **hello)
        self._put({"method": "notifications/initialized"})

    def _put(self, message: dict[str, Any]) -> None:
        self._in.write(_encode({"jsonrpc": "2.0", **message}).decode() + "\n")
        self._in.flush()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A request to its result. Raises KeyError when the answer is an error."""
        self._count += 1
        self._put({"id": self._count, "method": method, "params": params})
        while True:
            message = msgspec.json.decode(procs.line_from(self._process))
            if message.get("id") == self._count and "method" not in message:
                return dict(message["result"])

    def call(self, tool: str, **arguments: Any) -> str:
        """A tool's text. Raises RuntimeError when the tool says that it failed."""
        result = self.ask("tools/call", name=tool, arguments=arguments)
        text = "\n".join(part.get("text", "") for part in result["content"])
        if result.get("isError"):
            raise RuntimeError(text)
        return text

    def eval(self, code: str) -> str:
        """Run code."""
        raise NotImplementedError

    def reset(self) -> str:
        """A fresh process, and the answer of a first eval in it."""
        raise NotImplementedError

    def close(self) -> None:
        """End the server."""
        procs.end(self._process)


class Ours(Talk):
    """`replctl mcp`, in a session that ends with it: the folder it was opened with does too."""

    _session = "bench"

    def eval(self, code: str) -> str:
        """As above."""
        return self.call("eval", code=code, session=self._session)

    def reset(self) -> str:
        """As above: two calls."""
        self.call("reset", session=self._session)
        return self.eval("1+1")

    def close(self) -> None:
        """As above."""
        self.call("sessions", action="close", session=self._session)
        super().close()


class Posit(Talk):
    """`mcp-repl`."""

    def eval(self, code: str) -> str:
        """As above."""
        return self.call("repl", input=code + "\n", timeout_ms=30_000)

    def reset(self) -> str:
        """As above: one call, whose first character resets."""
        return self.eval("\x041+1")


class Server:
    """How to start one contender, up to its first answer; `talk` is the one that runs."""

    def __init__(self, kind: type[Talk], argv: list[str], env: dict[str, str] | None = None) -> None:
        self._kind, self._argv, self._env = kind, argv, env
        self._stack = ExitStack()
        self.talk: Talk | None = None

    def start(self) -> None:
        """Start it in a folder of its own, which is its sessions' workspace."""
        self.talk = self._kind(self._argv, self._stack.enter_context(procs.folder()), self._env)
        self._stack.callback(self.talk.close)
        assert "2" in self.talk.eval("1+1").splitlines()

    def end(self) -> None:
        """End it, and what it started."""
        self._stack.close()

    def running(self) -> Talk:
        """The server, started if it was not."""
        if self.talk is None:
            self.start()
        assert self.talk is not None
        return self.talk


class Cold(Server):
    """Ours when no broker runs yet: the first call starts one."""

    def __init__(self) -> None:
        super().__init__(Ours, _REPLCTL)

    def start(self) -> None:
        """As above."""
        state = self._stack.enter_context(procs.folder())
        self._env = _env(state)
        self._stack.callback(_shut_down, f"ipc://{state}/run/broker.sock")
        super().start()


def measure(plan: Plan) -> list[Table]:
    """Start, call, reset, and how much text a model is given for a flood of output and for the list of tools."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for sandbox in (True, False):
            broker = stack.enter_context(ours.broker(4, sandbox=sandbox))
            state = "on" if broker.raw().sandboxed() else "off"
            argv = [*_REPLCTL, "--endpoint", broker.endpoint]
            servers[f"{_OURS}, sandbox {state}"] = Server(Ours, argv, _env(broker.state))
        servers[_COLD] = Cold()
        peer = Path(sys.executable).with_name("mcp-repl")
        if peer.exists():
            for state, mode in (("on", "workspace-write"), ("off", "danger-full-access")):
                argv = [str(peer), "--interpreter", "python", "--sandbox", mode]
                servers[f"{_PEER}, sandbox {state}"] = Server(Posit, argv)
        for server in servers.values():
            stack.callback(server.end)

        starts = {who: Turn(server.start, 1, before=server.end) for who, server in servers.items()}
        tables = [
            _table("start", "Start of an MCP server to the answer of its first call", in_turns(starts, plan.of(8, 2)))
        ]
        servers.pop(_COLD).end()
        talks = {who: server.running() for who, server in servers.items()}

        def evaluate(talk: Talk) -> None:
            assert "2" in talk.eval("1+1").splitlines()

        def reset(talk: Talk) -> None:
            assert "2" in talk.reset().splitlines()

        calls = {who: Turn(lambda talk=talk: evaluate(talk), 10) for who, talk in talks.items()}  # type: ignore[misc]
        resets = {who: Turn(lambda talk=talk: reset(talk), 1) for who, talk in talks.items()}  # type: ignore[misc]
        tables.append(_table("call", "A tool call of `1+1`", in_turns(calls, plan.of(10, 2))))
        tables.append(_table("reset", "Reset by tool calls, to the answer of a first eval",
                             in_turns(resets, plan.of(10, 2), warm_up=1)))  # fmt: skip
        texts = {who: [float(len(talk.eval(_FLOOD)))] for who, talk in talks.items()}
        tables.append(_table("output", "What a model is given of 5 MB of output", texts, "characters", 1, "floor"))
        lists = {who: [float(len(_encode(talk.ask("tools/list")["tools"])))] for who, talk in talks.items()}
        tables.append(_table("tools", "What a model is given as list of tools", lists, "characters", 1))
    return tables


def _table(
    name: str, title: str, samples: dict[str, list[float]], unit: str = "ms", factor: float = _MS, peer: Role = "peer"
) -> Table:
    rows = [Row(who, peer if who.startswith(_PEER) else "ours", scaled(kept, factor)) for who, kept in samples.items()]
    return Table(f"mcp-{name}", title, unit, rows[0].who, rows)


def _env(state: Path) -> dict[str, str]:
    config = state / "config.toml"
    if not config.exists():
        config.write_text(ours.MAY)
    return {"REPLCTL_STATE_DIR": str(state), "REPLCTL_CONFIG": str(config)}


def _shut_down(endpoint: str) -> None:
    with suppress(ReplError), Client(endpoint, start=False) as client:
        client.shutdown()

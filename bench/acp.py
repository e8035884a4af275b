"""A prompt of `1+1` through `replctl acp`, beside an agent on the official SDK that runs nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench import ours, procs
from bench.stats import Row, Table
from bench.turns import Plan, Turn, in_turns, scaled

AGENT, ECHO = "replctl acp", "SDK agent that says 2"
_US, _MS = 1e6, 1e3
_encode = msgspec.json.Encoder().encode


class _Conversation:
    """A client of one agent, one request at a time."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self._process = procs.start(argv, env)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._count = 0
        self.said: list[str] = []
        self.call("initialize", protocolVersion=1)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask, and read until the answer."""
        self._count += 1
        message = _encode({"jsonrpc": "2.0", "id": self._count, "method": method, "params": params})
        self._in.write(message.decode() + "\n")
        self._in.flush()
        self.said.clear()
        while True:
            message = msgspec.json.decode(self._out.readline())
            if message.get("id") == self._count:
                return dict(message["result"])
            update = message["params"]["update"]
            if update["sessionUpdate"] == "agent_message_chunk":
                self.said.append(update["content"]["text"])

    def open(self, folder: Path) -> str:
        """A session."""
        return str(self.call("session/new", cwd=str(folder), mcpServers=[])["sessionId"])

    def prompt(self, session: str) -> None:
        """`1+1` to its answer."""
        done = self.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "1+1"}])
        assert (done["stopReason"], "".join(self.said)) == ("end_turn", "2")

    def end(self) -> None:
        """End the agent."""
        procs.end(self._process)


@contextmanager
def _agent(argv: list[str], env: dict[str, str]) -> Iterator[_Conversation]:
    conversation = _Conversation(argv, env)
    try:
        yield conversation
    finally:
        conversation.end()


def measure(plan: Plan) -> list[Table]:
    """Two tables: a prompt, and the start of the process up to its first answer."""
    with ExitStack() as stack:
        broker = stack.enter_context(ours.broker())
        client = broker.client()
        client.new("library")
        env = {
            "REPLCTL_ENDPOINT": broker.endpoint,
            "REPLCTL_STATE_DIR": str(broker.state),
            "XDG_CONFIG_HOME": str(broker.state),
        }
        argv = {AGENT: [sys.executable, "-m", "replctl", "acp"], ECHO: [sys.executable, "-m", "bench.acp_echo"]}
        talks = {who: stack.enter_context(_agent(command, env)) for who, command in argv.items()}
        work = stack.enter_context(procs.folder())  # /tmp itself, and the broker's state, no sandboxed session may have
        sessions = {who: talk.open(work) for who, talk in talks.items()}

        def library() -> None:
            assert client.eval("1+1", session="library").value == "2"

        many = plan.of(200, 50)
        turns = {
            ECHO: Turn(lambda: talks[ECHO].prompt(sessions[ECHO]), many),
            ours.LIBRARY: Turn(library, many),
            AGENT: Turn(lambda: talks[AGENT].prompt(sessions[AGENT]), many),
        }
        seconds = in_turns(turns, plan.of(10, 3))
        prompts = [Row(who, "floor" if who == ECHO else "ours", scaled(kept, _US)) for who, kept in seconds.items()]

        def start(who: str) -> None:
            _Conversation(argv[who], env).end()

        starts = in_turns({who: Turn(partial(start, who), 1) for who in argv}, plan.of(15, 4), warm_up=1)
        first = [Row(who, "peer" if who == ECHO else "ours", scaled(kept, _MS)) for who, kept in starts.items()]
    return [
        Table("acp", "A prompt of `1+1` through ACP (the SDK's agent runs nothing)", "us", ECHO, prompts),
        Table("acp-start", "Start of an ACP agent to its first answer, and its end", "ms", AGENT, first),
    ]

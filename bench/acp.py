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
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

AGENT, ECHO = "replctl acp", "SDK agent that says 2"
_US, _MS = 1e6, 1e3
_encode = msgspec.json.Encoder().encode


class _AcpConversation:
    """A client of one agent, one request at a time."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self._process = procs.start(argv, env)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._count = 0
        self.chunks: list[str] = []
        self.call("initialize", protocolVersion=1)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask, and read until the answer."""
        self._count += 1
        message = _encode({"jsonrpc": "2.0", "id": self._count, "method": method, "params": params})
        self._in.write(message.decode() + "\n")
        self._in.flush()
        self.chunks.clear()
        while True:
            message = msgspec.json.decode(self._out.readline())
            if message.get("id") == self._count:
                return dict(message["result"])
            update = message["params"]["update"]
            if update["sessionUpdate"] == "agent_message_chunk":
                self.chunks.append(update["content"]["text"])

    def open(self, directory: Path) -> str:
        """Open a session; return its id."""
        return str(self.call("session/new", cwd=str(directory), mcpServers=[])["sessionId"])

    def prompt(self, session: str) -> None:
        """`1+1` to its answer."""
        done = self.call("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "1+1"}])
        assert (done["stopReason"], "".join(self.chunks)) == ("end_turn", "2")

    def end(self) -> None:
        """End the agent."""
        procs.stop(self._process)


@contextmanager
def _agent(argv: list[str], env: dict[str, str]) -> Iterator[_AcpConversation]:
    conversation = _AcpConversation(argv, env)
    try:
        yield conversation
    finally:
        conversation.end()


def measure(plan: BenchPlan) -> list[BenchTable]:
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
        work = stack.enter_context(
            procs.temporary_directory()
        )  # /tmp itself, and the broker's state, no sandboxed session may have
        sessions = {who: talk.open(work) for who, talk in talks.items()}

        def library() -> None:
            assert client.eval("1+1", session="library").value == "2"

        many = plan.of(200, 50)
        turns = {
            ECHO: TimedCall(lambda: talks[ECHO].prompt(sessions[ECHO]), many),
            ours.LIBRARY: TimedCall(library, many),
            AGENT: TimedCall(lambda: talks[AGENT].prompt(sessions[AGENT]), many),
        }
        seconds = time_in_turns(turns, plan.of(10, 3))
        prompts = [
            SampleRow(who, "floor" if who == ECHO else "ours", scale(kept, _US)) for who, kept in seconds.items()
        ]

        def start(who: str) -> None:
            _AcpConversation(argv[who], env).end()

        starts = time_in_turns({who: TimedCall(partial(start, who), 1) for who in argv}, plan.of(15, 4), warm_up=1)
        first = [SampleRow(who, "peer" if who == ECHO else "ours", scale(kept, _MS)) for who, kept in starts.items()]
    return [
        BenchTable("acp", "A prompt of `1+1` through ACP (the SDK's agent runs nothing)", "us", ECHO, prompts),
        BenchTable("acp-start", "Start of an ACP agent to its first answer, and its end", "ms", AGENT, first),
    ]

"""`replctl acp` as a subprocess, and the client's end of its stdio. Every line that comes is held against the schema."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from acp_schema import check

TIMEOUT_S = 20.0
Message = dict[str, Any]
COMMAND = [sys.executable, "-m", "replctl", "acp"]

Start = Callable[..., "Agent"]


def environ(directory: Path, endpoint: str) -> dict[str, str]:
    """An environment in which nothing of the user's counts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REPLCTL_")}
    return kept | {
        "REPLCTL_STATE_DIR": str(directory),
        "XDG_CONFIG_HOME": str(directory),
        "REPLCTL_ENDPOINT": endpoint,
    }


class Agent:
    """One process, and a client that reads when it is asked to."""

    def __init__(self, environ: Mapping[str, str], *args: str, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            cwd=cwd,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._rest = b""
        self._lines: list[bytes] = []
        self._count = 0
        self.methods: dict[Any, str] = {}
        self.updates: list[Message] = []  # params of session/update, in order
        self.messages: list[Message] = []  # everything, in order
        self.on_permission: Callable[[Message], Message] | None = None  # answers requests for permission

    # --- out ---

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._in, view) :]

    def send(self, message: Any) -> None:
        """A line of JSON."""
        self.raw(json.dumps(message).encode() + b"\n")

    def ask(self, method: str, params: Message | None = None, name: Any = None) -> Any:
        """Send a request; its id."""
        if name is None:
            self._count += 1
            name = self._count
        self.methods[name] = method
        self.send({"jsonrpc": "2.0", "id": name, "method": method, "params": {} if params is None else params})
        return name

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def respond(self, name: Any, result: Any) -> None:
        """Answer a request of the agent's."""
        self.send({"jsonrpc": "2.0", "id": name, "result": result})

    # --- in ---

    def line(self, timeout_s: float = TIMEOUT_S) -> bytes | None:
        """The next line, or None at the end of the stream."""
        deadline = time.monotonic() + timeout_s
        while not self._lines:
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"nothing came in {timeout_s} s; before it: {self.messages[-3:]}"
            data = os.read(self._out, 1 << 20)
            if not data:
                assert self._rest == b"", "half a line at the end"
                return None
            *self._lines, self._rest = (self._rest + data).split(b"\n")
        return self._lines.pop(0)

    def next(self, timeout_s: float = TIMEOUT_S) -> Message:
        """The next message, checked and kept."""
        line = self.line(timeout_s)
        assert line is not None, f"the agent has ended: {self.stderr()}"
        message: Message = json.loads(line.decode("utf-8"))
        check(message, self.methods)
        self._record(message)
        self.messages.append(message)
        if message.get("method") == "session/update":
            self.updates.append(message["params"])
        elif message.get("method") == "session/request_permission" and self.on_permission is not None:
            self.respond(message["id"], self.on_permission(message["params"]))
        return message

    def _record(self, message: Message) -> None:
        """For the check against the schema of the TypeScript SDK, which is not installed with us."""
        if path := os.environ.get("REPLCTL_ACP_TRAFFIC"):
            with open(path, "a", encoding="utf-8") as file:
                asked = None if "method" in message else self.methods.get(message.get("id"))
                file.write(json.dumps({"asked": asked, "message": message}) + "\n")

    def until(self, what: Callable[[Message], Any]) -> Message:
        """The first message that this holds for."""
        while not what(message := self.next()):
            pass
        return message

    def reply(self, name: Any) -> Message:
        """The answer to a request of ours."""
        return self.until(lambda message: message.get("id") == name and "method" not in message)

    def call(self, method: str, **params: Any) -> Message:
        """Ask, and wait for the answer."""
        return self.reply(self.ask(method, params))

    def result(self, method: str, **params: Any) -> Message:
        """Ask, and get the result."""
        answer = self.call(method, **params)
        assert "result" in answer, answer
        result: Message = answer["result"]
        return result

    def error(self, method: str, **params: Any) -> Message:
        """Ask, and get the error."""
        answer = self.call(method, **params)
        assert "error" in answer, answer
        error: Message = answer["error"]
        return error

    def update(self, kind: str) -> Message:
        """Wait for an update of this kind."""
        message = self.until(lambda each: each.get("params", {}).get("update", {}).get("sessionUpdate") == kind)
        update: Message = message["params"]["update"]
        return update

    def permission(self) -> Message:
        """Wait for a request for permission."""
        return self.until(lambda message: message.get("method") == "session/request_permission")

    # --- words for what tests do again and again ---

    def start(self) -> Message:
        """Shake hands."""
        return self.result("initialize", protocolVersion=1, clientCapabilities={})

    def new(self, cwd: str = "/tmp") -> str:
        """A new session; its id."""
        session: str = self.result("session/new", cwd=cwd, mcpServers=[])["sessionId"]
        self.update("available_commands_update")
        return session

    def send_prompt(self, session: str, text: str, **more: Any) -> Any:
        """Send a prompt; its id."""
        return self.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}], **more})

    def prompt(self, session: str, text: str, **more: Any) -> Turn:
        """Run a prompt to its end."""
        return self.turn(self.send_prompt(session, text, **more))

    def turn(self, name: Any) -> Turn:
        """The end of a prompt, with what came since the one before."""
        before = len(self.updates)
        answer = self.reply(name)
        assert "result" in answer, answer
        return Turn(answer["result"]["stopReason"], self.updates[before:])

    def cancel(self, session: str) -> None:
        """Send a cancel."""
        self.notify("session/cancel", sessionId=session)

    def until_running(self) -> None:
        """Wait until code that prints `on` at its start has printed it."""
        self.until(lambda message: "on\n" in content_of(message))

    # --- the end ---

    def end(self) -> int:
        """Close its stdin; its exit code. What it still says is read and checked."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        while (line := self.line()) is not None:
            check(json.loads(line), self.methods)
        return self._reap()

    def signal(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; its exit code."""
        self.process.send_signal(number)
        return self._reap()

    def stderr(self) -> str:
        """Return what the agent wrote to stderr, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode() if not self.process.stderr.closed else ""

    def _reap(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self.stderr_text = self.stderr()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def stop(self) -> None:
        """Make sure that it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        assert self.process.stderr is not None
        if not self.process.stderr.closed:
            self._reap()


def content_of(message: Message) -> str:
    """The text of a tool call's content in an update, or nothing."""
    blocks = message.get("params", {}).get("update", {}).get("content")
    if not isinstance(blocks, list):
        return ""
    return "".join(each["content"]["text"] for each in blocks if each["type"] == "content")


class Turn:
    """A prompt that has ended: its stop reason and its updates."""

    def __init__(self, stop: str, updates: list[Message]) -> None:
        self.stop = stop
        self.updates = [each["update"] for each in updates]
        self.sessions = {each["sessionId"] for each in updates}

    @property
    def kinds(self) -> list[str]:
        """The kinds of its updates."""
        return [each["sessionUpdate"] for each in self.updates]

    @property
    def text(self) -> str:
        """Return the text of the agent's messages."""
        chunks = [each for each in self.updates if each["sessionUpdate"] == "agent_message_chunk"]
        return "".join(each["content"].get("text", "") for each in chunks)

    @property
    def tool(self) -> Message:
        """The tool call as it stands at the end."""
        whole: Message = {}
        for each in self.updates:
            if each["sessionUpdate"] in ("tool_call", "tool_call_update"):
                assert whole.get("toolCallId", each["toolCallId"]) == each["toolCallId"]
                whole |= each
        return whole

    @property
    def output(self) -> str:
        """Return the output of the tool call."""
        return content_of({"params": {"update": self.tool}})

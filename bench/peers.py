"""The peer: ipykernel, driven through jupyter_client's blocking channels with no more around them than is needed.

An execution is over when its reply has come and the kernel has said `idle` for it: before that its output and its
value may still be on their way. Where jupyter_client waits in steps or for good measure (`wait_for_ready` flushes
for 0.2 s), this file does not: the peer is measured at its best.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from bench.procs import READY_S, temporary_directory

_ANSWER_S = 60.0
_LOOK_S = 0.002
_CONNECTED_S = 0.1  # a question to a kernel that is just being killed is lost with it
_SUBSCRIBED_S = 0.01  # a subscription takes effect a little after the kernel is up
NAME, PLAIN = "ipykernel, bare channels", "ipykernel, execute_interactive"

OnStream = Callable[[str], object]


class JupyterKernel:
    """One kernel and its client, over the transport that is ours too (ipc)."""

    def __init__(self) -> None:
        # Its own directory: otherwise the ipc sockets lie in the current one, under one name for all kernels.
        self._stack = ExitStack()
        file = str(self._stack.enter_context(temporary_directory()) / "k.json")
        self._manager: Any = KernelManager(kernel_name="python3", transport="ipc", connection_file=file)
        self._client: Any = None

    @property
    def pid(self) -> int:
        """Of the kernel's process."""
        return int(self._manager.provisioner.pid)

    @property
    def connection_file(self) -> str:
        """For another process that wants to connect."""
        return str(self._manager.connection_file)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._manager.start_kernel()
        self._client = self._manager.client()
        self._client.start_channels(stdin=False, hb=False)
        wait_until_up(self._client)

    def restart(self) -> None:
        """Start a fresh process under the same client, up to its first answer."""
        self._manager.restart_kernel(now=True)
        wait_until_up(self._client)

    def eval(self, code: str) -> str | None:
        """Run code; the value's text."""
        return execute(self._client, code)

    def interactive(self, code: str) -> str | None:
        """Run code with jupyter_client's own call for it; return the value's text."""
        values: list[str] = []

        def hook(expected: Any) -> None:
            if expected["msg_type"] == "execute_result":
                values.append(expected["content"]["data"]["text/plain"])

        self._client.execute_interactive(code, allow_stdin=False, output_hook=hook, timeout=_ANSWER_S)
        return values[0] if values else None

    def complete(self, code: str) -> list[str]:
        """Ways to go on at the end of code."""
        sent = self._client.complete(code, len(code))
        while (result := self._client.shell_channel.get_msg(timeout=_ANSWER_S))["parent_header"].get("msg_id") != sent:
            continue
        return [str(match) for match in result["content"]["matches"]]

    def send_and_wait_for_output(self, code: str) -> str:
        """Send code and wait until it has printed something; the request's id."""
        sent = str(self._client.execute(code))
        while self._client.iopub_channel.get_msg(timeout=_ANSWER_S)["msg_type"] != "stream":
            continue
        return sent

    def interrupt(self) -> None:
        """SIGINT, as a notebook's stop button."""
        self._manager.interrupt_kernel()

    def finish(self, sent: str) -> None:
        """Wait for the end of what `begin` sent."""
        _outcome(self._client, sent, None)

    def stream(self, code: str) -> int:
        """Run code; how many bytes of stdout came."""
        count = 0

        def add(text: str) -> None:
            nonlocal count
            count += len(text)

        execute(self._client, code, add)
        return count

    def close(self) -> None:
        """End it, whatever state it is in."""
        with self._stack:
            if self._client is not None:
                self._client.stop_channels()
            if self._manager.has_kernel:
                self._manager.shutdown_kernel(now=True)
            self._manager.cleanup_resources()


@contextmanager
def kernel() -> Iterator[JupyterKernel]:
    """Start a kernel, and end it."""
    made = JupyterKernel()
    try:
        made.start()
        yield made
    finally:
        made.close()


def wait_until_up(client: Any) -> None:
    """Ask until it answers on both channels; what it says of its start is thrown away. Raises TimeoutError.

    Few questions, because each that waits in line when the kernel comes up delays the answer that is timed.
    """
    end = time.monotonic() + READY_S
    asked: set[str] = set()
    replied = text = False
    ask_at = 0.0
    while not (replied and text):
        now = time.monotonic()
        if now > end:
            raise TimeoutError("the kernel does not answer")
        if now >= ask_at:
            asked.add(client.kernel_info())
            ask_at = now + (_SUBSCRIBED_S if replied else _CONNECTED_S)
        replied = _poll_reply(client.shell_channel, asked) or replied
        text = _poll_reply(client.iopub_channel, asked) or text


def _poll_reply(channel: Any, asked: set[str]) -> bool:
    """Return whether something about one of these requests comes very soon."""
    try:
        return channel.get_msg(timeout=_LOOK_S)["parent_header"].get("msg_id") in asked
    except queue.Empty:
        return False


def is_idle(expected: Any) -> bool:
    """Return whether this is the last message about a request on iopub."""
    return bool(expected["msg_type"] == "status" and expected["content"]["execution_state"] == "idle")


def execute(client: Any, code: str, on_stream: OnStream | None = None) -> str | None:
    """Run code and wait for its end; the value's text."""
    return _outcome(client, client.execute(code), on_stream)


def _outcome(client: Any, sent: str, on_stream: OnStream | None) -> str | None:
    value: str | None = None
    receive = client.iopub_channel.get_msg
    while True:
        result = receive(timeout=_ANSWER_S)
        if result["parent_header"].get("msg_id") != sent:
            continue
        kind = result["msg_type"]
        if kind == "execute_result":
            value = result["content"]["data"]["text/plain"]
        elif kind == "stream" and on_stream is not None:
            on_stream(result["content"]["text"])
        elif is_idle(result):
            break
    while client.shell_channel.get_msg(timeout=_ANSWER_S)["parent_header"].get("msg_id") != sent:
        continue
    return value


def connect(connection_file: str) -> Any:
    """Return a client of a kernel that another process started."""
    client: Any = BlockingKernelClient(connection_file=connection_file)
    client.load_connection_file()
    client.start_channels(stdin=False, hb=False)
    wait_until_up(client)
    return client

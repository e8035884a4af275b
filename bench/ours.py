"""replctl: a broker of the bench's own, and a caller's end without the client library.

`RawClient` is what somebody writes who has only `docs/protocol.md`: a DEALER and msgspec. Beside it stands `Client`, so
that the table shows what the library costs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq

from bench import procs
from bench.floor import dealer
from replctl import Client

RAW, LIBRARY = "ours, bare socket", "ours, Client"
ALLOW_UNSANDBOXED = (
    "[sandbox]\nallow-unsandboxed = true\n"  # a machine that cannot sandbox is measured too; the tables say so
)
_SANDBOX_OFF = ALLOW_UNSANDBOXED + 'profile = "off"\n'
_REFILL_S = 30.0
_RAISED_LIMITS = {  # bounds that protect a real broker from what a bench does
    "rate-limit-per-min": 0,
    "max-connections": 1000,
    "max-concurrent-evals": 1000,
    "max-queued-evals": 10_000,
    "max-queued-total": 100_000,
    "max-sessions": 1000,
}


class ReplyMessage(msgspec.Struct):
    """Fields of a reply that a benchmark needs."""

    id: str
    status: list[str] | None = None
    value: str | None = None
    out: str | None = None
    err: str | None = None
    info: dict[str, Any] | None = None
    stats: dict[str, Any] | None = None
    completions: list[dict[str, Any]] | None = None
    sandbox: dict[str, Any] | str | None = None  # text: there is none
    sessions: list[dict[str, Any]] | None = None
    checkpoints: list[dict[str, Any]] | None = None
    checkpoint: int | None = None


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(ReplyMessage).decode


class BenchRequestRefused(Exception):
    """The broker did not do what was asked."""


class RawClient:
    """A DEALER, one request at a time."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = dealer(self._context, endpoint)
        self._count = 0
        self.printed = 0
        self.dropped = False

    def send(self, op: str, **fields: object) -> str:
        """Send a request; its id."""
        self._count += 1
        sent = str(self._count)
        self._socket.send(encode({"id": sent, "op": op, **fields}))
        return sent

    def finish(self, sent: str) -> ReplyMessage:
        """Return the terminal reply to a request, with the value that came before it. Raises Refused."""
        value: str | None = None
        while True:
            result = decode(self._socket.recv())
            if result.id != sent:
                continue
            if result.out is not None:
                self.printed += len(result.out)
            if result.value is not None:
                value = result.value
            if result.status is not None:
                if "output-dropped" in result.status:
                    self.dropped = True
                if "done" in result.status:
                    break
        if "error" in result.status and "interrupted" not in result.status:
            raise BenchRequestRefused(f"{result.status}: {result.err}")
        result.value = value
        return result

    def call(self, op: str, **fields: object) -> ReplyMessage:
        """Send, and wait for the end."""
        return self.finish(self.send(op, **fields))

    def eval(self, code: str, session: str) -> str | None:
        """Run code in a session that exists; the value's text."""
        return self.call("eval", code=code, session=session).value

    def send_and_wait_for_output(self, code: str, session: str) -> str:
        """Send code and wait until it has printed something; the request's id."""
        sent = self.send("eval", code=code, session=session)
        while decode(self._socket.recv()).out is None:
            continue
        return sent

    def info(self, session: str) -> dict[str, Any]:
        """Return the broker's information about a session."""
        return self.call("info", session=session, variables=False).info or {}

    def stats(self) -> dict[str, Any]:
        """Return the broker's counters."""
        return self.call("stats").stats or {}

    def is_sandboxed(self) -> bool:
        """Return whether sessions that are opened now are sandboxed."""
        return isinstance(self.call("describe").sandbox, dict)

    def wait_warm(self, count: int) -> None:
        """Let the pool refill and come to rest. Raises Deadline."""
        end = time.monotonic() + _REFILL_S
        while self.stats()["workers"]["warm"] < count:
            if time.monotonic() > end:
                raise procs.DeadlineExceeded("the pool of warm workers does not refill")
            time.sleep(0.01)
        procs.settle(0.05)

    def close(self) -> None:
        """End the connection."""
        self._context.destroy(linger=0)


class BenchBroker:
    """A running broker."""

    def __init__(self, endpoint: str, pid: int, state: Path) -> None:
        self.endpoint = endpoint
        self.pid = pid
        self.state = state
        self.tcp: str | None = None
        self._raw: list[RawClient] = []
        self._clients: list[Client] = []

    def raw(self) -> RawClient:
        """Open a bare connection."""
        self._raw.append(RawClient(self.endpoint))
        return self._raw[-1]

    def client(self) -> Client:
        """Open a connection of the library."""
        self._clients.append(Client(self.endpoint, start=False))
        return self._clients[-1]

    def session_mb(self, interpreter: int) -> float:
        """PSS of a session: its worker and all below it, its sandbox included."""
        lineage = [interpreter]
        while lineage[-1] != self.pid:
            lineage.append(procs.parent_of(lineage[-1]))
        return sum(
            map(procs.pss_mb, procs.process_tree(lineage[-3]))
        )  # above the worker: who forks workers, the broker

    def disconnect(self) -> None:
        """End all connections."""
        for raw in self._raw:
            raw.close()
        for client in self._clients:
            client.disconnect()


@contextmanager
def broker(
    warm_workers: int = 2,
    *,
    sandbox: bool = True,
    tcp: bool = False,
    sandbox_limits: Mapping[str, int] | None = None,
    settings: Sequence[str] = (),
    **limits: int,
) -> Iterator[BenchBroker]:
    """Start a broker with these limits beyond the opened ones (`max_sessions=120`); ended on every way out.

    Sessions are sandboxed where the machine can, as they are by default; `sandbox=False` turns it off, and
    `sandbox_limits` has other bounds of it (`{"pids": 64}`). With `tcp` the broker listens to JSON lines as well;
    `settings` are any others (`"transcript.backend=off"`).
    """
    bounds = _RAISED_LIMITS | {name.replace("_", "-"): value for name, value in limits.items()}
    with procs.temporary_directory() as path:
        endpoint = f"ipc://{path}/b.sock"
        config = path / "config.toml"
        config.write_text(ALLOW_UNSANDBOXED if sandbox else _SANDBOX_OFF)
        argv = [sys.executable, "-m", "replctl", "serve", "--json", "--endpoint", endpoint]
        argv += ["--set", f"broker.warm-workers={warm_workers}"]
        argv += ["--tcp", "127.0.0.1:0"] if tcp else []
        pairs = [f"limits.{name}={value}" for name, value in bounds.items()]
        pairs += [f"sandbox.{name}={value}" for name, value in (sandbox_limits or {}).items()]
        argv += [word for pair in (*pairs, *settings) for word in ("--set", pair)]
        log = path / "log"
        env = {"REPLCTL_STATE_DIR": str(path), "REPLCTL_CONFIG": str(config)}
        process = procs.start(argv, env, log, end_signal=procs.END_BROKER)
        running: BenchBroker | None = None
        try:
            try:
                listening = msgspec.json.decode(procs.read_line(process))["listening"]
            except EOFError:
                raise RuntimeError(f"the broker did not start: {log.read_text()}") from None
            running = BenchBroker(endpoint, process.pid, path)
            running.tcp = next((url for url in listening if "tcp://" in url), None)
            yield running
        finally:
            if running is not None:
                running.disconnect()
            procs.stop(process, procs.END_BROKER)


def describe_sandboxing(sandbox: bool = True) -> str:
    """For a table: whether the sandbox is on in a broker that is started like this."""
    with broker(0, sandbox=sandbox) as running:
        return "sandboxed" if running.raw().is_sandboxed() else "not sandboxed"

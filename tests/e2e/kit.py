"""Broker processes started by the installed command, and clients that speak the wire protocol directly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from stream_rules import StreamRules

TIMEOUT_S = 20.0
UNSANDBOXED = '[sandbox]\nallow-unsandboxed = true\nprofile = "off"\n'  # tests that look into /proc, or kill by pid

# A program that makes way for another, which finds more than a thousand descriptors open.
CROWDED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
for fd in range(3, 1200):
    os.dup2(2, fd)
os.execv(sys.argv[1], sys.argv[1:])
"""


def identities_as_root(*names: str) -> str:
    """Return config for keys and tokens; without a sandbox a root broker runs code for no other user."""
    listed = names if os.getuid() == 0 else ()
    return "".join(f'[[identities]]\nname = "{name}"\nuser = "root"\n' for name in listed)


def wait_until(condition: Callable[[], Any], why: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Poll until a condition holds, and return its value; fail with `why` at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never happened: {why}"
        time.sleep(0.005)
    return value


def processes_with(marker: str) -> set[int]:
    """Return the pids of live processes whose environment or command line has this text."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            alive = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            text = Path(f"/proc/{entry}/cmdline").read_bytes() + Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if alive and marker.encode() in text:
            found.add(int(entry))
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def free_tcp(host: str = "127.0.0.1") -> str:
    """Return an endpoint with a free port."""
    with socket.create_server((host, 0)) as found:
        return f"tcp://{host}:{found.getsockname()[1]}"


def own_address() -> str:
    """Return a non-loopback address of this machine; traffic to it never leaves the machine."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, check=True, timeout=5).stdout.split()
    assert found, "this machine has no address but loopback"
    return found[0].decode()


class BrokerProcess:
    """`replctl serve` as a subprocess, with its own state directory."""

    def __init__(
        self,
        directory: Path,
        *settings: str,
        warm: int = 2,
        max_file_bytes: int | None = None,
        config: str = "",
        more_endpoints: Sequence[str] = (),
        keys: Sequence[str] = (),
        sandbox: bool = False,
        through: Sequence[str] = (),
        uid: int | None = None,
        config_in: Path | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start the broker.

        Args:
            directory: The state directory, with the config file and the log.
            *settings: `SECTION.KEY=VALUE`, given to `--set`.
            warm: Workers to keep ready.
            max_file_bytes: Bound on every file it writes, which has the effect of a full disk.
            config: Content of the config file.
            more_endpoints: Further endpoints.
            keys: Names of clients to create keys for.
            sandbox: Whether sessions are sandboxed.
            through: A command that runs the broker's command, which it gets as arguments.
            uid: The owner of the state directory.
            config_in: Directory of the config file, instead of the state directory.
            cwd: Its working directory, and so that of sessions that have none of their own.
        """
        self.directory = directory
        self._through, self._cwd = through, cwd
        self.environ = {**os.environ, "REPLCTL_STATE_DIR": str(directory)}
        self._max_file_bytes = max_file_bytes
        self._config = (config_in or directory) / "config.toml"
        self._config.write_text(config if sandbox else UNSANDBOXED + config + identities_as_root(*keys))
        self._more = [word for url in more_endpoints for word in ("--endpoint", url)]
        for name in keys:
            command = [sys.executable, "-m", "replctl", "keys", "new", name]
            subprocess.run(command, cwd=directory, env=self.environ, check=True, stdout=subprocess.DEVNULL)
        self.endpoint = f"ipc://{directory}/run/b.sock"
        if uid is not None:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, uid, uid)
        settings = tuple(setting.replace("/DIRECTORY", str(directory)) for setting in settings)
        self._settings = [f"broker.warm-workers={warm}", "limits.close-grace-ms=300", *settings]
        self.start()

    def start(self) -> None:
        pairs = [word for setting in self._settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "replctl", "serve", "--json", "--endpoint", self.endpoint, *pairs]
        command += [*self._more, "--config", str(self._config)]
        self.log = (self.directory / "log").open("ab")
        if self._max_file_bytes is not None:  # what a full disk does to every write, without filling one
            command = ["prlimit", f"--fsize={self._max_file_bytes}", *command]
        command = [*self._through, *command]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, env=self.environ, cwd=self._cwd
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.directory / "log").read_text()
        self.ready = json.loads(line)
        self.listening = {url.partition("://")[0].removeprefix("lines+"): url for url in self.ready["listening"][1:]}

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def private_dir(self) -> Path:
        """The directory of its internal sockets, found by the lock on it."""
        for fd in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                link = os.readlink(fd)
            except FileNotFoundError:  # closed meanwhile
                continue
            if "/replctl-broker-" in link:
                return Path(link)
        raise AssertionError("it holds no such directory")

    def log_text(self) -> str:
        return (self.directory / "log").read_text()

    def kill(self) -> None:
        """Send SIGKILL, as a machine out of memory would."""
        self.process.kill()
        self._reap()

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal and return the exit code. After SIGINT no session is left."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self._reap()

    def end_leftovers(self) -> None:
        """Kill the workers that a killed broker has left."""
        for pid in processes_with(str(self.directory)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        return code

    def wire(self) -> Wire:
        return Wire(self.endpoint)

    def process_tree(self) -> set[int]:
        """Return the pids of the broker and all its descendants."""
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry)] = int(fields[1])
        family = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in family and pid not in family}:
            family |= more
        return family


class Wire:
    """A minimal client over ZeroMQ, as docs/protocol.md describes it."""

    def __init__(self, endpoint: str) -> None:
        self.context = zmq.Context()
        self.socket: Any = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self._others: list[dict[str, Any]] = []  # for other requests than the one that was waited for
        self.rules = StreamRules()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.context.destroy(linger=0)

    def send(self, op: str, **fields: Any) -> str:
        """Send a request, with hyphens for underscores in field names, and return its id."""
        self._count += 1
        request = {key.replace("_", "-"): value for key, value in fields.items()}
        request = {"id": f"r{self._count}", "op": op} | request
        self.rules.sent(str(request["id"]), request["op"])
        self._put(json.dumps(request).encode())
        return str(request["id"])

    def _put(self, body: bytes) -> None:
        self.socket.send(body)

    def receive(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return the next message of any request, after checking the protocol's rules."""
        message: dict[str, Any] = json.loads(self._take(timeout_s))
        self.rules.see(message)
        return message

    def _take(self, timeout_s: float) -> bytes:
        assert self.socket.poll(int(timeout_s * 1000)), "no message came"
        return bytes(self.socket.recv())

    def messages(self, request_id: str, timeout_s: float = TIMEOUT_S) -> Iterator[dict[str, Any]]:
        """Yield the messages of one request up to its `done`; messages of others are kept for later."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = next((m for m in self._others if m["id"] == request_id), None)
            if message is not None:
                self._others.remove(message)
            else:
                message = self.receive(max(0.001, deadline - time.monotonic()))
                if message["id"] != request_id:
                    self._others.append(message)
                    continue
            yield message
            if "done" in message.get("status", []):
                return

    def until(self, request_id: str, word: str) -> dict[str, Any]:
        """Return the first message of a request with this status word."""
        return next(m for m in self.messages(request_id) if word in m.get("status", []))

    def answer(self, request_id: str, timeout_s: float = TIMEOUT_S) -> CollectedReplies:
        return CollectedReplies(list(self.messages(request_id, timeout_s)))

    def ask(self, op: str, **fields: Any) -> CollectedReplies:
        """Send a request and collect its replies."""
        return self.answer(self.send(op, **fields))

    def run(self, code: str, session: str | None = "s", **fields: Any) -> CollectedReplies:
        """Run code, in a session that is created if it is missing."""
        if session is not None:
            fields = {"session": session, "if_missing": "create"} | fields
        return self.ask("eval", code=code, **fields)

    def run_checkpointed(self, code: str, session: str = "s", **fields: Any) -> CollectedReplies:
        """Run code, and wait until a checkpoint includes it: automatic ones are taken some time after the answer."""
        answer = self.run(code, session, **fields)

        def is_included() -> bool:
            listed = self.ask("ls-checkpoints", session=session).get("checkpoints") or []
            return any(each["eval-id"] == answer["eval-id"] for each in listed)

        wait_until(is_included, f"a checkpoint of eval {answer['eval-id']}")
        return answer


def close_sessions(wire: Wire) -> None:
    """Close all sessions of a client, also those in plan mode."""
    for entry in wire.ask("ls-sessions")["sessions"]:
        if entry.get("session-mode", "normal") != "normal":
            wire.ask("set-mode", session=entry["session"], to="normal")
        wire.ask("close", session=entry["session"])


class LineWire(Wire):
    """A minimal client over JSON lines, `lines+tcp://` or `lines+unix://`."""

    def __init__(self, url: str) -> None:
        self.url = url
        kind, _, place = url.partition("://")
        family = socket.AF_UNIX if kind == "lines+unix" else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(TIMEOUT_S)
        host, _, port = place.rpartition(":")
        self.socket.connect(place if family == socket.AF_UNIX else (host, int(port)))
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")
        self._begin()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _put(self, body: bytes) -> None:
        self.raw(body + b"\n")

    def line(self) -> bytes:
        return self._file.readline()

    def _take(self, timeout_s: float) -> bytes:
        self.socket.settimeout(timeout_s)
        line = self.line()
        assert line.endswith(b"\n"), f"the connection ended: {line!r}"
        return line

    def has_ended(self) -> bool:
        """Return whether the broker closed the connection without a further message."""
        try:
            return self.line() == b""
        except ConnectionResetError:
            return True


class CollectedReplies:
    """All messages of one request; `StreamRules` has checked their order."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.last = messages[-1]
        assert "done" in self.last["status"], messages

    def __getitem__(self, key: str) -> Any:
        return self.last[key]

    def get(self, key: str) -> Any:
        return self.last.get(key)

    @property
    def status(self) -> list[str]:
        return list(self.last["status"])

    @property
    def value(self) -> str | None:
        return next((m["value"] for m in self.messages if "value" in m), None)

    @property
    def out(self) -> str:
        return "".join(m.get("out", "") for m in self.messages)

    @property
    def err(self) -> str:
        return "".join(m["err"] for m in self.messages if "err" in m and "status" not in m)

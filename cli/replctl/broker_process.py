"""`Broker`: a broker as an object, for programs that embed one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from replctl.client.errors import ReplError
from replctl.client.start import START_SECONDS, BrokerReady, log_tail, read_line
from replctl.client.sync import Client
from replctl.embedded_directory import EmbeddedDirectory

if TYPE_CHECKING:
    from replctl.client.aio import AsyncClient

_END_SECONDS = 20.0  # sessions have `close-grace-ms` to end, and are killed then
_NO_SUCCESSOR = ["--set", "broker.orphan-ttl-ms=0"]  # no later broker has this private address
_POLL_SECONDS = 0.02  # between two looks at what still runs, while `close` drains


class Broker:
    """A broker in a process of its own, which starts and ends with this object.

    The program keeps its signals, limits, umask, children and interpreter lock for itself; see decision 0050. It may
    have several brokers, in any thread. If the program is killed, the broker notices and ends every session.

    Args:
        listen: Addresses beside the private one: `tcp://HOST:PORT`, `ipc://PATH`, `lines+tcp://HOST:PORT` or
            `lines+unix://PATH`. Port 0 takes a free one.
        config: Settings, as the config file has them: `{"sandbox": {"profile": "read-only"}}`; or a config file.
            Neither the user's own config file nor its environment variables apply.
        state_dir: Where the broker keeps transcripts, keys and its log. None for a directory that is removed at the
            end.
        start_timeout: Seconds until the broker is ready.

    Attributes:
        endpoint: The private address, for clients of this user.
        endpoints: Every address that clients can use, the private one first.
        warnings: What the broker warned of at its start.
        pid: The process of the broker.

    Raises:
        ReplError: `no-broker` if the broker does not start; the message has the end of its log. `invalid-request`
            for an address of another form.
    """

    def __init__(
        self,
        listen: str | Sequence[str] = (),
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        start_timeout: float = START_SECONDS,
    ) -> None:
        flags = _listen_flags([listen] if isinstance(listen, str) else listen)
        self._closing = threading.Lock()
        self._directory = EmbeddedDirectory()
        try:
            private = self._directory.path
            self.endpoint = f"ipc://{private}/run/b.sock"
            state = private / "state" if state_dir is None else Path(state_dir).absolute()
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            command = ["--endpoint", self.endpoint, "--config", str(_config_file(config, private)), *flags]
            self._process, ready = _start(command, state, start_timeout)
        except BaseException:
            self._directory.remove()
            raise
        self.pid = ready.pid
        self.endpoints = ready.listening
        self.warnings = ready.warnings

    @property
    def port(self) -> int | None:
        """The port of the first address over TCP; None without one."""
        over_tcp = (url for url in self.endpoints if url.partition("://")[0].endswith("tcp"))
        return next((int(url.rpartition(":")[2]) for url in over_tcp), None)

    @property
    def is_running(self) -> bool:
        """True until the broker's process has ended."""
        return self._process.poll() is None

    def client(self, **options: Any) -> Client:
        """Return a client of this broker; options as in `Client`."""
        return Client(self.endpoint, start=False, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """Return a client of this broker for an event loop; options as in `AsyncClient`."""
        from replctl.client.aio import AsyncClient

        return AsyncClient(self.endpoint, start=False, **options)

    def close(self, drain: float = 0.0) -> None:
        """End every session and the broker. A second call has no effect.

        Args:
            drain: Seconds to wait beforehand until no eval runs or waits.
        """
        with self._closing:
            if drain > 0 and self.is_running:
                self._drain(time.monotonic() + drain)
            _end(self._process)
            self._directory.remove()

    def _drain(self, deadline: float) -> None:
        with suppress(ReplError), self.client() as client:  # a broker that is gone has nothing to wait for
            while time.monotonic() < deadline:
                stats = client.stats()
                if not stats["slots"]["taken"] and not stats["queued"]["total"]:
                    return
                time.sleep(_POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def _listen_flags(listen: Sequence[str]) -> list[str]:
    """Return the arguments of `serve` for these addresses."""
    options = {"ipc": "--endpoint", "tcp": "--endpoint", "lines+tcp": "--tcp", "lines+unix": "--unix"}
    flags = []
    for url in listen:
        scheme, _, address = url.partition("://")
        if scheme not in options or not address:
            known = ", ".join(f"{each}://" for each in options)
            raise ReplError("invalid-request", f"not an address to listen at: {url}; there are {known}")
        flags += [options[scheme], url if options[scheme] == "--endpoint" else address]
    return flags


def _config_file(config: Mapping[str, Any] | str | os.PathLike[str] | None, directory: Path) -> Path:
    """Return the config file; settings are written to a private one, because arguments can be read by others."""
    if config is not None and not isinstance(config, Mapping):
        return Path(config).absolute()
    import tomlkit  # only programs that embed a broker need it

    path = directory / "config.toml"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        tomlkit.dump(dict(config or {}), file)
    return path


def _start(flags: list[str], state: Path, timeout: float) -> tuple[subprocess.Popen[bytes], BrokerReady]:
    """Start a broker and wait until it is ready.

    Raises:
        ReplError: `no-broker` if it is not ready in time, or ends.
    """
    deadline = time.monotonic() + timeout
    log_path = str(state / "broker.log")
    command = [sys.executable, "-P", "-m", "replctl", "serve", "--json", "--end-with-stdin", *_NO_SUCCESSOR, *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REPLCTL_")}
    with open(os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the program's terminal is for the program
            env=environment | {"REPLCTL_STATE_DIR": str(state)},
        )
    assert process.stdout is not None
    try:
        with process.stdout as pipe:
            line = read_line(pipe.fileno(), deadline)
        return process, msgspec.json.decode(line, type=BrokerReady)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        _end(process)
        if (refused := _refusal(line)) is not None:
            raise ReplError("no-broker", f"the broker did not start: {refused}") from None
        why = "was not ready in time" if time.monotonic() >= deadline else "ended before it was ready"
        raise ReplError("no-broker", f"the broker {why}; its log says:\n{log_tail(log_path, begin)}") from None
    except BaseException:
        _end(process)
        raise


def _refusal(line: bytes) -> str | None:
    """Return the error that `serve` printed in place of its ready message."""
    try:
        printed = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return printed.get("err") if isinstance(printed, dict) else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have a broker end with all of its sessions, and reap it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

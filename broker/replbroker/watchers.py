"""Builds what looks on: transcripts, traces, the PUB socket, the metrics port."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from replbroker.core.broker import Core
from replbroker.doors import make_room, tcp_door
from replbroker.endpoints import StartError, is_loopback, private_folder
from replbroker.watch.base import SessionBackend, Watcher
from replbroker.watch.jsonl import Jsonl
from replbroker.watch.metrics import Metrics
from replbroker.watch.publish import Publisher, publisher_socket
from replbroker.watch.transcript import Transcript
from replwire.config import Config, TraceSection
from replwire.places import ipc_path

if TYPE_CHECKING:
    from replbroker.watch.trace import Trace

_DAY_S = 86_400.0


def records(config: Config) -> bool:
    """Whether anybody here wants every canonical event."""
    return config.transcript.backend != "off" or bool(config.broker.publish or config.trace.otlp)


def watchers(
    config: Config,
    core: Core,
    context: zmq.Context[zmq.Socket[bytes]],
    state_dir: Path,
    complain: Callable[[str], None],
    stack: ExitStack,
    more_backends: Callable[[str, Path, int], SessionBackend],
) -> list[Watcher]:
    """All that the settings ask for. What they leave behind outside is taken away by `stack`. `more_backends` makes
    storages of transcripts that are not ours. Raises StartError."""
    found: list[Watcher] = []
    transcript = _transcript(config, state_dir, complain, more_backends)
    if transcript is not None:
        core.state.setup.snapshots["transcripts"] = transcript.snapshot
        found.append(transcript)
    if config.trace.otlp:
        trace = _trace(config.trace, core, complain)
        core.state.setup.snapshots["traces"] = trace.snapshot
        found.append(trace)
    if config.broker.publish:
        found.append(_publisher(config.broker.publish, core, context, stack))
    if config.metrics.listen:
        found.append(_metrics(config.metrics.listen, core, stack))
    return found


def _transcript(
    config: Config,
    state_dir: Path,
    complain: Callable[[str], None],
    more_backends: Callable[[str, Path, int], SessionBackend],
) -> Transcript | None:
    settings, folder = config.transcript, state_dir / "transcripts"
    if settings.backend == "off":
        return None
    backend: SessionBackend
    if settings.backend == "jsonl":
        backend = Jsonl(folder, settings.max_session_bytes)
    elif settings.backend == "sqlite":
        from replbroker.watch.sqlite import Sqlite  # few want it, and it brings a library along

        backend = Sqlite(folder, settings.max_session_bytes)
    else:
        backend = more_backends(settings.backend, folder, settings.max_session_bytes)
    return Transcript(backend, settings.max_age_days * _DAY_S, settings.max_bytes, complain)


def _trace(settings: TraceSection, core: Core, complain: Callable[[str], None]) -> Trace:
    try:
        from replbroker.watch.trace import trace  # an extra: few want it, and it brings much along
    except ModuleNotFoundError as error:
        raise StartError(f"trace.otlp needs OpenTelemetry ({error}): pip install 'replctl[otel]'") from None
    setup = core.state.setup
    try:
        return trace(settings.otlp, settings.code, setup.boot, dict(setup.versions)["replctl"], setup.wall, complain)
    except ValueError as error:
        raise StartError(f"trace.otlp {error}") from None


def _publisher(endpoint: str, core: Core, context: zmq.Context[zmq.Socket[bytes]], stack: ExitStack) -> Publisher:
    path = _checked(endpoint)
    socket = publisher_socket(context)
    stack.callback(socket.close, 0)
    mask = os.umask(0o177)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise StartError(f"cannot publish on {endpoint}: {error.strerror}") from None
    finally:
        os.umask(mask)
    if path is not None:
        stack.callback(Path(path).unlink, missing_ok=True)
    return Publisher(socket, core.state.bus.publish)


def _checked(endpoint: str) -> str | None:
    """The socket file of a PUB endpoint, in a folder of our own. It tells everything to whoever connects."""
    try:
        path = ipc_path(endpoint)
    except ValueError as error:
        raise StartError(str(error)) from None
    if path is not None:
        private_folder(Path(path).absolute().parent)
        make_room(Path(path).absolute())  # libzmq would take away whatever is there
    elif not is_loopback(endpoint):
        raise StartError(f"broker.publish {endpoint}: ipc://PATH or a tcp:// address of loopback, nothing else")
    return path


def _metrics(address: str, core: Core, stack: ExitStack) -> Metrics:
    if not is_loopback(f"tcp://{address}"):
        raise StartError(f"metrics.listen {address}: loopback only; let something in front of it speak to others")
    door = tcp_door(address)
    stack.callback(door.remove)
    from replbroker.watch.scrape import Figures  # prometheus-client is loaded by who wants it alone

    return Metrics(door.socket, Figures(core).text)

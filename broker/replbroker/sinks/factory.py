"""Builds what looks on: transcripts, traces, the PUB socket, the metrics port."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from replbroker.core.engine import BrokerCore
from replbroker.endpoints import StartError, ensure_private_dir, is_loopback
from replbroker.listeners import listen_tcp, remove_stale_socket
from replbroker.sinks.event_sink import EventSink, TranscriptBackend
from replbroker.sinks.jsonl_backend import JsonlBackend
from replbroker.sinks.metrics_server import MetricsServer
from replbroker.sinks.publisher import Publisher, create_publisher_socket
from replbroker.sinks.transcript_sink import TranscriptSink
from replwire.config import Config, TraceSection
from replwire.paths import ipc_path

if TYPE_CHECKING:
    from replbroker.sinks.trace_sink import TraceSink

_DAY_S = 86_400.0


def needs_every_event(config: Config) -> bool:
    """Whether anybody here wants every canonical event."""
    return config.transcript.backend != "off" or bool(config.broker.publish or config.trace.otlp)


def build_sinks(
    config: Config,
    core: BrokerCore,
    context: zmq.Context[zmq.Socket[bytes]],
    state_dir: Path,
    warn: Callable[[str], None],
    stack: ExitStack,
    create_extension_backend: Callable[[str, Path, int], TranscriptBackend],
) -> list[EventSink]:
    """All that the settings ask for. What they leave behind outside is taken away by `stack`. `more_backends` makes
    storages of transcripts that are not ours. Raises StartError."""
    found: list[EventSink] = []
    transcript = _build_transcript_sink(config, state_dir, warn, create_extension_backend)
    if transcript is not None:
        core.add_introspector("transcripts", transcript.snapshot)
        found.append(transcript)
    if config.trace.otlp:
        trace = _build_trace_sink(config.trace, core, warn)
        core.add_introspector("traces", trace.snapshot)
        found.append(trace)
    if config.broker.publish:
        found.append(_build_publisher(config.broker.publish, core, context, stack))
    if config.metrics.listen:
        found.append(_build_metrics_server(config.metrics.listen, core, stack))
    return found


def _build_transcript_sink(
    config: Config,
    state_dir: Path,
    warn: Callable[[str], None],
    create_extension_backend: Callable[[str, Path, int], TranscriptBackend],
) -> TranscriptSink | None:
    settings, folder = config.transcript, state_dir / "transcripts"
    if settings.backend == "off":
        return None
    backend: TranscriptBackend
    if settings.backend == "jsonl":
        backend = JsonlBackend(folder, settings.max_session_bytes)
    elif settings.backend == "sqlite":
        from replbroker.sinks.sqlite_backend import SqliteBackend  # few want it, and it brings a library along

        backend = SqliteBackend(folder, settings.max_session_bytes)
    else:
        backend = create_extension_backend(settings.backend, folder, settings.max_session_bytes)
    return TranscriptSink(backend, settings.max_age_days * _DAY_S, settings.max_bytes, warn)


def _build_trace_sink(settings: TraceSection, core: BrokerCore, warn: Callable[[str], None]) -> TraceSink:
    try:
        from replbroker.sinks.trace_sink import create_trace_sink  # an extra: few want it, and it brings much along
    except ModuleNotFoundError as error:
        raise StartError(f"trace.otlp needs OpenTelemetry ({error}): pip install 'replctl[otel]'") from None
    setup = core.config
    try:
        return create_trace_sink(
            settings.otlp,
            settings.code,
            setup.boot_id,
            dict(setup.versions)["replctl"],
            setup.monotonic_to_unix,
            warn,
        )
    except ValueError as error:
        raise StartError(f"trace.otlp {error}") from None


def _build_publisher(
    endpoint: str, core: BrokerCore, context: zmq.Context[zmq.Socket[bytes]], stack: ExitStack
) -> Publisher:
    path = _publish_socket_path(endpoint)
    socket = create_publisher_socket(context)
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
    return Publisher(socket, core.set_published_types)


def _publish_socket_path(endpoint: str) -> str | None:
    """The socket file of a PUB endpoint, in a folder of our own. It tells everything to whoever connects."""
    try:
        path = ipc_path(endpoint)
    except ValueError as error:
        raise StartError(str(error)) from None
    if path is not None:
        ensure_private_dir(Path(path).absolute().parent)
        remove_stale_socket(Path(path).absolute())  # libzmq would take away whatever is there
    elif not is_loopback(endpoint):
        raise StartError(f"broker.publish {endpoint}: ipc://PATH or a tcp:// address of loopback, nothing else")
    return path


def _build_metrics_server(address: str, core: BrokerCore, stack: ExitStack) -> MetricsServer:
    if not is_loopback(f"tcp://{address}"):
        raise StartError(f"metrics.listen {address}: loopback only; let something in front of it speak to others")
    door = listen_tcp(address)
    stack.callback(door.remove)
    from replbroker.sinks.prometheus import PrometheusCollector  # prometheus-client is loaded by who wants it alone

    return MetricsServer(door.socket, PrometheusCollector(core).render)

"""Builds the event sinks and the metrics server that the settings ask for."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import zmq

from replbroker.core.engine import BrokerCore
from replbroker.endpoints import StartError, ensure_private_dir, is_loopback
from replbroker.listeners import listen_tcp, remove_stale_socket
from replbroker.sinks.event_sink import RecordingSink
from replbroker.sinks.jsonl_backend import JsonlBackend
from replbroker.sinks.metrics_server import MetricsServer
from replbroker.sinks.publisher import Publisher, create_publisher_socket
from replbroker.sinks.transcript_backend import TranscriptBackend
from replbroker.sinks.transcript_sink import TranscriptSink
from replwire.config_schema import Config, TraceSection, TranscriptSection
from replwire.paths import ipc_path

_DAY_S = 86_400.0


def needs_every_event(config: Config) -> bool:
    """Return whether some sink takes every canonical event."""
    return config.transcript.backend != "off" or bool(config.broker.publish or config.trace.otlp)


def build_transcript_sink(
    settings: TranscriptSection,
    state_dir: Path,
    create_extension_backend: Callable[[str, Path, int], TranscriptBackend],
) -> TranscriptSink | None:
    """Build the sink that writes transcripts, if they are on.

    Args:
        settings: The section `[transcript]`.
        state_dir: The state directory; transcripts are in a directory of it.
        create_extension_backend: Creates a storage that an extension contributes, from its name, the directory and
            the bound on one session in bytes.

    Raises:
        StartError: There is no storage of the configured name.
    """
    directory = state_dir / "transcripts"
    if settings.backend == "off":
        return None
    backend: TranscriptBackend
    if settings.backend == "jsonl":
        backend = JsonlBackend(directory, settings.max_session_bytes)
    elif settings.backend == "sqlite":
        from replbroker.sinks.sqlite_backend import SqliteBackend  # few use it, and it loads a library

        backend = SqliteBackend(directory, settings.max_session_bytes)
    else:
        backend = create_extension_backend(settings.backend, directory, settings.max_session_bytes)
    return TranscriptSink(backend, settings.max_age_days * _DAY_S, settings.max_bytes)


def build_trace_sink(
    settings: TraceSection, boot_id: str, version: str, monotonic_to_unix: Callable[[], float]
) -> RecordingSink | None:
    """Build the sink that sends traces, if they are on.

    Raises:
        StartError: OpenTelemetry is not installed, or the collector's URL cannot be used.
    """
    if not settings.otlp:
        return None
    try:
        from replbroker.sinks.trace_sink import create_trace_sink  # an extra: few use it, and it loads much
    except ModuleNotFoundError as error:
        raise StartError(f"trace.otlp needs OpenTelemetry ({error}): pip install 'replctl[otel]'") from None
    try:
        return create_trace_sink(settings.otlp, settings.code, boot_id, version, monotonic_to_unix)
    except ValueError as error:
        raise StartError(f"trace.otlp {error}") from None


def build_publisher(
    endpoint: str,
    set_wanted_types: Callable[[frozenset[str]], None],
    context: zmq.Context[zmq.Socket[bytes]],
    stack: ExitStack,
) -> Publisher | None:
    """Build the publisher of events at a PUB endpoint, if one is configured.

    Args:
        endpoint: `broker.publish`.
        set_wanted_types: Called with the event types that readers have subscribed to.
        context: Context of the socket.
        stack: Deletes the socket file at the end.

    Raises:
        StartError: The endpoint cannot be bound.
    """
    if not endpoint:
        return None
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
    return Publisher(socket, set_wanted_types)


def _publish_socket_path(endpoint: str) -> str | None:
    """Return the socket file of a PUB endpoint, after making room for it in a private directory.

    Whoever can connect there gets every event.
    """
    try:
        path = ipc_path(endpoint)
    except ValueError as error:
        raise StartError(str(error)) from None
    if path is not None:
        ensure_private_dir(Path(path).absolute().parent)
        remove_stale_socket(Path(path).absolute())  # libzmq would delete any file there
    elif not is_loopback(endpoint):
        raise StartError(f"broker.publish {endpoint}: only ipc://PATH or a tcp:// address of loopback")
    return path


def build_metrics_server(address: str, core: BrokerCore, stack: ExitStack) -> MetricsServer | None:
    """Build the server of Prometheus metrics, if an address is configured.

    Raises:
        StartError: The address is not on loopback, or cannot be listened on.
    """
    if not address:
        return None
    if not is_loopback(f"tcp://{address}"):
        raise StartError(f"metrics.listen {address}: loopback only; use a reverse proxy for other machines")
    listener = listen_tcp(address)
    stack.callback(listener.remove)
    from replbroker.sinks.prometheus import PrometheusCollector  # few load prometheus-client

    return MetricsServer(listener.socket, PrometheusCollector(core).render)

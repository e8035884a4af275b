"""Persistent, isolated REPL sessions: the client library and the command line.

`from replctl import Client, AsyncClient, Broker, ReplError, CodeError, Result`. Names are imported on first use, so
`import replctl` costs nothing and the command line loads only what a command needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replctl.broker_process import Broker
    from replctl.client.aio import AsyncClient
    from replctl.client.errors import CodeError, ReplError
    from replctl.client.result import Result
    from replctl.client.sync import Client

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Broker", "Client", "CodeError", "ReplError", "Result", "__version__"]

_HOMES = {
    "Broker": "replctl.broker_process",
    "Client": "replctl.client.sync",
    "AsyncClient": "replctl.client.aio",
    "CodeError": "replctl.client.errors",
    "ReplError": "replctl.client.errors",
    "Result": "replctl.client.result",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'replctl' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # later look-ups find it directly
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

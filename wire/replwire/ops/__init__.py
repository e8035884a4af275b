"""Every operation by its name. The struct of an operation is its contract: see `base`."""

from __future__ import annotations

from replwire.ops.base import Opens, Request, Run, SessionRequest
from replwire.ops.broker import Describe, Hello, Ping, ReloadConfig, Shutdown, Stats
from replwire.ops.evals import Eval, History, Interrupt, Jobs, LoadFile, Read, ReloadFile, Stack, Stdin
from replwire.ops.names import ClearBindings, Complete, Lookup, LsBindings
from replwire.ops.sessions import (
    Clone,
    CloneSession,
    Close,
    CloseSession,
    Env,
    HandOver,
    Info,
    LsEnvironments,
    LsSessions,
    NewSession,
    RemoveEnvironment,
    Reset,
    SetMode,
    Share,
)
from replwire.ops.watching import Introspect, Subscribe, Unsubscribe

__all__ = [
    "OPS", "ClearBindings", "Clone", "CloneSession", "Close", "CloseSession", "Complete", "Describe", "Env", "Eval",
    "HandOver", "Hello", "History", "Info", "Interrupt", "Introspect", "Jobs", "LoadFile", "Lookup", "LsBindings",
    "LsEnvironments", "LsSessions", "NewSession", "Opens", "Ping", "Read", "ReloadConfig", "ReloadFile",
    "RemoveEnvironment", "Request", "Reset", "Run", "Runs", "SessionRequest", "SetMode", "Share", "Shutdown", "Stack",
    "Stats", "Stdin", "Subscribe", "Unsubscribe",
]  # fmt: skip

Runs = Eval | Run  # what takes its turn in a session

OPS: dict[str, type[Request]] = {
    "eval": Eval,
    "load-file": LoadFile,
    "reload-file": ReloadFile,
    "read": Read,
    "interrupt": Interrupt,
    "stdin": Stdin,
    "jobs": Jobs,
    "history": History,
    "stack": Stack,
    "complete": Complete,
    "lookup": Lookup,
    "ls-bindings": LsBindings,
    "clear-bindings": ClearBindings,
    "new-session": NewSession,
    "ls-sessions": LsSessions,
    "info": Info,
    "set-mode": SetMode,
    "share": Share,
    "hand-over": HandOver,
    "env": Env,
    "ls-environments": LsEnvironments,
    "remove-environment": RemoveEnvironment,
    "clone": Clone,
    "reset": Reset,
    "close": Close,
    "clone-session": CloneSession,
    "close-session": CloseSession,
    "hello": Hello,
    "describe": Describe,
    "ping": Ping,
    "stats": Stats,
    "introspect": Introspect,
    "subscribe": Subscribe,
    "unsubscribe": Unsubscribe,
    "reload-config": ReloadConfig,
    "shutdown": Shutdown,
}

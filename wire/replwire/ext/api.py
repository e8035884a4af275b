"""What extensions are written with: `from replwire.ext.api import Block, Hook, hookimpl`. See docs/extensions.md."""

from replwire.ext.contracts import (
    AuthBackend,
    Command,
    Contribution,
    Control,
    Hook,
    Introspect,
    Panel,
    Presenter,
    Runtime,
    SessionBackend,
    Status,
    Tool,
)
from replwire.ext.loading import hookimpl
from replwire.ext.registry import Incomplete, Register
from replwire.ext.verdicts import Allow, Ask, Block, Question

__all__ = [
    "Allow",
    "Ask",
    "AuthBackend",
    "Block",
    "Command",
    "Contribution",
    "Control",
    "Hook",
    "Incomplete",
    "Introspect",
    "Panel",
    "Presenter",
    "Question",
    "Register",
    "Runtime",
    "SessionBackend",
    "Status",
    "Tool",
    "hookimpl",
]

"""Public API for extensions. Authors import it as `replctl.ext`; see docs/extensions.md."""

from replwire.ext.contracts import (
    Contribution,
    Control,
    ExtensionCommand,
    ExtensionOperation,
    ExtensionTool,
    Hook,
    IdentityBackend,
    IntrospectSource,
    Panel,
    Runtime,
    Screen,
    SessionBackend,
    StatusItem,
)
from replwire.ext.loading import hookimpl
from replwire.ext.operations import OperationContext, OperationOutput, OperationRefused, OperationReplies, call
from replwire.ext.registry import InvalidContribution, Register
from replwire.ext.verdicts import Allow, Block, HookRequest, RequireApproval

__all__ = [
    "Allow",
    "Block",
    "Contribution",
    "Control",
    "ExtensionCommand",
    "ExtensionOperation",
    "ExtensionTool",
    "Hook",
    "HookRequest",
    "IdentityBackend",
    "IntrospectSource",
    "InvalidContribution",
    "OperationContext",
    "OperationOutput",
    "OperationRefused",
    "OperationReplies",
    "Panel",
    "Register",
    "RequireApproval",
    "Runtime",
    "Screen",
    "SessionBackend",
    "StatusItem",
    "call",
    "hookimpl",
]

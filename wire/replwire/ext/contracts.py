"""Contracts of extension contributions, one dataclass per kind.

A field without a default is required, and None is not a value for it. `docs/extensions.md` is generated from this
table. An incomplete contribution is rejected when it is registered, not on first use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from replwire.ext.operations import OperationContext
from replwire.ext.verdicts import HookRequest, Verdict

HostProcess = Literal["broker", "client"]


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """Fields common to all contributions.

    `kind` names the contract, `process` the process that uses it.
    """

    kind: ClassVar[str]
    process: ClassVar[HostProcess]
    unique_name: ClassVar[bool] = True  # names are unique across all extensions; False: unique per extension

    name: Annotated[str, "lower case letters, digits, `-` and `_`, at most 64"]
    summary: Annotated[str, "one line for people"] = ""
    order: Annotated[int, "lower numbers come first; else in order of registration"] = 0


@dataclass(frozen=True, kw_only=True)
class Hook(Contribution):
    """A hook called before code runs.

    The first answer other than `Allow` decides; a hook that raises or times out blocks.
    """

    kind: ClassVar[str] = "hook"
    process: ClassVar[HostProcess] = "broker"
    unique_name: ClassVar[bool] = False

    before_eval: Annotated[
        Callable[[HookRequest], Verdict | None], "Allow() or None, Block(reason), or RequireApproval(title, reason)"
    ]


@dataclass(frozen=True, kw_only=True)
class IntrospectSource(Contribution):
    """A snapshot for the operation `introspect`, listed as `OWNER/NAME`.

    Called in the broker's event loop: it must return quickly.
    """

    kind: ClassVar[str] = "introspect"
    process: ClassVar[HostProcess] = "broker"
    unique_name: ClassVar[bool] = False

    snapshot: Annotated[Callable[[], Any], "JSON-serializable data, at most 64 KiB"]


@dataclass(frozen=True, kw_only=True)
class SessionBackend(Contribution):
    """A transcript store, selected by `transcript.backend`."""

    kind: ClassVar[str] = "session-backend"
    process: ClassVar[HostProcess] = "broker"
    methods: ClassVar[tuple[str, ...]] = (
        "create",
        "open",
        "open_existing",
        "append",
        "close",
        "load",
        "entries_since",
        "get",
        "find",
        "list",
        "latest",
        "lock",
        "search",
        "prune",
        "close_all",
    )

    backend: Annotated[
        Callable[[Path, int], Any],
        "class called with the directory and the size limit of a session in bytes; it needs all of `methods`",
    ]


@dataclass(frozen=True, kw_only=True)
class Runtime(Contribution):
    """A language runtime. Its interpreter is started like the built-in ones and uses the same frames."""

    kind: ClassVar[str] = "runtime"
    process: ClassVar[HostProcess] = "broker"

    interpreter: Annotated[Callable[[], str | None], "absolute path of the program; None if it is not installed"]
    arguments: Annotated[tuple[str, ...], "its arguments"] = ()
    reads: Annotated[tuple[str, ...], "paths that the sandbox has to show besides the program"] = ()


@dataclass(frozen=True, kw_only=True)
class IdentityBackend(Contribution):
    """Checks tokens of `hello`. Its identities are named `NAME:IDENTITY`.

    Called in the broker's event loop: it must return quickly.
    """

    kind: ClassVar[str] = "identity-backend"
    process: ClassVar[HostProcess] = "broker"

    identify: Annotated[Callable[[str], str | None], "identity of a token; None: unknown"]


@dataclass(frozen=True, kw_only=True)
class ExtensionOperation(Contribution):
    """An operation of the broker in addition to its own, for every client.

    It runs in a thread of its own, with the rights of its caller, and ends after `operation-time-ms`.
    """

    kind: ClassVar[str] = "operation"
    process: ClassVar[HostProcess] = "broker"

    args: Annotated[
        type, "`msgspec.Struct` of its fields, with `forbid_unknown_fields`; its docstring is the text of `describe`"
    ]
    run: Annotated[
        Callable[[Any, OperationContext], Any],
        "function or generator: (arguments, context) -> JSON-serializable `result`, at most 1 MiB; a generator yields "
        "requests to the broker (`call`) and `OperationOutput`",
    ]
    changes: Annotated[bool, "false: it changes nothing, and is allowed in plan mode"] = True
    requires: Annotated[tuple[str, ...], "operations that it calls; the broker does not start without them"] = ()


@dataclass(frozen=True, kw_only=True)
class ExtensionTool(Contribution):
    """A tool for agents in addition to the default set, in MCP and `replctl tools`."""

    kind: ClassVar[str] = "tool"
    process: ClassVar[HostProcess] = "client"

    title: Annotated[str, "short title for people"]
    text: Annotated[str, "description for the model"]
    args: Annotated[type, "`msgspec.Struct` of its arguments, with `forbid_unknown_fields`"]
    run: Annotated[
        Callable[[Any, Any], Any], "generator: (arguments, context) -> ToolResult, as in `replctl.tools.base`"
    ]
    read_only: Annotated[bool, "it changes nothing"] = False
    destructive: Annotated[bool, "its changes may be irreversible"] = True
    idempotent: Annotated[bool, "a second call has no further effect"] = False
    open_world: Annotated[bool, "it has effects outside the session"] = False


@dataclass(frozen=True, kw_only=True)
class ExtensionCommand(Contribution):
    """A command: `replctl NAME ARGUMENTS`, and `/NAME ARGUMENTS` in an editor (ACP)."""

    kind: ClassVar[str] = "command"
    process: ClassVar[HostProcess] = "client"

    run: Annotated[Callable[[Any, str, str], str], "(client, session, arguments as one text) -> text to show"]
    hint: Annotated[str, "description of its arguments"] = ""
    changes: Annotated[bool, "false: it is read-only, and allowed in plan mode"] = True


@dataclass(frozen=True, kw_only=True)
class StatusItem(Contribution):
    """An item in the header of `replctl top`."""

    kind: ClassVar[str] = "status"
    process: ClassVar[HostProcess] = "client"
    unique_name: ClassVar[bool] = False

    render: Annotated[
        Callable[[Mapping[str, Any]], str | None], "from the snapshot of `replctl top --json`; None: nothing"
    ]


@dataclass(frozen=True, kw_only=True)
class Panel(Contribution):
    """A panel in `replctl top`."""

    kind: ClassVar[str] = "panel"
    process: ClassVar[HostProcess] = "client"
    unique_name: ClassVar[bool] = False

    title: Annotated[str, "title of the panel"]
    height: Annotated[int, "lines, from 1 to 20"]
    render: Annotated[Callable[[Mapping[str, Any], int], str], "(snapshot, columns) -> plain text"]


@dataclass(frozen=True, kw_only=True)
class Control(Contribution):
    """A key binding in `replctl top`."""

    kind: ClassVar[str] = "control"
    process: ClassVar[HostProcess] = "client"

    key: Annotated[str, "one printable character, unique among controls"]
    run: Annotated[Callable[[Any, str | None], str], "(client, selected session) -> text for the footer"]


@dataclass(frozen=True, kw_only=True)
class Screen(Contribution):
    """A full-screen replacement for `replctl top`: `--screen NAME`."""

    kind: ClassVar[str] = "screen"
    process: ClassVar[HostProcess] = "client"

    run: Annotated[Callable[[Any], int], "(client) -> exit code; it owns the terminal until it returns"]


CONTRACTS: dict[str, type[Contribution]] = {
    contract.kind: contract
    for contract in (
        ExtensionTool,
        Hook,
        ExtensionCommand,
        IntrospectSource,
        SessionBackend,
        ExtensionOperation,
        StatusItem,
        Panel,
        Control,
        Screen,
        Runtime,
        IdentityBackend,
    )
}


def fields_of(contract: type[Contribution]) -> dict[str, tuple[bool, str]]:
    """Return each field of a contract with whether it is required and its description."""
    hints = get_type_hints(contract, include_extras=True)
    return {
        each.name: (each.default is dataclasses.MISSING, getattr(hints[each.name], "__metadata__", ("",))[0])
        for each in dataclasses.fields(contract)
    }

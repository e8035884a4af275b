"""Session config options: mode, runtime and REPL session. The complete list is always sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from replctl.acp import modes
from replctl.acp.rpc import INVALID_PARAMS, RpcError

if TYPE_CHECKING:
    from replctl.acp.store import AcpSessionRecord
    from replwire.replies import SessionEntry

RUNTIMES = ("python", "node", "bash")  # runtimes a broker may have; the first is the default
OWN = "own"
_MAX_LISTED = 50


class BrokerSnapshot(NamedTuple):
    """The broker's sessions and runtimes at the last fetch."""

    sessions: Sequence[SessionEntry] = ()
    runtimes: Sequence[str] = RUNTIMES


def repl_session_name(record: AcpSessionRecord) -> str:
    """Return the reference of the selected REPL session, else of the ACP session's own one for its runtime."""
    return record.session or own_session_name(record.id, record.runtime)


def own_session_name(session_id: str, runtime: str) -> str:
    """Return the name of an ACP session's own REPL session for a runtime."""
    return session_id if runtime == RUNTIMES[0] else f"{session_id}-{runtime}"


def config_options(record: AcpSessionRecord, seen: BrokerSnapshot) -> list[dict[str, Any]]:
    """Return ACP's `configOptions`."""
    runtimes = list(dict.fromkeys([*seen.runtimes, record.runtime]))  # including its own if the broker no longer has it
    return [
        {**_select("mode", "Mode", "What prompts may do", record.mode, modes.mode_choices()), "category": "mode"},
        _select(
            "runtime",
            "Runtime",
            "Runtime of the code; each has its own session",
            record.runtime,
            [{"value": each, "name": each} for each in runtimes],
        ),
        _select(
            "session",
            "Session",
            "Live session that prompts run in; other sessions are shared",
            record.session or OWN,
            _sessions(record, seen.sessions),
        ),
    ]


def set_option(record: AcpSessionRecord, option: str, value: str, seen: BrokerSnapshot) -> None:
    """Set an option in the record. Raises RpcError for an unknown option or value."""
    sessions = seen.sessions
    known = {each["id"]: each for each in config_options(record, seen)}
    if option not in known:
        raise RpcError(INVALID_PARAMS, "unknown config option", {"configId": option[:100]})
    values = [each["value"] for each in known[option]["options"]]
    if option == "session" and value not in values and any(value in (each.name, each.session) for each in sessions):
        values.append(value)  # it exists, but the list was truncated
    if value not in values:
        raise RpcError(
            INVALID_PARAMS, f"unknown value for {option}", {"configId": option, "value": value[:100], "known": values}
        )
    if option == "mode":
        record.mode = modes.Mode(value)
    elif option == "runtime":
        record.runtime, record.session = value, None
    else:
        record.session = None if value == OWN else value
        record.runtime = next((each.runtime for each in sessions if value in (each.ref, each.session)), record.runtime)


def _sessions(record: AcpSessionRecord, sessions: Sequence[SessionEntry]) -> list[dict[str, str]]:
    mine = own_session_name(record.id, record.runtime)
    choices = [{"value": OWN, "name": "Own", "description": mine}]
    live = [each for each in sessions if each.ref not in (mine, OWN)]
    for each in sorted(live, key=lambda each: each.ref.startswith("acp-"))[:_MAX_LISTED]:
        choices.append({"value": each.ref, "name": each.ref, "description": f"{each.runtime}, {each.state}"})
    if record.session is not None and all(each["value"] != record.session for each in choices):
        choices.append({"value": record.session, "name": record.session, "description": "closed"})
    return choices


def _select(name: str, title: str, text: str, value: str, choices: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "id": name,
        "name": title,
        "description": text,
        "type": "select",
        "currentValue": value,
        "options": choices,
    }

"""Slash commands: prompts that are not code."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from replctl.acp import render
from replctl.acp.store import truncate_middle
from replctl.client.errors import ReplError
from replctl.durations import format_duration
from replctl.file_changes import change_lines
from replwire.quantities import count_of

if TYPE_CHECKING:
    from replctl.client.aio import AsyncClient, OnApproval
    from replwire.ext.registry import ExtensionRegistry

_FORM = re.compile(r"/([a-z][a-z0-9_-]*)(?:\s+(.*))?\s*\Z", re.S)  # `/usr/bin/env` and `/re/.test(x)` are code
_READ_BYTES = 64 * 1024


class SlashContext(NamedTuple):
    """Context of a slash command: the broker, the REPL session, the mode of the turn, and its user."""

    client: AsyncClient
    session: str
    mode: str
    commands: SlashCommands
    approve: OnApproval  # asks the user


SlashHandler = Callable[[SlashContext, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A slash command. `changes` is true if plan mode refuses the command and ask mode asks first."""

    name: str
    description: str
    run: SlashHandler
    hint: str | None = None
    changes: bool = False


async def _help(at: SlashContext, _: str) -> str:
    lines = [
        *at.commands.help(),
        "",
        f"session {at.session}, mode {at.mode}; any other text is run as code",
    ]
    return "\n".join(lines)


async def _vars(at: SlashContext, _: str) -> str:
    info = await at.client.info(at.session)
    found = info.get("variables")
    if found is None:
        return "The variables are not available now: an eval is running, or the session has no worker."
    lines = [
        f"{each['name']}: {each['type']}"
        + (f"[{each['size']}]" if each.get("size") is not None else "")
        + (f" = {each['preview']}" if each.get("preview") is not None else "")
        for each in found
    ]
    if (total := info.get("variables-total") or 0) > len(found):
        lines.append(f"… {total - len(found)} more")
    return "\n".join(lines) or "no variables"


async def _info(at: SlashContext, _: str) -> str:
    info = await at.client.info(at.session, variables=False)
    kept = {key: value for key, value in info.items() if key not in ("limits", "variables") and value is not None}
    return "\n".join(f"{key}: {value}" for key, value in kept.items())


async def _jobs(at: SlashContext, _: str) -> str:
    lines = []
    for job in (await at.client.jobs(at.session))[-50:]:
        ended = " ".join(word for word in job.status if word != "done") or job.state
        ended += ", undone" if job.undone else ""
        took = f", {format_duration(job.duration_ms)}" if job.duration_ms is not None else ""
        lines.append(f"{job.eval_id}: {ended}{took}: {render.title(job.code)}")
    return "\n".join(lines) or "no evals"


async def _read(at: SlashContext, argument: str) -> str:
    if not argument.isascii() or not argument.isdigit():
        return "Pass an eval number: /jobs lists them, 0 is output printed between evals."
    result = await at.client.read(at.session, int(argument), max_bytes=_READ_BYTES)
    parts = [result.out, result.err, result.traceback or "", result.display_value or result.exit_status or ""]
    if result.truncated:
        parts.append(f"…[there is more: replctl read {at.session} {argument} --offset {result.offset}]")
    if result.running:
        parts.append("…[still running]")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "no output"


async def _sessions(at: SlashContext, _: str) -> str:
    lines = [
        f"{each.ref}: {each.runtime}, {each.state}, {count_of(each.eval_count, 'eval')}, epoch {each.epoch}"
        for each in await at.client.sessions()
    ]
    return "\n".join(lines) or "no sessions"


async def _interrupt(at: SlashContext, _: str) -> str:
    reply = await at.client.interrupt(at.session)
    return f"interrupted eval {reply.interrupted_id}" if reply.interrupted else "nothing is running"


async def _clear(at: SlashContext, _: str) -> str:
    reply = await at.client.clear(at.session)
    return f"deleted {count_of(reply.count, 'variable')}; the process keeps running"


async def _reset(at: SlashContext, _: str) -> str:
    reply = await at.client.reset(at.session)
    notice = f"; {reply.notice}" if reply.notice else ""
    return f"fresh worker, epoch {reply.epoch}; all variables are lost{notice}"


async def _undo(at: SlashContext, argument: str) -> str:
    reply = await at.client.rollback(at.session, argument or None)
    undone = ", ".join(map(str, reply.undone_evals or [])) or "none"
    lines = [f"back at checkpoint {reply.checkpoint}, epoch {reply.epoch}; undone evals: {undone}"]
    return "\n".join(lines + [f"not restored: {each}" for each in reply.not_restored or []])


async def _diff(at: SlashContext, argument: str) -> str:
    reply = await at.client.diff(at.session, argument or None)
    changes = [(each.change, each.path) for each in reply.file_changes or []]
    lines = change_lines(changes, reply.patch, truncated=bool(reply.truncated))
    return truncate_middle("\n".join(lines)) or f"no file has changed since checkpoint {reply.checkpoint}"


async def _branch(at: SlashContext, argument: str) -> str:
    name, _, checkpoint = argument.partition(" ")
    if not name:
        return "/branch needs a name for the new session"
    reply = await at.client.branch(at.session, name, checkpoint.strip() or None)
    lines = [f"session {reply.name} begins with checkpoint {reply.checkpoint}: replctl attach {reply.name}"]
    return "\n".join(lines + [f"not copied: {each}" for each in reply.not_restored or []])


async def _allow_hosts(at: SlashContext, argument: str) -> str:
    approval = None
    while True:
        try:
            reply = await at.client.allow_hosts(argument.split(), at.session, approval=approval)
        except ReplError as error:
            if error.approval is None or not await at.approve(error.approval):
                raise
            approval = error.approval.id
        else:
            lines = [f"{entry} until {until}" for entry, until in (reply.more_hosts or {}).items()]
            return "\n".join([*lines, *([reply.notice] if reply.notice else [])]) or "the hosts of its list alone"


SLASH_COMMANDS = (
    SlashCommand("help", "List these commands", _help),
    SlashCommand("vars", "Variables of the session", _vars),
    SlashCommand("info", "Runtime, directory, process and memory of the session", _info),
    SlashCommand("jobs", "Evals of the session: queued, running, recent", _jobs),
    SlashCommand("read", "Output and result of an earlier eval", _read, "eval number"),
    SlashCommand("sessions", "All sessions of the broker", _sessions),
    SlashCommand("interrupt", "Interrupt the session's running eval, whoever sent it", _interrupt, changes=True),
    SlashCommand("undo", "Undo the last eval, or all since a checkpoint", _undo, "checkpoint", changes=True),
    SlashCommand("diff", "Changes of files since the last eval, or a checkpoint", _diff, "checkpoint"),
    SlashCommand("branch", "Open a session that begins as a copy of this one", _branch, "name", changes=True),
    SlashCommand("allow-hosts", "Let the session reach more hosts for a time", _allow_hosts, "hosts", changes=True),
    SlashCommand("clear", "Delete all variables; the process keeps running", _clear, changes=True),
    SlashCommand("reset", "Restart the session; all variables are lost", _reset, changes=True),
)


class SlashCall(NamedTuple):
    """A prompt that calls a slash command; `command` is None if there is no such command."""

    name: str
    argument: str
    command: SlashCommand | None


class SlashCommands:
    """The built-in slash commands plus those of extensions; a built-in name cannot be overridden."""

    def __init__(self, more: Sequence[SlashCommand] = ()) -> None:
        names = {each.name for each in SLASH_COMMANDS}
        self._all = (*SLASH_COMMANDS, *(each for each in more if each.name not in names))
        self._by_name = {each.name: each for each in self._all}

    def parse(self, text: str) -> SlashCall | None:
        """Return the call that a prompt such as `/name argument` stands for, or None for code.

        A leading space makes the text code.
        """
        match = _FORM.match(text)
        return None if match is None else SlashCall(match[1], (match[2] or "").strip(), self._by_name.get(match[1]))

    @property
    def names(self) -> list[str]:
        """Names of the commands."""
        return list(self._by_name)

    def available(self) -> list[dict[str, Any]]:
        """Return ACP's `availableCommands`."""
        return [
            {"name": each.name, "description": each.description} | ({"input": {"hint": each.hint}} if each.hint else {})
            for each in self._all
        ]

    def help(self) -> list[str]:
        """Return one help line per command."""
        width = max(len(each.name) + len(each.hint or "") for each in self._all) + 4
        return [f"/{each.name} {each.hint or ''}".ljust(width) + each.description for each in self._all]


def build_slash_commands(registry: ExtensionRegistry, agent: str) -> list[SlashCommand]:
    """Build the slash commands of all extensions. Each call runs in a thread with its own connection."""
    from replctl.extensions import commands_by_name

    return [
        SlashCommand(
            each.name,
            each.summary or each.name,
            _build_handler(registry, each.name, agent),
            each.hint or None,
            each.changes,
        )
        for each in commands_by_name(registry).values()
    ]


def _build_handler(registry: ExtensionRegistry, name: str, agent: str) -> SlashHandler:
    def run(endpoint: str, session: str, argument: str) -> str:
        from replctl.client.sync import Client
        from replctl.extensions import run_command

        with Client(endpoint, agent, start=False) as client:
            try:
                return truncate_middle(run_command(registry, name, client, session, argument))
            except ReplError:
                raise
            except BaseException as error:  # noqa: BLE001 - in this thread nobody else's: it must not end the process
                raise ReplError("not-supported", f"extension command {name}: {type(error).__name__}") from None

    async def begin(at: SlashContext, argument: str) -> str:
        return await asyncio.to_thread(run, at.client.address.endpoint, at.session, argument)

    return begin

"""Slash commands: prompts that are not code."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replctl.acp import render
from replctl.client.errors import ReplError
from replctl.commands.durations import format_duration

if TYPE_CHECKING:
    from replctl.acp.turns import PromptTurn

_FORM = re.compile(r"/([a-z][a-z0-9_-]*)(?:\s+(.*))?\s*\Z", re.S)  # `/usr/bin/env` and `/re/.test(x)` are code
_READ_BYTES = 64 * 1024

SlashHandler = Callable[["PromptTurn", str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A slash command. `changes` is true if plan mode refuses the command and ask mode asks first."""

    name: str
    description: str
    run: SlashHandler
    hint: str | None = None
    changes: bool = False


async def _help(turn: PromptTurn, _: str) -> str:
    lines = [
        *turn.services.commands.help(),
        "",
        f"session {turn.session.repl_session}, mode {turn.mode}; any other text is run as code",
    ]
    return "\n".join(lines)


async def _vars(turn: PromptTurn, _: str) -> str:
    info = await turn.services.broker.client.info(turn.session.repl_session)
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


async def _info(turn: PromptTurn, _: str) -> str:
    info = await turn.services.broker.client.info(turn.session.repl_session, variables=False)
    kept = {key: value for key, value in info.items() if key not in ("limits", "variables") and value is not None}
    return "\n".join(f"{key}: {value}" for key, value in kept.items())


async def _jobs(turn: PromptTurn, _: str) -> str:
    lines = []
    for job in (await turn.services.broker.client.jobs(turn.session.repl_session))[-50:]:
        ended = " ".join(word for word in job.status if word != "done") or job.state
        took = f", {format_duration(job.duration_ms)}" if job.duration_ms is not None else ""
        lines.append(f"{job.eval_id}: {ended}{took}: {render.title(job.code)}")
    return "\n".join(lines) or "no evals"


async def _read(turn: PromptTurn, argument: str) -> str:
    if not argument.isascii() or not argument.isdigit():
        return "Pass an eval number: /jobs lists them, 0 is output printed between evals."
    result = await turn.services.broker.client.read(turn.session.repl_session, int(argument), max_bytes=_READ_BYTES)
    parts = [result.out, result.err, result.traceback or "", result.display_value or result.exit_status or ""]
    if result.truncated:
        parts.append(f"…[there is more: replctl read {turn.session.repl_session} {argument} --offset {result.offset}]")
    if result.running:
        parts.append("…[still running]")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "no output"


async def _sessions(turn: PromptTurn, _: str) -> str:
    lines = [
        f"{each.ref}: {each.runtime}, {each.state}, {each.eval_count} evals, epoch {each.epoch}"
        for each in await turn.services.broker.client.sessions()
    ]
    return "\n".join(lines) or "no sessions"


async def _interrupt(turn: PromptTurn, _: str) -> str:
    reply = await turn.services.broker.client.interrupt(turn.session.repl_session)
    return f"interrupted eval {reply.interrupted_id}" if reply.interrupted else "nothing is running"


async def _clear(turn: PromptTurn, _: str) -> str:
    reply = await turn.services.broker.client.clear(turn.session.repl_session)
    return f"deleted {reply.count or 0} variables; the process keeps running"


async def _reset(turn: PromptTurn, _: str) -> str:
    reply = await turn.services.broker.client.reset(turn.session.repl_session)
    told = f"; {reply.notice}" if reply.notice else ""
    return f"fresh worker, epoch {reply.epoch}; all variables are lost{told}"


SLASH_COMMANDS = (
    SlashCommand("help", "List these commands", _help),
    SlashCommand("vars", "Variables of the session", _vars),
    SlashCommand("info", "Runtime, directory, process and memory of the session", _info),
    SlashCommand("jobs", "Evals of the session: queued, running, recent", _jobs),
    SlashCommand("read", "Output and result of an earlier eval", _read, "eval number"),
    SlashCommand("sessions", "All sessions of the broker", _sessions),
    SlashCommand("interrupt", "Interrupt the session's running eval, whoever sent it", _interrupt, changes=True),
    SlashCommand("clear", "Delete all variables; the process keeps running", _clear, changes=True),
    SlashCommand("reset", "Restart the session; all variables are lost", _reset, changes=True),
)


class SlashCommands:
    """The built-in slash commands plus those of extensions; a built-in name cannot be overridden."""

    def __init__(self, more: Sequence[SlashCommand] = ()) -> None:
        names = {each.name for each in SLASH_COMMANDS}
        self._all = (*SLASH_COMMANDS, *(each for each in more if each.name not in names))
        self._by_name = {each.name: each for each in self._all}

    def parse(self, text: str) -> Callable[[PromptTurn], Awaitable[None]] | None:
        """Return the invocation that a prompt such as `/name argument` stands for, or None for code.

        A leading space makes the text code.
        """
        match = _FORM.match(text)
        if match is None:
            return None
        command, argument = self._by_name.get(match[1]), (match[2] or "").strip()

        async def run(turn: PromptTurn) -> None:
            if command is None:
                names = ", ".join(f"/{name}" for name in self._by_name)
                turn.send_message(f"Unknown command /{match[1][:40]}. Commands: {names}")
                return
            if command.changes and not await turn.authorize(f"/{command.name} {argument}".strip(), "other", text):
                return
            try:
                told = await command.run(turn, argument)
            except ReplError as error:
                if error.code != "session-not-found" or turn.session.record.session is not None:
                    raise
                told = "Nothing has been run in this session yet."
            turn.finish_command(told)

        return run

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

"""`replctl tail`: live events."""

from __future__ import annotations

from typing import Any

import click

from replctl.client.errors import ReplError
from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    optional_session_argument,
    with_common_options,
)
from replctl.commands.output import has_colours
from replctl.durations import format_duration
from replctl.top.terminal_sequences import TerminalSanitizer

_COLOURS = {"eval": "36", "session": "32", "worker": "35", "broker": "34"}
_BAD = "31"
_CREATED = "session/created"
_LINE = 100  # characters of code, value or error on a line
_ENVELOPE = frozenset(
    {
        "v",
        "id",
        "seq",
        "time",
        "session",
        "eval",
        "agent",
        "emitter",
        "type",
        "reply-status",
        "images",
        "traceback",
        "request-id",
        "out",
        "err",
        "mime",
        "ns",
    }
)


@click.command(cls=SessionCommand)
@optional_session_argument
@click.option(
    "--types",
    metavar="TYPE",
    multiple=True,
    help="Only this event type; a trailing / matches a prefix (e.g. eval/). Repeatable.",
)
@click.option("--output", is_flag=True, help="Include live output.")
@click.option(
    "--since", type=click.IntRange(min=0), metavar="SEQ", help="Start after this event number; needs SESSION."
)
@with_common_options
def tail(context: CommandContext, session: str | None, types: tuple[str, ...], output: bool, since: int | None) -> int:
    """Follow events of SESSION, or of all sessions, until Ctrl-C or the end of the session."""
    with context.client() as client:
        context.screen.exit_on_broken_pipe()
        teller = EventPrinter(context, has_colours(1))
        teller.names = {entry.session: entry.ref for entry in client.sessions()}
        for_names = types and session is None and not {_CREATED, "session/"} & {*types}
        try:
            for event in client.events(session, (*types, _CREATED) if for_names else types, since, output):
                teller.learn_name(event)
                if not (for_names and event["type"] == _CREATED):
                    teller.print_event(event)
        except KeyboardInterrupt:
            return 0
        except ReplError as error:
            if error.code != "shutdown":
                raise
            context.screen.notice("the broker is shutting down")
    return 0


class EventPrinter:
    """Prints events as lines."""

    def __init__(self, context: CommandContext, coloured: bool) -> None:
        self._context = context
        self._coloured = coloured
        self.names: dict[str, str] = {}
        self._texts: dict[tuple[str | None, str], TerminalSanitizer] = {}  # by session and stream

    def learn_name(self, event: dict[str, Any]) -> None:
        """Remember the name of a new session."""
        if event["type"] == _CREATED:
            self.names[event["session"]] = event.get("name") or event["session"]

    def print_event(self, event: dict[str, Any]) -> None:
        """Print one event."""
        kind, session = event["type"], event.get("session")
        if self._context.json:
            self._context.screen.json(event)
        elif kind == "eval/output":
            self._output(session, event["reply"])
        elif kind != "eval/output-end":
            self._context.screen.write_coloured(*self._line(kind, session, event))
        if kind in ("eval/finished", "session/closed"):
            for stream in ("out", "err"):
                self._texts.pop((session, stream), None)
        if kind == "session/closed" and session is not None:
            self.names.pop(session, None)

    def _output(self, session: str | None, reply: dict[str, Any]) -> None:
        """Print session output without control sequences; colours end with each message."""
        for stream in ("out", "err"):
            if text := reply.get(stream):
                harmless = self._texts.setdefault((session, stream), TerminalSanitizer(self._coloured))
                self._context.screen.live("out", harmless.text(text) + harmless.end())

    def _line(self, kind: str, session: str | None, event: dict[str, Any]) -> list[tuple[str, str | None]]:
        bad = event.get("status") not in (None, "ok") or kind in (
            "session/lost",
            "session/rolled-back",
            "log/error",
            "admission/refused",
            "policy/decision",
            "bus/lagged",
        )
        colour = _BAD if bad else _COLOURS.get(kind.partition("/")[0])
        where = self.names.get(session or "", session or "-")
        number = [str(event["eval"])] if event.get("eval") else []
        before = f"{event.get('time', '')[11:23] or '-'} {where} "
        after = "".join(f" {each}" for each in (*number, *_facts(event)))
        return [(before, None), (kind, colour if self._coloured else None), (after, None)]


def _facts(event: dict[str, Any]) -> list[str]:
    found = []
    for key, value in event.items():
        if key in _ENVELOPE or value in ("", [], {}):
            continue
        if key.endswith("-ms"):
            found.append(f"{key.removesuffix('-ms')}={format_duration(value)}")
        elif key in ("status", "name"):
            found.append(str(value))
        else:
            found.append(f"{key}={_short(value)}")
    return found


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"

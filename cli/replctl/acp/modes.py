"""How much a session may do: `auto` runs, `ask` asks first, `plan` changes nothing."""

from __future__ import annotations

import enum
from typing import Any


class Mode(enum.StrEnum):
    """A session's posture, from the widest to the narrowest."""

    AUTO = "auto"
    ASK = "ask"
    PLAN = "plan"


_MEANING = {
    Mode.AUTO: ("Auto", "Code runs as soon as it is sent"),
    Mode.ASK: ("Ask", "Each eval, and each command that changes something, asks first"),
    Mode.PLAN: ("Plan", "Read-only: no code runs, commands that only look do"),
}
_ORDER = list(Mode)


def parse_mode(text: object) -> Mode | None:
    """The mode of this name, or None."""
    return Mode(text) if isinstance(text, str) and text in _MEANING else None


def stricter(one: Mode, other: Mode) -> Mode:
    """Of two modes the one that allows less."""
    return max(one, other, key=_ORDER.index)


def requested_mode(meta: Any) -> Mode:
    """What a prompt's `_meta` narrows its one turn to, as `{"replctl": {"mode": "ask"}}`; else the widest."""
    ours = meta.get("replctl") if isinstance(meta, dict) else None
    return (parse_mode(ours.get("mode")) if isinstance(ours, dict) else None) or Mode.AUTO


def modes_state(current: Mode) -> dict[str, Any]:
    """ACP's `modes`."""
    modes = [{"id": mode, "name": name, "description": text} for mode, (name, text) in _MEANING.items()]
    return {"currentModeId": current, "availableModes": modes}


def mode_choices() -> list[dict[str, str]]:
    """The modes as options of a select."""
    return [{"value": mode, "name": name, "description": text} for mode, (name, text) in _MEANING.items()]

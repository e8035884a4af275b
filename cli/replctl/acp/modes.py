"""Session modes: `auto` runs code, `ask` asks first, `plan` changes nothing."""

from __future__ import annotations

import enum
from typing import Any


class Mode(enum.StrEnum):
    """A session mode, from the most to the least permissive."""

    AUTO = "auto"
    ASK = "ask"
    PLAN = "plan"


_MEANING = {
    Mode.AUTO: ("Auto", "Code runs as soon as it is sent"),
    Mode.ASK: ("Ask", "Ask before each eval and each command that makes changes"),
    Mode.PLAN: ("Plan", "Read-only: no code runs; read-only commands do"),
}
_ORDER = list(Mode)


def parse_mode(text: object) -> Mode | None:
    """Return the mode with this name, or None."""
    return Mode(text) if isinstance(text, str) and text in _MEANING else None


def stricter(one: Mode, other: Mode) -> Mode:
    """Return the stricter of two modes."""
    return max(one, other, key=_ORDER.index)


def requested_mode(meta: Any) -> Mode:
    """Return the mode that a prompt's `_meta` requests; default: auto.

    It is `{"replctl": {"mode": "ask"}}`, or Pixir's `{"permission_mode": "ask"}`; of both the stricter.
    """
    if not isinstance(meta, dict):
        return Mode.AUTO
    ours, pixirs = meta.get("replctl"), meta.get("permission_mode")
    own = parse_mode(ours.get("mode")) if isinstance(ours, dict) else None
    other = Mode.PLAN if pixirs == "read_only" else parse_mode(pixirs)
    return stricter(own or Mode.AUTO, other or Mode.AUTO)


def modes_state(current: Mode) -> dict[str, Any]:
    """Return ACP's `modes`."""
    modes = [{"id": mode, "name": name, "description": text} for mode, (name, text) in _MEANING.items()]
    return {"currentModeId": current, "availableModes": modes}


def mode_choices() -> list[dict[str, str]]:
    """Return the modes as options of a select."""
    return [{"value": mode, "name": name, "description": text} for mode, (name, text) in _MEANING.items()]

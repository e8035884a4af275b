"""Which modules the code of an agent may import, by name.

It reads what code says, and code can say it otherwise (`__import__`, `importlib`, `exec`, a module that imports for
it): the plainest of these are refused as well, not all. It keeps a well-meaning agent to its tools. What must not be
possible is for the sandbox to prevent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from replwire.ext.api import Block, Hook, HookRequest, Register, hookimpl

_BY_NAME = frozenset({"__import__", "importlib.import_module", "importlib.reload", "exec", "eval", "compile"})


class ImportGuardSettings(msgspec.Struct, forbid_unknown_fields=True):
    """`allow` has modules by agent; `*` is for agents that are not listed and for who names none. A module allows what
    is below it."""

    allow: dict[str, list[str]]


@hookimpl
def replctl_register(register: Register, settings: Mapping[str, Any]) -> None:
    """See `ToolSettings`. Files that `load-file` runs are not read: they lie in folders of the operator's choice."""
    allow = msgspec.convert(dict(settings), ImportGuardSettings).allow

    def before_eval(question: HookRequest) -> Block | None:
        allowed = allow.get(question.agent or "*", allow.get("*", []))
        if question.op != "eval" or "*" in allowed:
            return None
        facts = question.analysis
        if facts.error is not None:
            return Block(f"its imports cannot be told ({facts.error})")
        hidden = sorted(facts.calls & _BY_NAME)
        wanted = sorted(name for name in facts.imports if not _within(name, allowed))
        if not hidden and not wanted:
            return None
        what = f"import {wanted[0]}" if wanted else f"call {hidden[0]}, which can import anything"
        return Block(f"agent {question.agent or '(none)'} may not {what}; allowed: {', '.join(allowed) or 'nothing'}")

    register(Hook(name="imports", summary="imports by agent", before_eval=before_eval))


def _within(name: str, allowed: list[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in allowed)

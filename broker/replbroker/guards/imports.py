"""Guard that restricts which modules an agent's code may import.

It reads the code, and code can import indirectly (`__import__`, `importlib`, `exec`, a module that imports on its
behalf). The most obvious of these are refused as well, but not all: the guard keeps a well-meaning agent to its tools.
What must be impossible is for the sandbox to prevent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from replwire.ext.api import Block, Hook, HookRequest, Register, hookimpl

_BY_NAME = frozenset({"__import__", "importlib.import_module", "importlib.reload", "exec", "eval", "compile"})


class ImportGuardSettings(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of the guard.

    Attributes:
        allow: Allowed modules by agent; `*` is for agents that are not listed, and for clients that name none. A module
            includes its submodules.
    """

    allow: dict[str, list[str]]


@hookimpl
def replctl_register(register: Register, settings: Mapping[str, Any]) -> None:
    """Register the guard; see `ImportGuardSettings`.

    Files that `load-file` runs are not checked: their directories are chosen by the operator.
    """
    allow = msgspec.convert(dict(settings), ImportGuardSettings).allow

    def before_eval(question: HookRequest) -> Block | None:
        allowed = allow.get(question.agent or "*", allow.get("*", []))
        if question.op != "eval" or "*" in allowed:
            return None
        facts = question.analysis
        if facts.error is not None:
            return Block(f"its imports cannot be determined ({facts.error})")
        hidden = sorted(facts.calls & _BY_NAME)
        wanted = sorted(name for name in facts.imports if not _within(name, allowed))
        if not hidden and not wanted:
            return None
        what = f"import {wanted[0]}" if wanted else f"call {hidden[0]}, which can import anything"
        return Block(f"agent {question.agent or '(none)'} may not {what}; allowed: {', '.join(allowed) or 'nothing'}")

    register(Hook(name="imports", summary="imports by agent", before_eval=before_eval))


def _within(name: str, allowed: list[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in allowed)

"""A guard against secrets in code: what looks like one is not run, and so is in no history and no transcript.

It knows the shapes of well-known keys. A password that is a word, a key in pieces or in base64 it does not see, nor
what code reads from files: a seat belt for honest mistakes, no boundary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from replwire.ext.api import Block, Hook, HookRequest, Register, RequireApproval, hookimpl

# Name to shape. Each is linear in the length of the code.
SHAPES = {
    "private key": r"-----BEGIN (?:[A-Z]{1,20} ){0,3}PRIVATE KEY-----",
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,255}",
    "Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{10,255}",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}",
    "Stripe key": r"\b[rs]k_live_[0-9A-Za-z]{20,255}",
    "API key": r"\bsk-[A-Za-z0-9_-]{32,255}",
    "JSON web token": r"(?<![\w-])eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,2000}",
    "password in an address": r"\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@\"']{0,100}:[^\s:/@\"']{3,200}@",
}


@hookimpl
def replctl_register(register: Register, settings: Mapping[str, Any]) -> None:
    """`answer` is `block` (default) or `ask`; `shapes` adds names with regular expressions."""
    answer, shapes = settings.get("answer", "block"), SHAPES | dict(settings.get("shapes", {}))
    if set(settings) - {"answer", "shapes"} or answer not in ("block", "ask"):
        raise ValueError("settings: answer (block or ask) and shapes (name = regular expression), nothing else")
    found = {name: re.compile(shape) for name, shape in shapes.items()}

    def before_eval(question: HookRequest) -> RequireApproval | Block | None:
        for name, shape in found.items():
            if (match := shape.search(question.code)) is not None:
                line = question.code.count("\n", 0, match.start()) + 1
                reason = f"line {line} has what looks like a secret ({name})"
                return Block(reason) if answer == "block" else RequireApproval("Run code with a secret in it?", reason)
        return None

    register(Hook(name="secrets", summary="secrets in code", before_eval=before_eval))

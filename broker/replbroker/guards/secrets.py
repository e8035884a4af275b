"""Guard against secrets in code: code that contains one is not run, so it is in no history and no transcript.

It knows the formats of well-known keys. It does not see a password that is a word, a key in pieces or in base64, or
what code reads from files: a guard rail for honest mistakes, not a security boundary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from replwire.ext.api import Block, Hook, HookRequest, Register, RequireApproval, hookimpl

# Regular expressions by name, each linear in the length of the code.
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
    """Register the guard; `answer` is `block` (default) or `ask`, and `shapes` adds regular expressions by name."""
    answer, shapes = settings.get("answer", "block"), SHAPES | dict(settings.get("shapes", {}))
    if set(settings) - {"answer", "shapes"} or answer not in ("block", "ask"):
        raise ValueError("the only settings are answer (block or ask) and shapes (name = regular expression)")
    found = {name: re.compile(shape) for name, shape in shapes.items()}

    def before_eval(question: HookRequest) -> RequireApproval | Block | None:
        for name, shape in found.items():
            if (match := shape.search(question.code)) is not None:
                line = question.code.count("\n", 0, match.start()) + 1
                reason = f"line {line} has what looks like a secret ({name})"
                return Block(reason) if answer == "block" else RequireApproval("Run code with a secret in it?", reason)
        return None

    register(Hook(name="secrets", summary="secrets in code", before_eval=before_eval))

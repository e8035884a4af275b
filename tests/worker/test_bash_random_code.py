"""Random pieces of Bash: after each the session works, or has ended with a cause."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

_PIECES = [
    "echo a",
    "}",
    "{",
    "fi",
    "if :; then",
    "done",
    "for i in 1 2; do",
    "case x in",
    "esac",
    ";;",
    "$(",
    ")",
    "`",
    "'",
    '"',
    "\\",
    "\n",
    " ",
    ";",
    "&",
    "&&",
    "||",
    "|",
    "<<EOF\n",
    "<<'E'\n",
    "EOF",
    ">",
    "<",
    "<<<",
    "((",
    "))",
    "[[",
    "]]",
    "${x",
    "}",
    "$x",
    "#",
    "!",
    "*",
    "?",
    "~",
    "=",
    "x=1",
    "x=(",
    "f() {",
    "function",
    "time",
    "coproc",
    "\t",
    "\x01",
    "\x7f",
    "é",
    "$'\\n'",
    "exit 3",
    "return",
    "break",
    "exec 2>&1",
    "set -e",
    "set -u",
    "set -x",
    "false",
    "trap 'echo' ERR",
    "trap - ERR",
    "local x",
    "declare -A m",
    "unset x",
    "eval",
    "builtin",
    "command",
    ". /dev/null",
    "kill -INT $$",
    "shopt -s extglob",
    "@(a|b)",
    "alias q='if :; then'",
    "q",
    "shift",
    "set --",
    "read x",
    "$((1/0))",
    "${x:?}",
    "exec 9>&-",
    "printf '%s'",
    "\r",
    "{a,b}",
]


@pytest.mark.parametrize("seed", range(20))
def test_after_nasty_code_the_session_works_or_has_ended(start_bash: Any, seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    session = start_bash()
    session.assign(str(tmp_path))
    for _ in range(10):
        if session.cause is not None:
            session = start_bash()
            session.assign(str(tmp_path))
        session.code = "".join(
            choose.choice(_PIECES) + choose.choice(["", " ", "\n", ";"]) for _ in range(choose.randint(1, 14))
        )
        session.start_eval(session.code)
        session.settle()
        if session.cause is None:
            session.start_eval("echo o''k")
            session.settle()
            assert session.cause is not None or b"ok\n" in session.stdout, session.code
        session.stdout.clear()
        assert session.cause is None or session.cause.startswith("the interpreter ")

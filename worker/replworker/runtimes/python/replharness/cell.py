"""Compilation of an eval's text to code objects."""

from __future__ import annotations
import __future__

import _ast

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, List

__builtins__ = SEALED

_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_TREE = _ast.PyCF_ONLY_AST
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag
_FUTURES &= ~0x10  # nested_scopes shares its bit with CO_NESTED


def _looks_simple(code: str) -> bool:
    """Return whether the code may be one expression on one line, which compiles much faster without an AST."""
    return not (code[:1].isspace() or "\n" in code or "=" in code or ";" in code or code[:7] == "import ")


class Compiler:
    """Compiles evals; a future statement applies to later evals, as in interactive Python."""

    def __init__(self) -> None:
        self._futures = 0

    def compile(self, code: str, name: str) -> List[CodeType]:
        """Return code objects to run in order; the last is an expression if the last statement is one."""
        # dont_inherit: this file's own future statement is not the user's.
        flags = self._futures | _AWAIT
        if _looks_simple(code):
            try:
                return [compile(code, name, "eval", flags, True)]
            except SyntaxError:
                pass  # errors are reported by the slow path below
        tree = compile(code, name, "exec", flags | _TREE, True)
        last: Any = None
        if tree.body and type(tree.body[-1]) is _ast.Expr:
            last = _ast.Expression(tree.body.pop().value)
        codes: List[CodeType] = []
        if tree.body or last is None:
            codes.append(compile(tree, name, "exec", flags, True))
            self._futures |= codes[0].co_flags & _FUTURES
        if last is not None:
            codes.append(compile(last, name, "eval", self._futures | _AWAIT, True))
        return codes

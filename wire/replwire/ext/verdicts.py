"""What a hook is asked before code runs, and what it may answer."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

MAX_PARSED = 256 * 1024  # characters of code that are looked into
_FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@dataclass(frozen=True, slots=True)
class Allow:
    """Nothing against it. The same as None."""


@dataclass(frozen=True, slots=True)
class Block:
    """It must not run. `reason` is told to whoever sent it."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequireApproval:
    """A person is to decide. `title` is the question in a few words, `reason` why it is asked."""

    title: str
    reason: str


Verdict = Allow | Block | RequireApproval


@dataclass(frozen=True)
class CodeAnalysis:
    """What python code says before it runs. Code can hide all of it: this is a look, not a boundary.

    `imports` has modules by their full dotted names, of `from a import b` both `a` and `a.b`; `calls` what is called
    by a plain or dotted name; `names` every name that is read. `error`: why it could not be parsed; then all are empty.
    """

    imports: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class HookRequest:
    """One eval that is about to run. All of it is data of the request; nothing here is the session's own word.

    `op` is `eval`, or what else takes its turn in a session: `load-file`, `reload-file`, `env` and `clone`, which have
    no `code`; `file` is that of the first two. `ephemeral`: a throw-away session, which has no name. `agent` is a
    label, `identity` is who the transport vouches for.
    """

    op: str
    code: str
    file: str | None
    session: str
    name: str | None
    ephemeral: bool
    runtime: str
    agent: str | None
    binding: str | None
    identity: str
    approved: frozenset[str] = frozenset()  # hooks, as `OWNER/NAME`, whose question a person has answered with yes

    @cached_property
    def analysis(self) -> CodeAnalysis:
        """The code, looked into once for all hooks. Other runtimes than python have `error` alone."""
        return analyze(self.code) if self.runtime == "python" else CodeAnalysis(error=f"{self.runtime} is not parsed")


def analyze(code: str) -> CodeAnalysis:
    """Parse python code as this interpreter reads it. Never raises."""
    if len(code) > MAX_PARSED:
        return CodeAnalysis(error=f"longer than {MAX_PARSED} characters")
    try:
        tree = compile(code, "<eval>", "exec", _FLAGS, dont_inherit=True)
        found = [_names_in(node) for node in ast.walk(tree)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return CodeAnalysis(error=f"{type(error).__name__}: {error}")
    imports, calls, names = (frozenset(word for each in found for word in each[which]) for which in range(3))
    return CodeAnalysis(imports, calls, names)


def _names_in(node: ast.AST) -> tuple[list[str], list[str], list[str]]:
    """Imports, calls and names of one node."""
    match node:
        case ast.Import(names=names):
            return [each.name for each in names], [], []
        case ast.ImportFrom(module=module, names=names, level=level):
            base = "." * level + (module or "")
            joint = "" if base.endswith(".") or not base else "."
            return [base, *(f"{base}{joint}{each.name}" for each in names if each.name != "*")], [], []
        case ast.Call(func=func):
            name = _dotted(func)
            return [], [] if name is None else [name], []
        case ast.Name(id=name, ctx=ast.Load()):
            return [], [], [name]
    return [], [], []


def _dotted(node: ast.expr) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])

"""Hook requests and verdicts."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

MAX_PARSED = 256 * 1024  # characters of code
_FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@dataclass(frozen=True, slots=True)
class Allow:
    """No objection. Same as None."""


@dataclass(frozen=True, slots=True)
class Block:
    """Reject the eval. `reason` is sent to the caller."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequireApproval:
    """Ask a person to decide. `title` is a short question, `reason` explains it."""

    title: str
    reason: str


Verdict = Allow | Block | RequireApproval


@dataclass(frozen=True)
class CodeAnalysis:
    """Names found in Python code before it runs.

    Code can hide all of them: this is a hint, not a security boundary. `imports` has full dotted module names, for
    `from a import b` both `a` and `a.b`; `calls` the plain or dotted names that are called; `names` every name that is
    read. `error` says why the code could not be parsed; then all sets are empty.
    """

    imports: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class HookRequest:
    """An eval about to run, as described by its request. Nothing here comes from the session's code.

    `op` is `eval` or another queued operation: `load-file`, `reload-file`, `env`, `clone`, `checkpoint` or `branch`,
    which have no `code`; `file` is set for the first two. `ephemeral` sessions have no name. `agent` is a label,
    `identity` is authenticated by the transport. `command` is the action and the packages of `env`, such as `env add
    six`.
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
    command: str = ""
    approved: frozenset[str] = frozenset()  # hooks, as `OWNER/NAME`, that a person has approved

    @cached_property
    def analysis(self) -> CodeAnalysis:
        """Analysis of the code, computed once for all hooks. Runtimes other than Python have only `error`."""
        return analyze(self.code) if self.runtime == "python" else CodeAnalysis(error=f"{self.runtime} is not parsed")


def analyze(code: str) -> CodeAnalysis:
    """Parse Python code with this interpreter's grammar. Never raises."""
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
    """Return imports, calls and names of one AST node."""
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

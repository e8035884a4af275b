"""Completion of Python code without running, importing or asking user code."""

from __future__ import annotations

import builtins
import sys

from . import SEALED
from .paths import files, modules
from .scan import CursorContext
from .signatures import keywords
from .static_inspect import MISSING, UnreadProperty, columns, is_given, is_module, items, names, own, resolve, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Tuple

    Pairs = Iterable[Tuple[str, str]]
    Found = Tuple[int, Pairs]

__builtins__ = SEALED

MOST = 1000
_KEY_CHARS = 200
_KEYWORDS = (
    "False",
    "None",
    "True",
    "and",
    "as",
    "assert",
    "async",
    "await",
    "break",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "return",
    "try",
    "while",
    "with",
    "yield",
)
_SOFT = [
    *(["match", "case"] if sys.version_info >= (3, 10) else []),
    *(["type"] if sys.version_info >= (3, 12) else []),
]
_LITERALS = {"]": list, "}": dict, "'": str, '"': str}


def complete(namespace: Dict[str, Any], code: str, pos: int, most: int) -> Tuple[int, List[Dict[str, str]]]:
    """Return the start of the word at `pos` (in characters) and at most `most` (0..1000) completions.

    Names with fewer leading underscores come first. A position outside the text has none.
    """
    if not 0 <= pos <= len(code):
        return min(max(pos, 0), len(code)), []
    place = CursorContext(code[:pos])
    start, pairs = _Completer(namespace, place).completions()
    head = place.code[start:]
    kept: Dict[str, str] = {}
    for name, kind in pairs:
        if name.startswith(head):
            kept.setdefault(name, kind)
    ordered = sorted(kept, key=_rank)[: min(max(most, 0), MOST)]
    return start + place.skipped, [{"text": name, "type": kept[name]} for name in ordered]


def _rank(name: str) -> Tuple[int, str]:
    bare = name.lstrip("_")
    under = min(len(name) - len(bare), 2)
    return (-1 if name.endswith("=") else under), name.lower()


class _Completer:
    def __init__(self, namespace: Dict[str, Any], place: CursorContext) -> None:
        self._namespace = namespace
        self._place = place
        self._roots = (namespace, builtins.__dict__)

    def completions(self) -> Found:
        place = self._place
        if place.comment:
            return len(place.code), ()
        if place.quote:
            return self._in_string()
        imported = self._in_import()
        if imported is not None:
            return imported
        if place.code[place.start - 1 : place.start] == ".":
            return place.start, self._attributes()
        if place.word[:1].isdigit():
            return place.start, ()
        keys = [] if place.word else self._keys("")
        if keys:
            return place.start, keys
        return place.start, [*self._parameters(), *self._names()]

    def _names(self) -> Pairs:
        for name, value in [*items(self._namespace), *items(builtins.__dict__)]:
            if type(name) is str:
                yield name, word(value, False)
        if self._place.word:
            for name in (*_KEYWORDS, *_SOFT):
                yield name, "keyword"
            for name in self._place.seen:
                yield name, "statement"

    def _value(self, end: int) -> Any:
        """Return the object named by the text up to `end`, or MISSING."""
        place = self._place
        chain = place.chain(end)
        value = MISSING if chain is None else resolve(self._roots, chain[1])[0]
        return MISSING if type(value) is UnreadProperty else value

    def _attributes(self) -> Pairs:
        code, dot = self._place.code, self._place.start - 1
        last = code[dot - 1 : dot]
        if last in _LITERALS and last:
            if last in "]}" and not self._closes_literal(dot - 1):
                return ()
            return names(_LITERALS[last]())
        value = self._value(dot)
        if value is MISSING:
            return ()
        return [*names(value), *((name, "property") for name in columns(value) if name.isidentifier())]

    def _closes_literal(self, at: int) -> bool:
        """Return whether the bracket closed here began a list or dict rather than an index."""
        code, depth = self._place.code, 0
        while at >= 0:
            depth += (code[at] in ")]}") - (code[at] in "([{")
            if depth == 0:
                before = code[:at].rstrip()[-1:]
                return not (before.isalnum() or before in ("_", ")", "]", "}", "'", '"'))
            at -= 1
        return False

    def _keys(self, quoted: str) -> Pairs:
        """Return keys of the dictionary, or columns of the frame, being indexed before the cursor."""
        place = self._place
        opened = place.brackets[-1] if place.brackets else -1
        end = place.start if not quoted else place.inside - 1 - len(place.prefix())
        if opened < 0 or place.code[opened] != "[" or place.code[opened + 1 : end].strip():
            return []
        value = self._value(opened)
        if value is MISSING:
            return []
        held = [key for key, _ in items(value)] if issubclass(type(value), dict) else columns(value)
        found: List[Tuple[str, str]] = []
        for key in held:
            if type(key) is str and len(key) <= _KEY_CHARS and key.isprintable():
                if not quoted:
                    found.append((repr(key), "key"))
                elif quoted not in key and "\\" not in key:
                    found.append((key, "key"))
            elif not quoted and type(key) is int:
                found.append((repr(key), "key"))
        return found

    def _in_string(self) -> Found:
        place = self._place
        prefix = place.prefix()
        if len(place.quote or "") == 1:
            if set(prefix) <= {"u", "r"}:
                keys = self._keys(place.quote or "")
                if keys:
                    return place.inside, keys
            if "\\" not in place.word and not set(prefix) & {"f", "t"}:
                directory = place.word.rpartition("/")
                start = place.inside + len(directory[0] + directory[1])
                return start, files(directory[0] + directory[1])
        return len(place.code), ()

    def _in_import(self) -> Optional[Found]:
        """Complete `import a.b` and `from a import b`; None for anything else."""
        place = self._place
        line = place.code[place.statement :].replace("(", " ").lstrip()
        words = line.replace(",", " , ").split()
        if len(words) + (not line[-1:].strip()) < 2 or words[0] not in ("import", "from"):
            return None
        before = words if not place.word and not line.endswith(".") else words[:-1]
        chain = place.chain(place.start - 1) if place.code[place.start - 1 : place.start] == "." else None
        package = chain[1] if chain else []
        if words[0] == "from" and "import" in words[:-1] + ([] if place.word else words[-1:]):
            if before[-1] not in ("import", ","):
                return place.start, ()
            return place.start, self._members(words[1].split("."))
        if before[-1] not in ("import", "from", ","):
            return place.start, [("import", "keyword"), ("as", "keyword")]
        return place.start, self._modules(package)

    def _modules(self, package: List[str]) -> Pairs:
        loaded = sys.modules.get(".".join(package)) if package else None
        found = [*modules(package, loaded)]
        if loaded is None or not is_module(loaded):
            return found
        return [*found, *(pair for pair in names(loaded) if pair[1] == "module")]

    def _members(self, package: List[str]) -> Pairs:
        module = sys.modules.get(".".join(package))
        found = [*modules(package, module)]
        if module is not None and is_module(module):
            held = own(module)
            found += [(name, word(value, False)) for name, value in items(held) if type(name) is str]
        return found

    def _parameters(self) -> Pairs:
        """Return `name=` for the parameters of the call around the cursor."""
        place = self._place
        if not place.brackets or place.code[place.brackets[-1]] != "(":
            return ()
        before = place.code[: place.start].rstrip()[-1:]
        if before not in ("(", ","):
            return ()
        chain = place.chain(place.brackets[-1])
        if chain is None or place.code[: chain[0]].rstrip().endswith(("def", "class")):
            return ()
        path = chain[1]
        value, _ = resolve(self._roots, path)
        names_ = keywords(value) if value is not MISSING else []
        if len(path) > 1 and names_:
            holder = resolve(self._roots, path[:-1])[0]
            names_ = names_[1:] if is_given(holder, path[-1]) else names_
        return [(name + "=", "param") for name in names_]

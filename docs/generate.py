"""Fills the generated blocks of the pages in docs/ from the code: `python -m docs.generate [--check]`.

A block stands between `<!-- generated: NAME -->` and `<!-- /generated -->`. With `--check` nothing is written,
and the exit code is 1 when a page is stale, names a block that is not known, or when a block stands nowhere.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec

from docs.shell_files import SHARE, shell_files
from replbroker.core.sessions.session import CLOSED, TRANSITIONS, VACANT
from replctl.tools.catalog import ToolSet, schemas
from replwire.config import FILE_ONLY, RELOADABLE, Config, env_name
from replwire.events import EVENTS, fields_of
from replwire.ext.contracts import CONTRACTS, Contribution
from replwire.ext.contracts import fields_of as fields_of_kind
from replwire.faults import EXIT_MEANING, FAULTS, STATUSES
from replwire.limits import limit_rows
from replwire.link import _HEADER, FrameKind, Header, Outcome
from replwire.ops import OpensSession
from replwire.policy import SandboxLimits
from replwire.replies import Reply, reply_fields
from replwire.requests import describe_ops

PAGES = Path(__file__).parent
_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- /generated -->)", re.S)
_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_BYTES = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))

_OF_ALL = frozenset(fields_of_kind(Contribution))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def amount(value: int, unit: str) -> str:
    """Return a number as the config file takes it and, where that helps, in larger units."""
    for size, name in _MS if unit == "ms" else _BYTES if unit == "bytes" else ():
        if value >= size and value % size == 0:
            return f"`{value}` ({value // size} {name})"
    return f"`{value}`"


def code(words: Iterable[str]) -> str:
    """Words, each as code."""
    return " ".join(f"`{word}`" for word in words) or "-"


def limits() -> str:
    """Every limit."""
    rows = []
    for name, unit, default, low, high, why in limit_rows():
        rows.append((f"`{name}`", unit, amount(default, unit), f"{amount(low, unit)} to {amount(high, unit)}", why))
    return table(("limit", "unit", "default", "range", "what it bounds"), rows)


def config() -> str:
    """Every setting with its environment variable."""
    rows = []
    for section in msgspec.structs.fields(Config):
        if not isinstance(section.default, msgspec.Struct):
            continue
        hints = get_type_hints(type(section.default), include_extras=True)
        for field in msgspec.structs.fields(type(section.default)):
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            meaning = "see [limits](limits.md)"
            if section.name != "limits":
                meaning = hints[field.name].__metadata__[0].description
            key = f"{section.encode_name}.{field.encode_name}"
            name = "-" if key in FILE_ONLY else f"`{env_name(section.encode_name, field.encode_name)}`"
            rows.append((f"`{key}`", name, f"`{json.dumps(default)}`", "yes" if key in RELOADABLE else "", meaning))
    return table(("setting", "environment", "default", "reload", "meaning"), rows)


def faults() -> str:
    """Every error code."""
    rows = (
        (f"`{f.code}`", f.meaning, f.origin.value, "yes" if f.retry else "no", f.exit.value) for f in FAULTS.values()
    )
    return table(("code", "meaning", "who acts", "retry", "exit"), rows)


def statuses() -> str:
    """Every status word that is no fault."""
    rows = ((f"`{s.code}`", s.meaning, "yes" if s.terminal else "no") for s in STATUSES.values())
    return table(("status", "meaning", "ends the answer"), rows)


def exit_codes() -> str:
    """Exit codes of the command line."""
    return table(("code", "meaning"), ((number.value, text) for number, text in EXIT_MEANING.items()))


def ops() -> str:
    """Every operation."""
    rows = (
        (f"[`{name}`](#{name})", code(op["requires"]), code(op["optional"]), code(op["returns"]), op["doc"])
        for name, op in describe_ops().items()
    )
    return table(("op", "requires", "optional", "returns", "what it does"), rows)


def fields() -> str:
    """Every key of a reply."""
    return table(("key", "meaning"), ((f"`{key}`", text) for key, text in reply_fields().items()))


def rows() -> str:
    """Keys of the objects that stand in lists and under keys of a reply."""
    found = []
    for field in msgspec.structs.fields(Reply):
        inner = [each for each in (*get_args(field.type), field.type) for each in (*get_args(each), each)]
        inner = [each for each in inner for each in (*get_args(each), each) if isinstance(each, type)]
        for kind in dict.fromkeys(each for each in inner if issubclass(each, msgspec.Struct)):
            keys = code(each.encode_name for each in msgspec.structs.fields(kind))
            found.append((f"`{field.encode_name}`", keys, " ".join((kind.__doc__ or "").split())))
    return table(("key", "of an object", "what it is"), found)


def sandbox_overrides() -> str:
    """Return the fields of a request that tighten its session's sandbox."""
    asked, bounds_of = get_type_hints(OpensSession), get_type_hints(SandboxLimits, include_extras=True)
    found = []
    for name, meaning in (("profile", "what it may write"), ("network", "what it may reach")):
        found.append((f"`{name}`", f"{code(get_args(get_args(asked[name])[0]))}, tight first", meaning))
    for name, meaning in (
        ("allowed-hosts", "the hosts it may reach"),
        ("denied-hosts", "hosts it may not reach besides"),
    ):
        found.append((f"`{name}`", "[entries](network.md#lists)", meaning))
    for name in ("memory_bytes", "pids", "cpu_percent"):
        bound = bounds_of[name].__metadata__[0]
        found.append((f"`{name.replace('_', '-')}`", f"an integer, at least {bound.ge}", bound.description))
    return table(("field", "values", "what it bounds"), found)


def states() -> str:
    """Return the states of a session and the transitions between them, as a drawing and as a table."""
    drawing = [f"    [*] --> {VACANT}"]
    drawing += [f"    {begin} --> {end}: {move}" for (begin, move), end in TRANSITIONS.items()]
    drawing += [f"    {CLOSED} --> [*]"]
    by_move: dict[tuple[str, str], list[str]] = {}
    for (begin, move), end in TRANSITIONS.items():
        by_move.setdefault((move, end), []).append(begin)
    rows = ((f"`{move}`", code(begins), f"`{end}`") for (move, end), begins in by_move.items())
    picture = "\n".join(drawing)
    return f"```mermaid\nstateDiagram-v2\n{picture}\n```\n\n" + table(("move", "from", "to"), rows)


def link() -> str:
    """Header, kinds and outcomes of the frames between broker and worker."""
    numbers = (
        (kind.__name__, " ".join(f"`{entry.value} {entry.name}`" for entry in kind)) for kind in (FrameKind, Outcome)
    )
    rows = (("header", f"{_HEADER.size} bytes, `{_HEADER.format}`: " + code(Header._fields)), *numbers)
    return table(("part", "values"), rows)


def tools() -> str:
    """Return the default tool set."""
    rows = []
    for entry in schemas(ToolSet(), "mcp"):
        asked = entry["inputSchema"]
        names = [name if name in asked.get("required", []) else f"[{name}]" for name in asked["properties"]]
        rows.append((f"`{entry['name']}`", code(names), entry["description"]))
    return table(("tool", "arguments", "what it does"), rows)


def events() -> str:
    """Every event with what it has beside the envelope."""
    rows = []
    for name, kind in EVENTS.items():
        described = "; ".join(f"`{key}` {text}".strip() for key, text in fields_of(kind).items()) or "-"
        rows.append((f"`{name}`", "yes" if kind.canonical else "no", " ".join((kind.__doc__ or "").split()), described))
    return table(("type", "canonical", "what happened", "fields"), rows)


def contracts() -> str:
    """Return the kinds of contribution of an extension, with the fields of each kind."""
    rows = []
    for kind, contract in CONTRACTS.items():
        fields = {name: each for name, each in fields_of_kind(contract).items() if name not in _OF_ALL}
        described = "; ".join(
            f"`{name}`{'' if needed else ' (optional)'} {text}" for name, (needed, text) in fields.items()
        )
        rows.append((f"`{kind}`", contract.process, " ".join((contract.__doc__ or "").split()), described))
    return table(("kind", "used by", "what it is", "fields"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "limits": limits,
    "config": config,
    "faults": faults,
    "statuses": statuses,
    "exit-codes": exit_codes,
    "ops": ops,
    "reply-fields": fields,
    "reply-objects": rows,
    "tighter": sandbox_overrides,
    "events": events,
    "contracts": contracts,
    "session-states": states,
    "link": link,
    "tools": tools,
}


def fill(text: str) -> str:
    """Return a page with its blocks made anew. Raises KeyError for a block that is not known."""
    return _BLOCK.sub(lambda match: match[1] + BLOCKS[match[2]]() + match[3], text)


def stale_pages() -> dict[Path, str]:
    """Return the stale pages, with what they should be. Raises KeyError for an unknown block."""
    found = {}
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        filled = fill(text)
        if filled != text:
            found[page] = filled
    return found


def unused_blocks() -> set[str]:
    """Blocks that stand in no page."""
    texts = (page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    return set(BLOCKS) - {match[2] for text in texts for match in _BLOCK.finditer(text)}


def stale_shell_files() -> dict[Path, str]:
    """Return man pages and completion scripts that differ from the commands, with the right text; empty: none."""
    right = {SHARE / name: text for name, text in shell_files().items()}
    there = {path: path.read_text(encoding="utf-8") for path in SHARE.rglob("*") if path.is_file()}
    return {path: right.get(path, "") for path in {*right, *there} if right.get(path) != there.get(path)}


def main(args: Sequence[str]) -> int:
    """Write the pages, or with `--check` say which are stale."""
    if set(args) - {"--check"}:
        print("usage: python -m docs.generate [--check]", file=sys.stderr)
        return 2
    pages = stale_pages()
    for page, text in pages.items():
        if "--check" in args:
            print(f"docs/{page.name} is stale: run python -m docs.generate", file=sys.stderr)
        else:
            page.write_text(text, encoding="utf-8")
            print(f"wrote docs/{page.name}")
    for path, text in stale_shell_files().items():
        pages[path] = text
        if "--check" in args:
            print(f"{path} is stale: run python -m docs.generate", file=sys.stderr)
        elif text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            path.unlink()
    missing = unused_blocks()
    for name in sorted(missing):
        print(f"no page has the block {name}", file=sys.stderr)
    return 1 if missing or (pages and "--check" in args) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

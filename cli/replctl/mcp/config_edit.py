"""Edits of one entry in a configuration file that leave everything else unchanged. No I/O."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]


class CannotEdit(ValueError):
    """The file cannot be changed without loss; the text says why."""


def into_json(text: str, path: Sequence[str], name: str, entry: Entry) -> str:
    """Return the JSON file with `entry` under `path` and `name`; other keys of that entry are kept.

    Raises:
        CannotEdit: The file is not plain JSON; comments would be lost.
    """
    try:
        root = json.loads(text, object_pairs_hook=_reject_duplicates) if text.strip() else {}
    except ValueError as error:
        raise CannotEdit(f"it is not plain JSON ({error})") from None
    node = root
    for key in path:
        if not isinstance(node, dict):
            break
        node = node.setdefault(key, {})
    if not isinstance(node, dict) or not isinstance(node.get(name, {}), dict):
        raise CannotEdit(f"{'.'.join(path)} does not hold servers by name")
    merged = {**node.get(name, {}), **entry}
    if node.get(name) == merged:
        return text
    node[name] = merged
    return json.dumps(root, indent=_indent(text), ensure_ascii=False) + "\n"


def into_toml(text: str, table: str, name: str, entry: Entry) -> str:
    """Return the TOML file with `entry` in the table `[table.name]`, which is appended if it is missing.

    Other keys of that table, comments and all other tables are kept.

    Raises:
        CannotEdit: The file is not TOML, or has the entry in another form than a table of its own.
    """
    before = _toml(text)
    mine = before.get(table, {}).get(name) if isinstance(before.get(table, {}), dict) else None
    if isinstance(mine, dict) and {key: mine.get(key) for key in entry} == dict(entry):
        return text
    lines = text.splitlines(keepends=True)
    block = f"[{table}.{name}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in entry.items())
    header = re.compile(rf"\s*\[\s*{table}\s*\.\s*[\"']?{re.escape(name)}[\"']?\s*\]")
    begin = next((number for number, line in enumerate(lines) if header.match(line)), None)
    if begin is None:
        space = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        after = text + space + block
    else:
        end = next((n for n in range(begin + 1, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
        while end > begin + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1  # a comment above the next table belongs to it
        others = (text for keys, text in _statements(lines[begin + 1 : end]) if not keys & entry.keys())
        after = "".join([*lines[:begin], block, *others, *lines[end:]])
    _check(before, _toml(after), table, name, entry)
    return after


def _statements(lines: Sequence[str]) -> Iterator[tuple[set[str], str]]:
    """Yield the lines of a table in pieces that are valid TOML, each with its keys; a comment has none."""
    piece = ""
    for line in lines:
        piece += line
        try:
            keys = set(tomllib.loads(piece))
        except tomllib.TOMLDecodeError:  # a multi-line value
            continue
        yield keys, piece
        piece = ""
    if piece:
        raise CannotEdit("the end of the entry cannot be determined")


def _check(before: dict[str, Any], after: dict[str, Any], table: str, name: str, entry: Entry) -> None:
    """Raise CannotEdit if anything but the entry's keys has changed."""
    servers = before.get(table, {})
    mine = servers.get(name, {}) if isinstance(servers, dict) else {}
    if not isinstance(mine, dict) or after.get(table, {}).get(name) != {**mine, **entry}:
        raise CannotEdit("the edited entry is wrong")
    for each in (before, after):
        servers = each.get(table)
        if isinstance(servers, dict):
            servers.pop(name, None)
            if not servers:
                del each[table]
    if before != after:
        raise CannotEdit(f"it has {table}.{name} in a form that cannot be replaced alone")


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit(f"it is not TOML ({error})") from None


def _value(value: Any) -> str:
    """Return a string, number or list of strings as TOML; a JSON string is a TOML basic string."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def _indent(text: str) -> int | str:
    found = re.search(r"^([ \t]+)\"", text, re.M)
    if found is None:
        return 2
    return "\t" if "\t" in found[1] else len(found[1])


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found

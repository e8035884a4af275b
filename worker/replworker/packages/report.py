"""Texts about packages: what is installed, what has changed, why an installer failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from replworker.packages.changes import normalize
from replworker.packages.layers import LayerRecord

_REASON_CHARS = 700
NOTHING_CHANGED = "nothing has changed: all of it is installed\n"
_UV_MARKS = re.compile(r"^\s*(?:error:|×|╰─▶|├─▶|│)\s*", re.M)
_NPM_LINE = re.compile(r"^npm error (?:(?:E?\d{3}|notarget)\b)?[ \t]*(.*)$", re.M)
_NPM_SAYS_NOTHING = ("code ", "Log files", "Note that", "tarball, folder")
_EXTENSION = re.compile(r"\.(?:py|(?:cpython|abi|cp|pypy)[^/]*\.so|so)$")


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two generations.

    Attributes:
        added: names with versions that are new, or have another version
        removed: names with versions that are gone
        modules: top-level modules of packages that had another version before, to that name and version
    """

    added: list[str]
    removed: list[str]
    modules: dict[str, str]


def compare(old: dict[str, str], new: dict[str, str], environment: dict[str, str], target: str) -> Difference:
    """Compare what was installed with what is.

    Args:
        old: versions before, by name
        new: versions now, by name
        environment: versions of the environment, which are imported where nothing else is installed
        target: directory of the new generation
    """
    before = environment | {normalize(name): version for name, version in old.items()}
    added = {name: version for name, version in new.items() if old.get(name) != version}
    removed = {name: version for name, version in old.items() if name not in new}
    modules = {}
    for name, version in added.items():
        earlier = before.get(normalize(name))
        if earlier is not None and earlier != version:
            modules.update(dict.fromkeys(_top_level(target, name, version) or {name}, f"{name} {earlier}"))
    for name, version in removed.items():
        modules[name] = f"{name} {version}"
    return Difference(_with_versions(added), _with_versions(removed), modules)


def _with_versions(packages: dict[str, str]) -> list[str]:
    return [f"{name} {version}" for name, version in packages.items()]


def _top_level(target: str, name: str, version: str) -> set[str]:
    """Return the modules that a package installs."""
    found = set()
    with suppress(OSError):
        for line in Path(target, f"{name}-{version}.dist-info", "RECORD").read_text().splitlines():
            first = _EXTENSION.sub("", line.partition(",")[0].partition("/")[0])
            if first.isidentifier() and first != "bin":
                found.add(first)
    return found


def change_text(difference: Difference, imported: Sequence[str]) -> str:
    """Return what has changed for the session's code."""
    lines = [f"importable now: {', '.join(difference.added)}"] if difference.added else []
    lines += [f"removed: {', '.join(difference.removed)}"] if difference.removed else []
    stay = dict.fromkeys(difference.modules[module] for module in imported if module in difference.modules)
    lines += [f"{package} stays in memory until a reset" for package in stay]
    return "".join(f"{line}\n" for line in lines or [NOTHING_CHANGED.strip()])


def status_text(record: LayerRecord, environment: dict[str, str], key_of: Callable[[str], str]) -> str:
    """Return what is installed for a session, and what its environment has."""
    requested = {key_of(each): each for each in record.requirements}
    lines = [f"installed for this session: {len(record.pins)}"]
    for name, version in record.pins.items():
        asked = requested.get(key_of(name))
        lines.append(f"  {name} {version}{f'  (requested: {asked})' if asked else ''}")
    lines += [f"in its environment: {len(environment)}"]
    lines += [f"  {name} {version}" for name, version in sorted(environment.items())]
    return "\n".join(lines) + "\n"


def failure_reason(output: str, code: int) -> str:
    """Return why a package tool failed, from the end of its output."""
    if code < 0:
        return f"the installer was killed by signal {-code}; nothing has changed"
    if npm := _NPM_LINE.findall(output):
        output = "; ".join(line for line in npm if line and not line.startswith(_NPM_SAYS_NOTHING))
    at = max((output.rfind(mark) for mark in ("No solution found", "error:", "ERROR:")), default=-1)
    text = " ".join(_UV_MARKS.sub("", output[max(at, 0) :]).split())
    shown = text if len(text) <= _REASON_CHARS else text[:_REASON_CHARS] + "…"
    return f"nothing has changed: {shown or f'the installer exited with code {code}'}"

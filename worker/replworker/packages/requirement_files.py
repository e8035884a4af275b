"""Requirements of a project: the packages that its lock, requirements or project file names.

The session's interpreter reads the file, with the session's rights; only its text is parsed here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from typing import Any

from replwire.packages import InvalidPackage, parse_python_package

MAX_REQUIREMENTS = 1000


class InvalidRequirementFile(ValueError):
    """The file names something other than packages with versions. The message says where."""


def parse_requirements(name: str, text: str, python_version: str) -> list[str]:
    """Return the requirements of a file that apply to this version of Python.

    Args:
        name: name of the file, which decides how it is read
        text: its text
        python_version: version of the session's Python

    Raises:
        InvalidRequirementFile: it has options, URLs or paths, or cannot be parsed
    """
    entries = _toml_entries(name, text) if name.endswith(".toml") else _lines(text)
    found = []
    for where, entry in entries:
        try:
            requirement = _without_marker(entry, python_version)
            if requirement is not None:
                found.append(str(parse_python_package(requirement)))
        except InvalidPackage as error:
            raise InvalidRequirementFile(f"{os.path.basename(name)}, {where}: {error}") from None
    if len(found) > MAX_REQUIREMENTS:
        raise InvalidRequirementFile(f"{os.path.basename(name)} names more than {MAX_REQUIREMENTS} packages")
    return found


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition(" #")[0].strip()
        if entry and not entry.startswith("#"):
            yield f"line {number}", entry


def _toml_entries(name: str, text: str) -> Iterator[tuple[str, str]]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequirementFile(f"{os.path.basename(name)}: {error}") from None
    if "lock-version" in table:
        yield from ((f"package {entry.get('name')}", _locked(entry)) for entry in _tables(table.get("packages")))
        return
    project = table.get("project")
    dependencies = project.get("dependencies") if isinstance(project, dict) else None
    for entry in dependencies if isinstance(dependencies, list) else []:
        yield "project.dependencies", str(entry)


def _locked(entry: dict[str, Any]) -> str:
    version = f"=={entry['version']}" if "version" in entry else ""
    marker = f"; {entry['marker']}" if "marker" in entry else ""
    return f"{entry.get('name')}{version}{marker}"


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _without_marker(text: str, python_version: str) -> str | None:
    """Return a requirement without its marker, or None if that excludes this Python."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        found = Requirement(text)
    except InvalidRequirement:
        return text  # refused by its parser
    if found.marker is None:
        return text
    short = ".".join(python_version.split(".")[:2])
    applies = found.marker.evaluate({"python_version": short, "python_full_version": python_version})
    found.marker = None
    return str(found) if applies else None

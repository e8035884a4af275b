"""Changes of a session's packages: what an action installs, as a pure function of what there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from replwire.packages import parse_python_package
from replworker.packages.layers import LayerRecord

_SEPARATORS = re.compile(r"[-_.]+")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"\d+(\.\d+)*[A-Za-z0-9.+]*")


class PackageRefused(ValueError):
    """The action cannot be performed, and has changed nothing. The message says why."""


@dataclass(frozen=True, slots=True)
class PackageChange:
    """The work of an installer that makes the next generation.

    Attributes:
        requirements: requested packages of the next generation, by normalized name
        install: packages to install, with versions
        rebuild: begin with an empty directory
        upgrades: installed packages that may be replaced by newer versions
        keep: versions to keep, by name
    """

    requirements: dict[str, str]
    install: list[str]
    rebuild: bool = False
    upgrades: list[str] = field(default_factory=list)
    keep: dict[str, str] = field(default_factory=dict)


def package_key(requirement: str) -> str:
    """Return the normalized name in a requirement (PEP 503)."""
    return normalize(parse_python_package(requirement).name)


def normalize(name: str) -> str:
    """Return a name as package indexes compare it (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def plan_change(
    action: str,
    packages: Sequence[str],
    record: LayerRecord,
    listed: Sequence[str] | None,
    key_of: Callable[[str], str] = package_key,
) -> PackageChange:
    """Plan an action.

    Args:
        action: `add`, `rm`, `update`, `instantiate` or `resolve`
        packages: names, for all but `rm` and `update` with versions
        record: what is installed
        listed: what a lock or project file lists, for `instantiate`; None: there is none
        key_of: returns the name in a requirement, as the index compares it

    Raises:
        PackageRefused: it cannot be performed
    """
    wanted = {key_of(each): each for each in record.requirements}
    if action == "add":
        return PackageChange(wanted | {key_of(each): each for each in packages}, list(packages))
    if action == "rm":
        _check_requested(packages, wanted, key_of)
        left = {key: each for key, each in wanted.items() if key not in {key_of(name) for name in packages}}
        return PackageChange(left, list(left.values()), rebuild=True, keep=record.pins)
    if action == "update":
        _check_requested(packages, wanted, key_of)
        names = [key_of(name) for name in packages] or list(record.pins)
        return PackageChange(wanted, list(wanted.values()), upgrades=names)
    if action == "resolve":
        wanted |= {key_of(each): each for each in packages}
        return PackageChange(wanted, list(wanted.values()), rebuild=True)
    if listed is not None:
        return PackageChange(wanted | {key_of(each): each for each in listed}, list(listed))
    if not wanted:
        raise PackageRefused("there is nothing to instantiate: no lock or project file here, and no requested packages")
    return PackageChange(wanted, list(wanted.values()), rebuild=True, keep=record.pins)


def leave_out_present(
    change: PackageChange, record: LayerRecord, environment: dict[str, str]
) -> tuple[PackageChange, list[str]]:
    """Return a change without the packages that are there in a version that fits, and these with their versions."""
    installed = {normalize(name): version for name, version in record.pins.items()}
    requirements, install, present = dict(change.requirements), [], []
    for text in change.install:
        wanted = parse_python_package(text)
        key = normalize(wanted.name)
        version = installed.get(key) or environment.get(key)
        if version is None or wanted.extras or not wanted.specifier.contains(version, prereleases=True):
            install.append(text)
            continue
        present.append(f"{key} {version}")
        if key not in installed:
            del requirements[key]
    return replace(change, requirements=requirements, install=install), present


def _check_requested(packages: Sequence[str], wanted: dict[str, str], key_of: Callable[[str], str]) -> None:
    unknown = [name for name in packages if key_of(name) not in wanted]
    if unknown:
        there = f"; requested are {', '.join(wanted.values())}" if wanted else ""
        raise PackageRefused(f"not among the packages requested for this session: {', '.join(unknown)}{there}")


def environment_packages(listed: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return an environment's packages by normalized name; entries that are no names or versions are left out."""
    return {
        normalize(name): version
        for name, version in listed
        if _NAME.fullmatch(name) and _VERSION.fullmatch(version) and len(name) + len(version) < 200
    }


def excluded_packages(environment: dict[str, str], change: PackageChange, missing: Iterable[str] = ()) -> list[str]:
    """Return the packages of the environment that need not be installed: all but requested and `missing` ones."""
    return sorted(environment.keys() - change.requirements.keys() - set(missing))


def find_missing(target: str, environment: dict[str, str], python_version: str) -> set[str]:
    """Return the packages of the environment that do not fit the installed ones: by version, or for their extras.

    Args:
        target: directory of the installed packages
        environment: versions of the environment's packages, by normalized name
        python_version: version of the session's Python, for markers
    """
    missing = set()
    for requirement in _dependencies(target):
        name = normalize(requirement.name)
        if name not in environment:
            continue
        short = ".".join(python_version.split(".")[:2])
        marks = {"python_version": short, "python_full_version": python_version, "extra": ""}
        if requirement.marker is not None and not requirement.marker.evaluate(marks):
            continue
        if requirement.extras or not requirement.specifier.contains(environment[name], prereleases=True):
            missing.add(name)
    return missing


def _dependencies(target: str) -> Iterator[Requirement]:
    """Yield what the installed packages require; entries that cannot be parsed are left out, as tools do."""
    for metadata in sorted(Path(target).glob("*.dist-info/METADATA")):
        for line in metadata.read_text(errors="replace").partition("\n\n")[0].splitlines():
            if line.startswith("Requires-Dist:"):
                with suppress(InvalidRequirement):
                    yield Requirement(line.partition(":")[2].strip())

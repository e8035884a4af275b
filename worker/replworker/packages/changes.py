"""Changes of a session's packages: what an action installs, as a pure function of what there is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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


def plan_change(
    action: str, packages: Sequence[str], record: LayerRecord, listed: Sequence[str] | None
) -> PackageChange:
    """Plan an action.

    Args:
        action: `add`, `rm`, `update`, `instantiate` or `resolve`
        packages: names, for all but `rm` and `update` with versions
        record: what is installed
        listed: what a lock or project file lists, for `instantiate`; None: there is none

    Raises:
        PackageRefused: it cannot be performed
    """
    wanted = {package_key(each): each for each in record.requirements}
    if action == "add":
        return PackageChange(wanted | {package_key(each): each for each in packages}, list(packages))
    if action == "rm":
        _check_requested(packages, wanted)
        left = {key: each for key, each in wanted.items() if key not in {package_key(name) for name in packages}}
        return PackageChange(left, list(left.values()), rebuild=True, keep=record.pins)
    if action == "update":
        _check_requested(packages, wanted)
        names = [package_key(name) for name in packages] or list(record.pins)
        return PackageChange(wanted, list(wanted.values()), upgrades=names)
    if action == "resolve":
        wanted |= {package_key(each): each for each in packages}
        return PackageChange(wanted, list(wanted.values()), rebuild=True)
    if listed is not None:
        return PackageChange(wanted | {package_key(each): each for each in listed}, list(listed))
    if not wanted:
        raise PackageRefused("there is nothing to instantiate: no lock or project file here, and no requested packages")
    return PackageChange(wanted, list(wanted.values()), rebuild=True, keep=record.pins)


def _check_requested(packages: Sequence[str], wanted: dict[str, str]) -> None:
    unknown = [name for name in packages if package_key(name) not in wanted]
    if unknown:
        there = f"; requested are {', '.join(wanted.values())}" if wanted else ""
        raise PackageRefused(f"not among the packages requested for this session: {', '.join(unknown)}{there}")


def package_key(requirement: str) -> str:
    """Return the normalized name in a requirement (PEP 503)."""
    return normalize(parse_python_package(requirement).name)


def normalize(name: str) -> str:
    """Return a name as package indexes compare it (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def environment_packages(listed: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return an environment's packages by normalized name; entries that are no names or versions are left out."""
    return {
        normalize(name): version
        for name, version in listed
        if _NAME.fullmatch(name) and _VERSION.fullmatch(version) and len(name) + len(version) < 200
    }


def planted_packages(environment: dict[str, str], change: PackageChange) -> list[tuple[str, str]]:
    """Return the packages of the environment that the tool is to find: all but those requested with extras.

    What stands for a package of the environment does not know its extras.
    """
    with_extras = {key for key, each in change.requirements.items() if parse_python_package(each).extras}
    return [(name.replace("-", "_"), version) for name, version in environment.items() if name not in with_extras]

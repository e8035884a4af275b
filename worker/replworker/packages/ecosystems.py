"""Differences of packages of Python and of Node: names, tools, files of projects, and what is installed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from replwire.ops import Env
from replwire.packages import InstallerSettings, InvalidPackage, parse_node_package
from replworker.packages import changes
from replworker.packages.changes import PackageChange, PackageRefused
from replworker.packages.index_settings import read_python_settings
from replworker.packages.layers import LayerRecord, installed_versions
from replworker.packages.npm import NpmTool, find_npm, read_npm_settings
from replworker.packages.requirement_files import MAX_REQUIREMENTS, InvalidRequirementFile, parse_requirements
from replworker.packages.tools import PackageTool, find_python_tool

_LOCK = "package-lock.json"
_MODULES = "node_modules/"


class Ecosystem(Protocol):
    """Packages of one language."""

    def key(self, requirement: str) -> str:
        """Return the name in a requirement, as the index compares it."""

    def parse_file(self, name: str, text: str) -> list[str]:
        """Return the packages that a file of a project lists.

        Raises:
            InvalidRequirementFile: it lists something else, or cannot be parsed
        """

    def plan(self, request: Env, record: LayerRecord, listed: Sequence[str] | None) -> PackageChange:
        """Plan an action.

        Raises:
            PackageRefused: it cannot be performed
        """

    def leave_out_present(
        self, change: PackageChange, record: LayerRecord, environment: dict[str, str], /
    ) -> tuple[PackageChange, list[str]]:
        """Return a change without the packages that are there in a version that fits, and these with their versions."""

    def find_tool(self, settings: InstallerSettings) -> PackageTool:
        """Return the tool, with the broker user's configuration.

        Raises:
            PackageRefused: there is none
            ValueError: a configuration file cannot be parsed
        """

    def find_missing(self, target: str, environment: dict[str, str], /) -> set[str]:
        """Return the packages of the environment that do not fit those that are installed."""

    def installed(self, target: str) -> dict[str, str]:
        """Return the packages installed in a directory with their versions, sorted by name."""


class PythonEcosystem:
    """Packages of an index of Python, for a version of Python."""

    def __init__(self, version: str) -> None:
        self._version = version

    def key(self, requirement: str) -> str:
        """Return the normalized name."""
        return changes.package_key(requirement)

    def parse_file(self, name: str, text: str) -> list[str]:
        """Return the requirements that apply to this version."""
        return parse_requirements(name, text, self._version)

    def plan(self, request: Env, record: LayerRecord, listed: Sequence[str] | None) -> PackageChange:
        """Plan an action."""
        return changes.plan_change(request.action, request.packages, record, listed, self.key)

    def leave_out_present(
        self, change: PackageChange, record: LayerRecord, environment: dict[str, str]
    ) -> tuple[PackageChange, list[str]]:
        """Compare versions with what is installed and with the environment."""
        return changes.leave_out_present(change, record, environment)

    def find_tool(self, settings: InstallerSettings) -> PackageTool:
        """Return uv, or pip."""
        return find_python_tool(read_python_settings(settings))

    def find_missing(self, target: str, environment: dict[str, str]) -> set[str]:
        """Compare what the installed packages require with the environment's versions."""
        return changes.find_missing(target, environment, self._version)

    def installed(self, target: str) -> dict[str, str]:
        """Look at the metadata of distributions."""
        return installed_versions(target)


class NodeEcosystem:
    """Packages of an npm registry. npm keeps versions by its lock file, which every generation has."""

    def __init__(self, node: str) -> None:
        self._node = node

    def key(self, requirement: str) -> str:
        """Return the name."""
        return parse_node_package(requirement).name

    def parse_file(self, name: str, text: str) -> list[str]:
        """Return the dependencies that a `package.json` lists."""
        try:
            listed = json.loads(text).get("dependencies", {})
            found = [f"{package}@{version or '*'}" for package, version in dict(listed).items()]
            names = [str(parse_node_package(each)) for each in found]
        except InvalidPackage as error:
            raise InvalidRequirementFile(f"{os.path.basename(name)}, dependencies: {error}") from None
        except (ValueError, TypeError, AttributeError):
            raise InvalidRequirementFile(f"{os.path.basename(name)} is no package.json") from None
        if len(names) > MAX_REQUIREMENTS:
            raise InvalidRequirementFile(f"{os.path.basename(name)} names more than {MAX_REQUIREMENTS} packages")
        return names

    def plan(self, request: Env, record: LayerRecord, listed: Sequence[str] | None) -> PackageChange:
        """Plan an action. npm removes what nothing requires any more, so only `resolve` begins anew."""
        change = changes.plan_change(request.action, request.packages, record, listed, self.key)
        upgrades = change.upgrades if request.packages or not change.upgrades else [*change.requirements]
        wanted = list(change.requirements.values())
        return PackageChange(change.requirements, wanted, request.action == "resolve" or not wanted, upgrades)

    def leave_out_present(
        self, change: PackageChange, _record: LayerRecord, _environment: dict[str, str], /
    ) -> tuple[PackageChange, list[str]]:
        """Leave that to npm, which compares ranges."""
        return change, []

    def find_tool(self, settings: InstallerSettings) -> PackageTool:
        """Return npm."""
        program = find_npm()
        if program is None:
            raise PackageRefused("there is no npm on the PATH of the broker")
        return NpmTool(self._node, program, read_npm_settings(settings))

    def find_missing(self, _target: str, _environment: dict[str, str], /) -> set[str]:
        """Return nothing: npm sees all there is."""
        return set()

    def installed(self, target: str) -> dict[str, str]:
        """Look at npm's lock file, for what code can import by name."""
        try:
            packages: Mapping[str, Mapping[str, str]] = json.loads(Path(target, _LOCK).read_bytes())["packages"]
        except FileNotFoundError:
            return {}
        found = {path.removeprefix(_MODULES): each for path, each in packages.items() if path.startswith(_MODULES)}
        return {name: str(each.get("version", "?")) for name, each in sorted(found.items()) if _MODULES not in name}

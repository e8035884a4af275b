"""Package tools and their command lines: uv, or pip where there is no uv."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from replworker.packages.index_settings import IndexSettings

_UV_ENV = {
    "UV_NO_PROGRESS": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_HTTP_RETRIES": "1",  # more only make a lasting failure slow
}
_PIP_ENV = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "1", "PIP_PROGRESS_BAR": "off"}


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Packages to install, with versions, and installed ones that newer ones may replace.

    Attributes:
        target: directory to install into
        packages: names with versions
        python_version: version of the session's Python, where that is not the broker's
        upgrades: names of packages to upgrade
        constraints: path of a file with versions to keep, or None
        excludes: path of a file with packages that the environment has, or None
        builds: packages may be built
        dry_run: only say what would be done
    """

    target: str
    packages: Sequence[str]
    python_version: str | None = None
    upgrades: Sequence[str] = ()
    constraints: str | None = None
    excludes: str | None = None
    builds: bool = False
    dry_run: bool = False


class PackageTool(Protocol):
    """A package tool."""

    @property
    def program(self) -> str:
        """The program."""

    @property
    def index(self) -> IndexSettings:
        """The configuration of the index."""

    @property
    def incremental(self) -> bool:
        """True if it keeps what is installed in the target."""

    def paths(self) -> tuple[str, ...]:
        """Return paths that it reads beside its own installation and its index."""

    def environment(self, cache: str, job: str) -> dict[str, str]:
        """Return its variables, for its cache and the directory of the job."""

    def prepare(self, target: str, requirements: Sequence[str]) -> None:
        """Prepare the target for what it shall have.

        Raises:
            OSError: it cannot be written
        """

    def install(self, wanted: InstallRequest) -> list[str]:
        """Return the command that installs packages."""


@dataclass(frozen=True, slots=True)
class UvTool:
    """uv: keeps what is installed in the target where it fits, and leaves out what the environment has."""

    program: str
    index: IndexSettings
    incremental = True

    def paths(self) -> tuple[str, ...]:
        """Return paths that it reads beside its own installation and its index."""
        return sys.prefix, sys.base_prefix

    def environment(self, cache: str, job: str) -> dict[str, str]:
        """Return its variables, for its cache and the directory of the job."""
        own = {"UV_CONFIG_FILE": f"{job}/uv.toml"} if "uv.toml" in self.index.files else {"UV_NO_CONFIG": "1"}
        netrc = {"NETRC": f"{job}/netrc"} if "netrc" in self.index.files else {}
        return {**_UV_ENV, "UV_CACHE_DIR": f"{cache}/uv", **own, **netrc}

    def prepare(self, target: str, requirements: Sequence[str]) -> None:
        """Do nothing: the command names the packages."""

    def install(self, wanted: InstallRequest) -> list[str]:
        """Return the command that installs packages."""
        argv = [self.program, "pip", "install", "--python", sys.executable, "--target", wanted.target]
        argv += [] if wanted.builds else ["--no-build"]
        argv += ["--python-version", wanted.python_version] if wanted.python_version else []
        argv += [word for name in wanted.upgrades for word in ("--upgrade-package", name)]
        argv += ["--constraint", wanted.constraints] if wanted.constraints else []
        argv += ["--excludes", wanted.excludes] if wanted.excludes else []
        argv += ["--dry-run"] if wanted.dry_run else []
        return [*argv, "--", *wanted.packages]


@dataclass(frozen=True, slots=True)
class PipTool:
    """pip of the broker's Python: installs everything into an empty target."""

    program: str
    index: IndexSettings
    incremental = False

    def paths(self) -> tuple[str, ...]:
        """Return paths that it reads beside its own installation and its index."""
        return sys.prefix, sys.base_prefix

    def environment(self, cache: str, job: str) -> dict[str, str]:
        """Return its variables, for its cache and the directory of the job."""
        netrc = {"NETRC": f"{job}/netrc"} if "netrc" in self.index.files else {}
        return {**_PIP_ENV, "PIP_CACHE_DIR": f"{cache}/pip", **netrc}

    def prepare(self, target: str, requirements: Sequence[str]) -> None:
        """Do nothing: the command names the packages."""

    def install(self, wanted: InstallRequest) -> list[str]:
        """Return the command that installs packages."""
        argv = [self.program, "-m", "pip", "install", "--target", wanted.target]
        argv += [] if wanted.builds else ["--only-binary", ":all:"]
        argv += ["--python-version", wanted.python_version] if wanted.python_version else []
        argv += ["--constraint", wanted.constraints] if wanted.constraints else []
        argv += ["--dry-run"] if wanted.dry_run else []
        return [*argv, "--", *wanted.packages]


def find_python_tool(index: IndexSettings) -> UvTool | PipTool:
    """Return uv, or pip where there is no uv."""
    program = find_uv()
    return PipTool(sys.executable, index) if program is None else UvTool(program, index)


def find_uv() -> str | None:
    """Return the program of uv: the one installed with replctl, else the one on the PATH, if any."""
    try:
        from uv import find_uv_bin
    except ImportError:
        return shutil.which("uv")
    try:
        return os.fspath(find_uv_bin())
    except FileNotFoundError:
        return shutil.which("uv")

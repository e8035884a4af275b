"""Package names in requests, and settings of the package installer.

A name may have extras and version specifiers (PEP 508, PEP 440). Everything else that package tools accept in its place
is refused: options, URLs, paths, version control and markers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_SHOWN = 100
_MAX_NODE_NAME = 214
# Without `:` and `/` a version is no URL, path, alias or repository.
_NODE_PACKAGE = re.compile(
    r"(?P<name>(?:@[A-Za-z0-9_~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9_~][A-Za-z0-9._~-]*)"
    r"(?:@(?P<version>[A-Za-z0-9^~<>=*][A-Za-z0-9.^~<>=*+| -]{0,99}))?"
)
INSTALLER_VARIABLES = re.compile(
    r"(PIP|UV)_\w+|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NODE_EXTRA_CA_CERTS"
    r"|(HTTPS?|ALL|NO)_PROXY|NETRC|npm_config_\w+|NPM_TOKEN|NODE_AUTH_TOKEN",
    re.IGNORECASE,
)


class InstallerSettings(NamedTuple):
    """Settings of package installers.

    Attributes:
        env: the broker's own environment variables that package tools read, such as `PIP_INDEX_URL`
        home: home directory with their configuration files
        builds: packages may be built, which runs their code in the installer's sandbox
        cache_bytes: size of the installers' common cache at which it is emptied
    """

    env: dict[str, str]
    home: str
    builds: bool
    cache_bytes: int


NO_INSTALLER = InstallerSettings({}, "/", builds=False, cache_bytes=0)


class InvalidPackage(ValueError):
    """A text that is no package name with an optional version. The message says so."""


def parse_python_package(text: str) -> Requirement:
    """Parse a name with optional extras and version specifiers.

    Raises:
        InvalidPackage: the text is anything else
    """
    from packaging.requirements import InvalidRequirement, Requirement  # slow to import

    try:
        found = Requirement(text) if text.isascii() else None
    except InvalidRequirement:
        found = None
    if found is None or found.url or found.marker or any(each.operator == "===" for each in found.specifier):
        raise InvalidPackage(_refusal(text))
    return found


class NodePackage(NamedTuple):
    """A package of an npm registry: its name, and a version, range or tag; `*` for any version."""

    name: str
    version: str

    def __str__(self) -> str:
        return self.name if self.version == "*" else f"{self.name}@{self.version}"


def parse_node_package(text: str) -> NodePackage:
    """Parse a name, perhaps with a scope, and an optional `@` with a version, range or tag.

    Raises:
        InvalidPackage: the text is anything else
    """
    found = _NODE_PACKAGE.fullmatch(text)
    if found is None or len(found["name"]) > _MAX_NODE_NAME:
        raise InvalidPackage(_refusal(text, "lodash or @types/node@^20"))
    return NodePackage(found["name"], found["version"] or "*")


def _refusal(text: str, examples: str = "numpy or pandas>=2.2") -> str:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return (
        f"{shown!r} is no package name with an optional version, such as {examples}; "
        "options, URLs and paths are refused"
    )

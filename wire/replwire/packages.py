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
INSTALLER_VARIABLES = re.compile(
    r"(PIP|UV)_\w+|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NODE_EXTRA_CA_CERTS"
    r"|(HTTPS?|ALL|NO)_PROXY|NETRC",
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


def _refusal(text: str) -> str:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return (
        f"{shown!r} is no package name with an optional version, such as numpy or pandas>=2.2; "
        "options, URLs and paths are refused"
    )

"""`[[secrets]]` in the config: values that sessions use without having them."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from replwire.documented import documented
from replwire.network import HostPattern, normalize_host, parse_patterns

_VariableName = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
_RESERVED = re.compile(r"(PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|LD_.*|PYTHON.*|NODE_.*|BASH_.*|SSL_CERT_.*|XDG_.*)")


class SecretEntry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """A secret. Exactly one of `command`, `file` and `env` says where its value is.

    Raises:
        ValueError: none or several of them are given, or another field is invalid
    """

    name: Annotated[_VariableName, documented("variable of sessions that has a placeholder for it")]
    hosts: Annotated[
        list[str], documented("hosts that get the value, as in `sandbox.allowed-hosts`, at port 443 unless named")
    ]
    command: Annotated[list[str], documented("program and arguments that print it, without a shell")] = []
    file: Annotated[str, documented("absolute path of a file that contains it")] = ""
    env: Annotated[str, documented("environment variable of the broker that has it")] = ""
    identities: Annotated[
        list[str], documented("owners of sessions that may use it; empty: the broker's own user alone")
    ] = []

    def __post_init__(self) -> None:
        if sum(map(bool, (self.command, self.file, self.env))) != 1:
            raise ValueError(f"{self.name}: exactly one of command, file and env says where its value is")
        if _RESERVED.fullmatch(self.name):
            raise ValueError(f"{self.name}: sessions need this variable for something else")
        if not self.hosts:
            raise ValueError(f"{self.name}: hosts: no host would get it")
        if self.file and not self.file.startswith("/"):
            raise ValueError(f"{self.name}: file: {self.file!r} is not an absolute path")
        self.patterns()

    def patterns(self) -> tuple[HostPattern, ...]:
        """Return the parsed hosts. Without a port they mean port 443 alone."""
        found = []
        for entry in self.hosts:
            if normalize_host(entry.partition(":")[0].removeprefix("*.")) is None:
                raise ValueError(f"{self.name}: hosts: {entry!r} is not NAME or *.NAME, with or without :PORT")
            (pattern,) = parse_patterns([entry])
            found.append(pattern if ":" in entry else pattern._replace(ports=frozenset({443})))
        return tuple(found)

    def is_for(self, name: str, port: int) -> bool:
        """Return whether a host gets the value."""
        return any(port in pattern.ports and pattern.matches(name) for pattern in self.patterns())


class Placeholder(msgspec.Struct, frozen=True):
    """A secret in one session: the name of the secret, and the text that the session has in place of its value."""

    name: str
    text: str


def check_secrets(secrets: list[SecretEntry]) -> None:
    """Check that no name is listed twice.

    Raises:
        ValueError: one is
    """
    names = [each.name for each in secrets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"secrets: {name} is listed twice")

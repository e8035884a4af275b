"""Checks of the network by list: what sessions may reach, and whether secrets for it can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from replctl.doctor.finding import Finding, ok, warn
from replwire.config import SandboxSection
from replwire.secret_entries import SecretEntry
from replworker.egress.secret_values import read_values

_SHOWN = 3


def network(section: SandboxSection, secrets: Sequence[SecretEntry], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield findings on lists and secrets. Secrets are read as the egress proxy does, and forgotten."""
    yield _check_lists(section)
    if secrets and section.network != "list":
        names = ", ".join(each.name for each in secrets)
        yield warn("secrets", names, "they have no effect without a list of hosts", 'set sandbox.network = "list"')
        return
    _, problems = read_values(secrets, environ)
    for name, problem in problems.items():
        yield warn(
            f"secret {name}", problem, "connections to its hosts are refused", "correct its entry in [[secrets]]"
        )
    readable = [each.name for each in secrets if each.name not in problems]
    if readable:
        yield ok("secrets", f"{', '.join(readable)}: readable")


def _check_lists(section: SandboxSection) -> Finding:
    if section.network != "list":
        return ok("network", section.network)
    if not section.allowed_hosts:
        cause = "sessions reach nothing"
        return warn("network", "list, with no hosts", cause, "name hosts in sandbox.allowed-hosts")
    more = len(section.allowed_hosts) - _SHOWN
    shown = ", ".join(section.allowed_hosts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return ok("network", f"list: {shown}")

"""Secrets as the proxy has them: all values, and what one session may use of them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from replwire.secret_entries import Placeholder, SecretEntry
from replworker.egress.authority import SessionAuthority
from replworker.egress.secret_values import read_values


class SecretStore:
    """The secrets of the config with their values. Made while this process may still read files.

    Args:
        secrets: The entries.
        environ: The broker's environment.
    """

    def __init__(self, secrets: Sequence[SecretEntry], environ: Mapping[str, str]) -> None:
        self.entries = {entry.name: entry for entry in secrets}
        self.values, self.problems = read_values(secrets, environ)
        self.trust = ssl.create_default_context()
        self.trust.set_alpn_protocols(["http/1.1"])
        self.create_authority().context_for("localhost")  # loads what signing needs, while files can be read

    def create_authority(self) -> SessionAuthority:
        """Return a new certificate authority."""
        return SessionAuthority()

    def for_session(self, authority: str, placeholders: Sequence[Placeholder]) -> SessionSecrets:
        """Return what a session may use.

        Args:
            authority: Key and certificate of the session's authority.
            placeholders: The secrets that it may use.
        """
        return SessionSecrets(self, authority, placeholders)


class HostSecrets(NamedTuple):
    """Secrets of a session for one host: values by placeholder, and why one has no value."""

    values: dict[bytes, bytes]
    problem: str | None


class SessionSecrets:
    """Secrets of one session.

    Args:
        store: All secrets.
        authority: Key and certificate of the session's authority.
        placeholders: The secrets that it may use.
    """

    def __init__(self, store: SecretStore, authority: str, placeholders: Sequence[Placeholder]) -> None:
        self._store = store
        self._placeholders = [each for each in placeholders if each.name in store.entries]
        self._authority = SessionAuthority(authority)
        self.trust = store.trust

    def for_host(self, name: str, port: int) -> HostSecrets | None:
        """Return the secrets for a host, or None if there is none for it."""
        mine = [each for each in self._placeholders if self._store.entries[each.name].is_for(name, port)]
        if not mine:
            return None
        problems = [
            f"{each.name}: {self._store.problems[each.name]}" for each in mine if each.name in self._store.problems
        ]
        values = {each.text.encode(): self._store.values[each.name] for each in mine if each.name in self._store.values}
        return HostSecrets(values, f"the secret {problems[0]}" if problems else None)

    def context_for(self, name: str) -> ssl.SSLContext:
        """Return a server's context with a certificate for a host."""
        return self._authority.context_for(name)

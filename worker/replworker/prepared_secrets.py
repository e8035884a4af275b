"""Secrets of a session in its worker: placeholders and a certificate authority, and no value."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from replwire.secret_entries import Placeholder, SecretEntry
from replworker.egress.client import fetch_authority

BUNDLE = "/run/replctl/ca.pem"  # inside the sandbox
# Variables by which programs find certificates: OpenSSL, requests, curl, git, Node, pip, npm.
_TRUST = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "npm_config_cafile",
)
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class PreparedSecrets(NamedTuple):
    """Secrets of one session.

    Attributes:
        entries: The secrets, without values.
        authority: Key and certificate of the session's certificate authority.
        placeholders: What the session has instead of values.
        env: Variables of the session.
        files: Files of its sandbox.
    """

    entries: tuple[SecretEntry, ...]
    authority: str
    placeholders: tuple[Placeholder, ...]
    env: dict[str, str]
    files: dict[str, str]

    def usable_by(self, identity: str) -> list[Placeholder]:
        """Return the placeholders of secrets that an owner may use."""
        own = [f"uid:{os.getuid()}"]
        names = {entry.name for entry in self.entries if identity in (entry.identities or own)}
        return [each for each in self.placeholders if each.name in names]


def prepare_secrets(entries: Sequence[SecretEntry], egress: str) -> PreparedSecrets:
    """Prepare the secrets of a session whose interpreter is about to start.

    Args:
        entries: The secrets of the config.
        egress: Socket of the egress proxy, which makes the certificate authority.

    Raises:
        OSError: the proxy makes none
    """
    made = fetch_authority(egress)
    placeholders = tuple(Placeholder(each.name, f"replctl-{each.name}-{secrets.token_hex(12)}") for each in entries)
    system = next((Path(path).read_text() for path in _SYSTEM_BUNDLES if os.path.exists(path)), "")
    variables = {each.name: each.text for each in placeholders} | dict.fromkeys(_TRUST, BUNDLE)
    return PreparedSecrets(tuple(entries), made.authority, placeholders, variables, {BUNDLE: system + made.certificate})

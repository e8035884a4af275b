"""`[[identities]]` in the config: host user, directories and quotas of an identity.

Only in the config file. An identity that is not listed is the host user reported by the kernel, or nobody on this
machine.
"""

from __future__ import annotations

import os.path
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from replwire.documented import documented
from replwire.identifiers import MAX_NAME_BYTES

ANONYMOUS = "anyone"  # the identity of a client that no transport vouches for
_UID = re.compile(r"uid:(0|[1-9][0-9]{0,9})\Z")
_ROOT = "uid:0"
MAX_WORKSPACES = 64

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES, pattern="^(uid:[0-9]+|[a-zA-Z0-9_-]+)$")]
Directory = Annotated[str, Meta(min_length=1, max_length=4095)]


QuotaValue = Annotated[int, Meta(ge=0, le=1_000_000)] | None


class Quota(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Quotas of one identity for shared resources.

    Each field overrides the limit of the same name; a value above the limit means all of it.
    """

    max_connections: QuotaValue = None
    max_sessions: QuotaValue = None
    max_concurrent_evals: QuotaValue = None
    max_queued_evals: QuotaValue = None
    max_waiting_reads_total: QuotaValue = None
    max_subscriptions_total: QuotaValue = None
    max_idempotency_keys: QuotaValue = None

    def set_quotas(self) -> dict[str, int]:
        """Return the quotas that are set, by limit name."""
        pairs = ((each.encode_name, getattr(self, each.name)) for each in msgspec.structs.fields(self))
        return {name: value for name, value in pairs if value is not None}


class Identity(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Mapping of one identity to this machine."""

    name: Annotated[Name, documented("`uid:N` of a local user, or the name of a key or token")]
    user: Annotated[
        str | None,
        documented("host user whose rights a key or token has on a root broker; `uid:N` has its own"),
    ] = None
    workspaces: Annotated[
        list[Directory],
        documented("directories its sessions may use; empty: as in `sandbox.workspaces`", max_length=MAX_WORKSPACES),
    ] = []
    quotas: Annotated[Quota, documented("its quotas, by names of limits; others are as for everybody")] = Quota()


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Owner of a session, with whose rights client-supplied paths are opened.

    `groups` are those of the requesting process, primary group first; empty if the kernel does not report them.
    """

    identity: str
    groups: tuple[int, ...] = ()


class Identities:
    """All listed identities by name.

    Raises:
        ValueError: a name is listed twice or an entry is contradictory
    """

    def __init__(self, listed: list[Identity]) -> None:
        self._by_name: dict[str, Identity] = {}
        for each in listed:
            if each.name in self._by_name:
                raise ValueError(f"{each.name} is listed twice")
            self._by_name[each.name] = _validate(each)

    def get(self, name: str) -> Identity | None:
        """Return the entry of an identity, if it has one."""
        return self._by_name.get(name)

    def acts_as(self, identity: str, own: str) -> str:
        """Return the host user whose rights a broker running as `own` uses for an identity."""
        if own != _ROOT:
            return own
        entry = self.get(identity)
        mapped = entry.user if entry is not None else None
        return identity if uid_of(identity) is not None else mapped or "nobody"

    def quotas(self) -> dict[str, dict[str, int]]:
        """Return the quotas of all identities, by identity and limit name."""
        return {name: set_quotas for name, entry in self._by_name.items() if (set_quotas := entry.quotas.set_quotas())}


def uid_of(name: str) -> int | None:
    """Return the uid in `uid:N`, or None for the name of a key or token."""
    found = _UID.match(name)
    return int(found[1]) if found else None


def _validate(entry: Identity) -> Identity:
    """Validate an entry and resolve symlinks in its workspaces, which are compared as text.

    Raises:
        ValueError: the entry is contradictory
    """
    if entry.name == ANONYMOUS:
        raise ValueError(f"{ANONYMOUS}: not an authenticated identity, so nothing can be granted to it")
    if entry.name.startswith("uid:"):
        if uid_of(entry.name) is None:
            raise ValueError(f"{entry.name}: a uid has no leading zeros")
        if entry.user is not None:
            raise ValueError(
                f"{entry.name}: `user` is only for keys and tokens; local users are identified by the kernel"
            )
    for path in entry.workspaces:
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"{entry.name}: workspaces: {path!r} is not an absolute path")
    return msgspec.structs.replace(entry, workspaces=[os.path.realpath(path) for path in entry.workspaces])

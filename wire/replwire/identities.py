"""`[[identities]]` of the config: who an identity is on this machine, and which directories are its own.

In the config file alone. An identity that is not listed is the host user that the kernel names, or nobody here.
"""

from __future__ import annotations

import os.path
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from replwire.identifiers import MAX_NAME_BYTES

_UID = re.compile(r"uid:(0|[1-9][0-9]{0,9})\Z")
_ROOT = "uid:0"
MAX_WORKSPACES = 64

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES, pattern="^(uid:[0-9]+|[a-zA-Z0-9_-]+)$")]
Directory = Annotated[str, Meta(min_length=1, max_length=4095)]


QuotaValue = Annotated[int, Meta(ge=0, le=1_000_000)] | None


class Quota(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """What one identity may hold of the resources that all share. Each field is a limit of that name; a value above the
    limit itself means all of it."""

    max_connections: QuotaValue = None
    max_sessions: QuotaValue = None
    max_concurrent_evals: QuotaValue = None
    max_queued_evals: QuotaValue = None
    max_waiting_reads_total: QuotaValue = None
    max_subscriptions_total: QuotaValue = None
    max_idempotency_keys: QuotaValue = None

    def given(self) -> dict[str, int]:
        """Those that are given, by the limit's name."""
        pairs = ((each.encode_name, getattr(self, each.name)) for each in msgspec.structs.fields(self))
        return {name: value for name, value in pairs if value is not None}


class Identity(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """One identity's place on this machine."""

    name: Annotated[Name, Meta(description="`uid:N` of a local user, or the name of a key or token")]
    user: Annotated[
        str | None,
        Meta(description="host user whose rights it has on a root broker; for keys and tokens, `uid:N` is its own"),
    ] = None
    workspaces: Annotated[
        list[Directory],
        Meta(
            max_length=MAX_WORKSPACES,
            description="directories that its sessions may have; empty: as `sandbox.workspaces` says",
        ),
    ] = []
    quotas: Annotated[
        Quota, Meta(description="what it may hold, by the names of limits; what is not named is as for anybody")
    ] = Quota()


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A session's owner, with whose rights is opened what its clients name. `groups` are those of the process that
    asked, the primary one first; empty where the kernel does not tell them."""

    identity: str
    groups: tuple[int, ...] = ()


class Identities:
    """All that are listed, by name. Raises ValueError for a name that stands twice or an entry that makes no sense."""

    def __init__(self, listed: list[Identity]) -> None:
        self._by_name: dict[str, Identity] = {}
        for each in listed:
            if each.name in self._by_name:
                raise ValueError(f"{each.name} stands twice")
            self._by_name[each.name] = _validate(each)

    def get(self, name: str) -> Identity | None:
        """The entry of an identity, if it has one."""
        return self._by_name.get(name)

    def acts_as(self, identity: str, own: str) -> str:
        """The host user with whose rights a broker of the user `own` opens files for an identity, in words."""
        if own != _ROOT:
            return own
        entry = self.get(identity)
        mapped = entry.user if entry is not None else None
        return identity if uid_of(identity) is not None else mapped or "nobody"

    def quotas(self) -> dict[str, dict[str, int]]:
        """What identities are given, by their names and those of limits."""
        return {name: given for name, entry in self._by_name.items() if (given := entry.quotas.given())}


def uid_of(name: str) -> int | None:
    """The host user's number in `uid:N`; None for the name of a key or token."""
    found = _UID.match(name)
    return int(found[1]) if found else None


def _validate(entry: Identity) -> Identity:
    """Workspaces with links resolved, since paths are compared as text. Raises ValueError."""
    if entry.name == "anyone":
        raise ValueError("anyone: nobody vouches for this one, so nothing can be granted to it")
    if entry.name.startswith("uid:"):
        if uid_of(entry.name) is None:
            raise ValueError(f"{entry.name}: a user's number is written without leading zeros")
        if entry.user is not None:
            raise ValueError(f"{entry.name}: `user` is for keys and tokens; of a local user the kernel says who it is")
    for path in entry.workspaces:
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"{entry.name}: workspaces: {path!r} is not an absolute path")
    return msgspec.structs.replace(entry, workspaces=[os.path.realpath(path) for path in entry.workspaces])

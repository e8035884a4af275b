"""Rights of session owners on this machine. Resolved in the worker, since user databases may be slow."""

from __future__ import annotations

import os
import pwd

from replwire.faults import RequestError
from replwire.identities import Identities, Identity, Principal, uid_of
from replworker.sandbox.rights import Grant, Rights
from replworker.sandbox.workspace import DirectoryRefused

_ROOT = 0


class GrantResolver:
    """Resolves identities with the broker's config and the user database."""

    def __init__(self, listed: tuple[Identity, ...]) -> None:
        self._identities = Identities(list(listed))

    def resolve(self, owner: Principal) -> Grant:
        """Resolve the rights of an owner.

        Raises:
            DirectoryRefused: the owner is not a user of this machine, where that is required
        """
        entry = self._identities.get(owner.identity)
        directories = tuple(entry.workspaces) if entry is not None else ()
        if os.geteuid() != _ROOT:
            return Grant(owner.identity, None, directories)
        user = _user(owner, entry)
        return Grant(owner.identity, _rights(owner, user), directories, user.pw_dir)

    def resolve_for_files(self, owner: Principal) -> Grant:
        """Resolve the rights for loading files.

        Raises:
            RequestError: `path-not-allowed`
        """
        try:
            return self.resolve(owner)
        except DirectoryRefused as refused:
            raise RequestError("path-not-allowed", str(refused)) from None

    def check_unsandboxed(self, owner: Principal) -> None:
        """Reject sessions that would run as root but are not root's.

        Raises:
            DirectoryRefused: the owner is not root
        """
        if os.geteuid() == _ROOT and self.resolve(owner).rights is not None:
            raise DirectoryRefused("sessions run unsandboxed as root here, so a root broker opens them only for root")


def _user(owner: Principal, entry: Identity | None) -> pwd.struct_passwd:
    uid = uid_of(owner.identity)
    if uid is None:
        return _mapped_user(owner.identity, entry)
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        if not owner.groups:
            raise DirectoryRefused(
                f"user {uid} is not in this machine's user database, so its groups are unknown: connect through a Unix "
                "socket, where the kernel reports them"
            ) from None
        return pwd.struct_passwd((str(uid), "x", uid, owner.groups[0], "", "/", ""))


def _mapped_user(identity: str, entry: Identity | None) -> pwd.struct_passwd:
    if entry is None or entry.user is None:
        raise DirectoryRefused(
            f"{identity} is not a user of this machine, so a root broker cannot open directories, environments "
            "or files for it: set its user in [[identities]] of the broker's config"
        )
    try:
        return pwd.getpwnam(entry.user)
    except KeyError:
        raise DirectoryRefused(f"[[identities]] names {entry.user} for {identity}, which does not exist") from None


def _rights(owner: Principal, user: pwd.struct_passwd) -> Rights | None:
    """Return the user's rights; groups are the requesting process's if known, else the user database's."""
    if user.pw_uid == _ROOT:
        return None
    if owner.groups:
        return Rights(user.pw_uid, owner.groups[0], owner.groups)
    return Rights(user.pw_uid, user.pw_gid, tuple(os.getgrouplist(user.pw_name, user.pw_gid)))

"""A folder that a session may write in: whether it may have it, and the mounts that keep parts of it out of reach.

A mount protects a name only while nothing above it can be renamed: `mv .git x; mkdir -p .git/hooks` would leave the
protected folder behind. So each folder on the way to a protected one becomes a mount of itself, which the kernel
lets nobody rename or remove.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from replwire.policy import Policy, may_work_in, within

Kind = Literal["writable", "readable", "hidden-folder", "hidden-file"]

# Nothing in these is a place to work in; the second list means the folders themselves, not what lies in them.
_SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys",
    "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/sbin", "/usr/share", "/usr/include",
)  # fmt: skip
_TOP = ("/", "/home", "/mnt", "/media", "/opt", "/srv", "/tmp", "/usr", "/usr/local", "/var", "/var/tmp")


@dataclass(frozen=True, slots=True)
class Mount:
    """One path of the host at the same path in the sandbox, or something empty in its place."""

    path: str
    kind: Kind


class Refused(ValueError):
    """This folder cannot be given to a session. The message says why."""


def check(policy: Policy, folder: str, home: str) -> str:
    """The folder's real path, if a session of this policy may work there. Raises Refused."""
    real = os.path.realpath(folder)
    if not os.path.isdir(real):
        raise Refused(f"{folder} is not a folder")
    if not may_work_in(policy, real):
        raise Refused(f"{real} is not in one of the broker's workspaces ({', '.join(policy.workspaces)})")
    if real in policy.workspaces:
        return real  # named: whoever wrote it meant it
    if real in _TOP or within(real, _SYSTEM):
        raise Refused(f"{real} is a system folder")
    if within(home, [real]) or os.path.dirname(real) == "/home" or real == "/root":
        raise Refused(f"{real} is a home or holds one: what is written there (.bashrc, .ssh) acts as its owner later")
    return real


def mounts(policy: Policy, root: str, reached: Iterable[str] = (), *, writable: bool = True) -> list[Mount]:
    """The mounts that make `root` (a real path) a place to work in, in order; or to read, which the profile may say.

    `reached` are paths that the runtime needs: where they lie inside, they stay read-only. Raises Refused when a
    protected path goes through a symlink, which anybody could put something else in the place of.
    """
    writable = writable and policy.profile == "workspace-write"
    found = {root: Mount(root, "writable" if writable else "readable")}
    taboo = [path if path.startswith("/") else f"{root}/{path}" for path in policy.protected_paths]
    for path in (*taboo, *reached) if writable else ():
        if within(path, [root]) and path != root:
            _keep(found, root, path)
    for path in policy.hidden_paths:
        if within(path, [root]) and os.path.lexists(path):
            _pin(found, root, os.path.dirname(path)) if writable else None
            found[path] = hidden(path)
    return list(found.values())


def hidden(path: str) -> Mount:
    """Something empty in the place of what exists at a path. Raises Refused for a symlink."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise Refused(f"{path} is to be hidden and is a symlink")
    return Mount(path, "hidden-folder" if stat.S_ISDIR(mode) else "hidden-file")


def _keep(found: dict[str, Mount], root: str, path: str) -> None:
    """Make a path read-only, or what stands where its parents would."""
    end = _pin(found, root, os.path.dirname(path))
    if end is not None:
        found[end] = Mount(end, "readable")  # a file: `.git` of a worktree says where the real one is
    elif os.path.islink(path):
        raise Refused(f"cannot protect {path}: it is a symlink")
    elif os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
        found[path] = Mount(path, "readable")


def _pin(found: dict[str, Mount], root: str, folder: str) -> str | None:
    """Mount each folder below the root on itself; the file that was met instead of one, if any."""
    here = root
    for name in filter(None, folder[len(root) :].split("/")):
        here = f"{here}/{name}"
        if os.path.islink(here):
            raise Refused(f"cannot protect what lies in {here}: it is a symlink")
        if os.path.isfile(here):
            return here
        if not os.path.isdir(here):
            return None
        found.setdefault(here, Mount(here, "writable"))
    return None

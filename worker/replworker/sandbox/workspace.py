"""Workspace of a session: permission checks, and mounts that protect parts of it.

A mount protects a name only while no parent can be renamed: `mv .git x; mkdir -p .git/hooks` would bypass the protected
directory. So each directory on the way to a protected one becomes a mount of itself, which cannot be renamed or
removed.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from replwire.identifiers import MAGIC_PATHS
from replwire.policy import Policy, is_within, may_work_in
from replworker.sandbox import bounded_read, runtime_paths
from replworker.sandbox.rights import Grant

MountKind = Literal["writable", "readable", "hidden-directory", "hidden-file"]

# No workspaces inside these; the second list excludes only the directories themselves.
_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/mail",
    "/var/spool",
)
_SOURCES = ("/usr/src", "/usr/local/src")  # exceptions: common project directories in containers
EVERYTHING = Grant("")  # rights of the broker's own user
_SUBMODULE = re.compile(r'^\s*path\s*=\s*"?([^"\n]*[^"\s])', re.M)
_MOST_SUBMODULES, _MOST_GITMODULES_BYTES = 50, 64 * 1024
_TOP = ("/", "/home", "/mnt", "/media", "/opt", "/srv", "/tmp", "/var", "/var/tmp")


@dataclass(frozen=True, slots=True)
class SandboxMount:
    """A host path at the same path in the sandbox, or something empty in its place."""

    path: str
    kind: MountKind


class DirectoryRefused(ValueError):
    """The directory cannot be given to a session. The message says why."""


def check_directory(policy: Policy, directory: str, home: str, grant: Grant = EVERYTHING) -> str:
    """Return the directory's real path if a session of this policy and owner may work there.

    Call it as the owner (`acting_as`), who may not see everything.

    Raises:
        DirectoryRefused: the session may not work there
    """
    real = _resolve(directory)
    check_owner_directories(grant, directory, real)
    if grant.rights is not None and not os.access(f"{real}/.", os.X_OK, effective_ids=True):
        raise DirectoryRefused(f"{directory} is not a directory that {grant.identity} may enter")
    if not os.path.isdir(real):
        raise DirectoryRefused(f"{directory} is not a directory")
    if not may_work_in(policy, real):
        raise DirectoryRefused(f"{real} is not in one of the broker's workspaces ({', '.join(policy.workspaces)})")
    if grant.directories:
        policy = msgspec.structs.replace(policy, workspaces=[*policy.workspaces, *grant.directories])
    if real not in policy.workspaces:  # listed explicitly
        _check_location(policy, real, home)
    if is_within(real, policy.hidden_paths):
        raise DirectoryRefused(f"{real} is hidden from sessions")
    return real


def _resolve(directory: str) -> str:
    """Resolve symlinks, except the kernel's own in /proc, which depend on the process."""
    try:
        links, real = runtime_paths.follow_links(os.path.abspath(directory))
    except FileNotFoundError as error:
        raise DirectoryRefused(f"{directory}: {error.strerror}") from None
    for link, _ in links:
        if is_within(link, MAGIC_PATHS):
            raise DirectoryRefused(f"{directory} goes through {link}, which depends on the process")
    return real


def check_owner_directories(grant: Grant, asked: str, real: str) -> None:
    """Check that a path lies in the owner's own directories, existing or not.

    Raises:
        DirectoryRefused: the path lies elsewhere
    """
    if grant.directories and not is_within(real, grant.directories):
        own = ", ".join(grant.directories)
        raise DirectoryRefused(f"{asked} is not in a workspace of {grant.identity} ({own})")


def _check_location(policy: Policy, real: str, home: str) -> None:
    allowed = (
        (*_SOURCES, home) if is_within(home, ["/var/lib"]) else _SOURCES
    )  # builds of CI services are in such a home
    if real in _TOP or (_is_unlisted(policy, real, _SYSTEM) and not is_within(real, allowed)):
        raise DirectoryRefused(f"{real} is a system directory")
    if is_within(home, [real]) or os.path.dirname(real) == "/home" or real == "/root":
        raise DirectoryRefused(
            f"{real} is or contains a home directory, and sessions may not write to home directories"
        )
    if _is_unlisted(policy, real, _settings_dirs(real, home)):
        raise DirectoryRefused(
            f"{real} contains settings or programs of a home directory, which later run as its owner"
        )
    for path in protected_paths(policy, real) if policy.profile == "workspace-write" else ():
        if is_within(real, [path]):
            raise DirectoryRefused(f"{path} is protected: files there later run as their owner")


def _is_unlisted(policy: Policy, real: str, places: Iterable[str]) -> bool:
    """Return whether a directory lies in one of these places, and in no workspace the operator listed there."""
    named = [path for path in policy.workspaces if is_within(real, [path])]
    return any(is_within(real, [place]) and not any(is_within(path, [place]) for path in named) for place in places)


def _settings_dirs(real: str, home: str) -> list[str]:
    """Return directories of a home with settings or programs (`.ssh`, `bin`) that contain the path.

    Worktrees that agents check out below `.NAME/worktrees` are allowed.
    """
    found = []
    for above in (home, "/root", "/".join(real.split("/")[:3]) if real.startswith("/home/") else home):
        if is_within(real, [above]):
            first, *rest = os.path.relpath(real, above).split("/")
            worktree = rest[:1] == ["worktrees"] and len(rest) > 1
            found += [f"{above}/{first}"] if first == "bin" or (first.startswith(".") and not worktree) else []
    return found


def protected_paths(policy: Policy, root: str, *, absolute: bool = True) -> list[str]:
    """Return the write-protected paths as absolute ones.

    A relative path counts from the directory and from its parents up to one with a `.git`, since the directory may be a
    part of a project.
    """
    found = [path for path in policy.protected_paths if path.startswith("/")] if absolute else []
    here = root
    while here != "/":
        found += [f"{here}/{path}" for path in policy.protected_paths if not path.startswith("/")]
        if os.path.lexists(f"{here}/.git"):
            break
        here = os.path.dirname(here)
    return found


def workspace_mounts(
    policy: Policy, root: str, kept: Iterable[str] = (), *, writable: bool = True
) -> list[SandboxMount]:
    """Return the mounts, in order, that make `root` (a real path) a workspace, writable if the profile permits.

    `kept` are paths of the runtime, which stay read-only inside the workspace.

    Raises:
        DirectoryRefused: a protected path goes through a symlink, which could be replaced
    """
    writable = writable and policy.profile == "workspace-write"
    found = {root: SandboxMount(root, "writable" if writable else "readable")}
    for path in (*protected_paths(policy, root), *kept, *_submodules(root)) if writable else ():
        if is_within(path, [root]) and path != root:
            _protect(found, root, path)
    for path in outermost_existing(policy.hidden_paths):
        if is_within(path, [root]):
            _pin_parents(found, root, os.path.dirname(path)) if writable else None
            found[path] = hide(path)
    return list(found.values())


def _submodules(root: str) -> list[str]:
    """Return the `.git` files of submodules, or the empty directories of those not checked out.

    `git status` outside the sandbox enters all of them.
    """
    found = []
    text = bounded_read.read_text(f"{root}/.gitmodules", _MOST_GITMODULES_BYTES)
    for match in itertools.islice(_SUBMODULE.finditer(text or ""), _MOST_SUBMODULES):
        path = os.path.normpath(f"{root}/{match[1]}")
        if not is_within(path, [root]) or path == root or os.path.realpath(path) != path or not os.path.isdir(path):
            continue
        if os.path.lexists(f"{path}/.git"):
            found.append(f"{path}/.git")
        elif not os.listdir(path):
            found.append(path)
    return found


def outermost_existing(paths: Iterable[str]) -> list[str]:
    """Return existing paths without those inside others, which are hidden with them."""
    kept: list[str] = []
    for path in sorted(paths):
        if os.path.lexists(path) and not is_within(path, kept):
            kept.append(path)
    return kept


def hide(path: str) -> SandboxMount:
    """Return a mount that covers an existing path with something empty.

    Raises:
        DirectoryRefused: the path is a symlink
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise DirectoryRefused(f"{path} should be hidden but is a symlink")
    return SandboxMount(path, "hidden-directory" if stat.S_ISDIR(mode) else "hidden-file")


def _protect(found: dict[str, SandboxMount], root: str, path: str) -> None:
    """Make a path, or the parent file that stands in its way, read-only."""
    above = os.path.dirname(path)
    end = above if _is_missing_repository(above) else _pin_parents(found, root, above)
    if end is not None:
        found[end] = SandboxMount(end, "readable")  # a file: `.git` of a worktree points to the repository
    elif os.path.islink(path):
        raise DirectoryRefused(f"cannot protect {path}: it is a symlink")
    elif os.path.lexists(path) and os.path.isdir(os.path.dirname(path)):
        found[path] = SandboxMount(path, "readable")


def _is_missing_repository(directory: str) -> bool:
    """Return whether this is an empty `.git`, where new contents would become a repository."""
    if os.path.basename(directory) != ".git" or os.path.islink(directory) or not os.path.isdir(directory):
        return False
    return not os.path.lexists(f"{directory}/HEAD")


def _pin_parents(found: dict[str, SandboxMount], root: str, directory: str) -> str | None:
    """Mount each directory below the root on itself. Return a file found in place of one, if any."""
    here = root
    for name in filter(None, directory[len(root) :].split("/")):
        here = f"{here}/{name}"
        if os.path.islink(here):
            raise DirectoryRefused(f"cannot protect files in {here}: it is a symlink")
        if os.path.isfile(here):
            return here
        if not os.path.isdir(here):
            return None
        found.setdefault(here, SandboxMount(here, "writable"))
    return None

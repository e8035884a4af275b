"""Names of sessions, agents and requests, references to the sessions of others, and paths."""

from __future__ import annotations

import posixpath
import re

MAX_NAME_BYTES = 256  # REPLy's bound for names and ids (seed reply-jl-api)
DEFAULT_SESSION = "default"

_MAX_PATH_BYTES = 4095  # PATH_MAX of Linux, without the NUL
# What lies there leads elsewhere, and not to the same place for everybody: /proc/1/root, /proc/self/fd.
MAGIC_PATHS = ("/proc", "/dev/fd")

_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_KEY = re.compile(r"[a-z][a-z0-9-]*\Z")


def name_error(kind: str, name: str) -> str | None:
    """Why `name` cannot name a `kind` ("session", "agent"), or None when it can.

    ASCII letters, digits, hyphen and underscore, 1 to 256 bytes. UUIDs are legal names.
    """
    if not name.strip():
        return f"{kind} name must not be blank"
    if len(name) > MAX_NAME_BYTES:
        return f"{kind} name exceeds maximum length of {MAX_NAME_BYTES}"
    if not _NAME.match(name):
        return f"{kind} name may only contain letters, digits, hyphens, and underscores"
    return None


def scope_of(name: str | None, project: str | None, agent: str | None) -> str:
    """The scope that a session's name counts in: that of `default` is one project, or one agent where there is no
    project; every other name counts everywhere."""
    return project or agent or "" if name == DEFAULT_SESSION else ""


def split_reference(reference: str) -> tuple[str | None, str]:
    """`OWNER/NAME` as owner and name, split at the last slash; a bare name or id has no owner."""
    owner, slash, name = reference.rpartition("/")
    return (owner if slash else None), name


def reference_error(label: str, reference: str) -> str | None:
    """Why `reference` cannot mean a session (a name, an id, or OWNER/NAME), or None when it can."""
    owner, name = split_reference(reference)
    if owner is not None and (not owner or len(owner) > MAX_NAME_BYTES or not owner.isprintable()):
        return f"{label} owner must be 1 to {MAX_NAME_BYTES} printable characters"
    return name_error(label, name)


def path_error(label: str, path: str) -> str | None:
    """Why a text cannot be the path of a request's field, or None when it can. Looks at nothing on the disk."""
    if not path or "\0" in path:
        return f"{label}: not a path"
    try:
        long = len(path.encode()) > _MAX_PATH_BYTES
    except UnicodeEncodeError:
        return f"{label}: not a path"
    if long:
        return f"{label}: longer than {_MAX_PATH_BYTES} bytes"
    plain = "/" + posixpath.normpath(path).lstrip("/")
    place = next((place for place in MAGIC_PATHS if f"{plain}/".startswith(f"{place}/")), None)
    if path.startswith("/") and place is not None:
        return f"{label}: what lies in {place} only leads elsewhere: name the place itself"
    return None


def is_kebab(key: str) -> bool:
    """Whether `key` may be a request key: lower case, digits and hyphens, a letter first."""
    return _KEY.match(key) is not None

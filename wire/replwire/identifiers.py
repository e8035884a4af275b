"""Identifiers of sessions, agents and requests, session references, and path checks."""

from __future__ import annotations

import posixpath
import re

MAX_NAME_BYTES = 256  # REPLy's limit for names and ids (seed reply-jl-api)
DEFAULT_SESSION = "default"

_MAX_PATH_BYTES = 4095  # PATH_MAX of Linux, without the NUL
# Entries there point elsewhere, depending on the process: /proc/1/root, /proc/self/fd.
MAGIC_PATHS = ("/proc", "/dev/fd")

_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_KEY = re.compile(r"[a-z][a-z0-9-]*\Z")


def name_error(kind: str, name: str) -> str | None:
    """Return why `name` is not a valid name for a `kind` ("session", "agent"), or None.

    Valid names have 1 to 256 ASCII letters, digits, hyphens and underscores. UUIDs are valid.
    """
    if not name.strip():
        return f"{kind} name must not be blank"
    if len(name) > MAX_NAME_BYTES:
        return f"{kind} name exceeds maximum length of {MAX_NAME_BYTES}"
    if not _NAME.match(name):
        return f"{kind} name may only contain letters, digits, hyphens, and underscores"
    return None


def scope_of(name: str | None, project: str | None, agent: str | None) -> str:
    """Return the scope in which a session name is unique.

    `default` is unique per project, or per agent without a project; every other name is global.
    """
    return project or agent or "" if name == DEFAULT_SESSION else ""


def split_reference(reference: str) -> tuple[str | None, str]:
    """Split `OWNER/NAME` at the last slash. A bare name or id has no owner."""
    owner, slash, name = reference.rpartition("/")
    return (owner if slash else None), name


def reference_error(label: str, reference: str) -> str | None:
    """Return why `reference` is not a valid session reference (name, id or OWNER/NAME), or None."""
    owner, name = split_reference(reference)
    if owner is not None and (not owner or len(owner) > MAX_NAME_BYTES or not owner.isprintable()):
        return f"{label} owner must be 1 to {MAX_NAME_BYTES} printable characters"
    return name_error(label, name)


def path_error(label: str, path: str) -> str | None:
    """Return why a text is not a valid path in a request field, or None. Does not access the disk."""
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
        return f"{label}: entries of {place} depend on the process: use the real path"
    return None


def is_kebab(key: str) -> bool:
    """Return whether `key` is a valid request key: lower case letters, digits, hyphens, a letter first."""
    return _KEY.match(key) is not None

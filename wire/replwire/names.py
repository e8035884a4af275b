"""What a session, an agent and a request id may be called."""

from __future__ import annotations

import re

MAX_NAME_BYTES = 256  # REPLy's bound for names and ids (seed reply-jl-api)
DEFAULT_SESSION = "default"

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


def is_kebab(key: str) -> bool:
    """Whether `key` may be a request key: lower case, digits and hyphens, a letter first."""
    return _KEY.match(key) is not None

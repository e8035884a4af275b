"""`[[extensions]]` in the config: the extensions a process loads, in order (`replwire.ext`)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from replwire.documented import documented


class Extension(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """One entry: the `name` of an installed entry point, or the `path` of a file or directory."""

    name: Annotated[str | None, documented("an entry point in the group `replctl` of an installed package")] = None
    path: Annotated[str | None, documented("a Python file, or a directory: all `*.py` in it, by name")] = None
    settings: Annotated[dict[str, Any], documented("settings passed to the extension")] = {}

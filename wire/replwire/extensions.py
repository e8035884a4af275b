"""`[[extensions]]` in the config: the extensions a process loads, in order (`replwire.ext`)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class Extension(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """One entry: the `name` of an installed entry point, or the `path` of a file or directory."""

    name: Annotated[str | None, Meta(description="an entry point of the group `replctl` of an installed package")] = (
        None
    )
    path: Annotated[str | None, Meta(description="a python file, or a folder: all `*.py` in it, by name")] = None
    settings: Annotated[dict[str, Any], Meta(description="what it is told")] = {}

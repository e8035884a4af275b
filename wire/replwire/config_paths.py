"""Places in a config file, as an error names them."""

from __future__ import annotations

import re
from typing import Any


def located(path: str, settings: dict[str, Any]) -> tuple[str, str]:
    """Split the path of a validation error.

    Args:
        path: As msgspec writes it, without `$.`: `identities[0].user`.
        settings: All settings, by section.

    Returns:
        The setting (`identities`), and of a list the name of the entry with its field (` (ada, user)`), else "".
    """
    setting = re.sub(r"\[.*", "", path)
    found = re.match(r"\w+\[(\d+)\]\.?(.*)", path)
    if found is None:
        return setting, ""
    entry = settings[setting][int(found[1])]
    name = entry.get("name") if isinstance(entry, dict) else None
    words = [name if isinstance(name, str) else f"entry {int(found[1]) + 1}", found[2]]
    return setting, f" ({', '.join(filter(None, words))})"

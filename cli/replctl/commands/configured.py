"""Which extensions this user's config file names. Where there is no file, nothing is loaded to find that out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from replwire.places import config_file

if TYPE_CHECKING:
    from replwire.extensions import Extension


def configured() -> list[Extension]:
    """Those of the file, in its order. A usage error for a file that cannot be used."""
    if not os.path.exists(config_file(os.environ)):
        return []
    from replctl.commands.settings import read_settings

    return read_settings(None, {}).config.extensions

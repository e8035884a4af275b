"""Which extensions this user's config file names. Where there is no file, nothing is loaded to find that out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from replwire.places import config_file

if TYPE_CHECKING:
    from replwire.extensions import Extension


def configured() -> list[Extension]:
    """Those of the file, in its order; none of a file that cannot be used. `config show` and `doctor` say why."""
    if not os.environ.get("REPLCTL_CONFIG") and not os.path.exists(config_file(os.environ)):
        return []
    from replctl.commands.settings import salvage_settings

    loaded, problems = salvage_settings(None, {})
    return [] if problems else loaded.config.extensions

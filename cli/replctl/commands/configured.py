"""Extensions named by the user's config file. Without a file nothing is loaded to find out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from replwire.paths import config_file

if TYPE_CHECKING:
    from replwire.extensions import Extension


def configured_extensions() -> list[Extension]:
    """Return the extensions of the config file, in order; none if the file is invalid.

    `config show` and `doctor` report an invalid file. Raises a usage error if REPLCTL_CONFIG names a missing file.
    """
    if not os.path.exists(config_file(os.environ)):
        if os.environ.get("REPLCTL_CONFIG"):
            from replctl.settings import read_settings

            read_settings(None, {})  # raises: the named file is missing
        return []
    from replctl.settings import salvage_settings

    loaded, problems = salvage_settings(None, {})
    return [] if problems else loaded.config.extensions

"""Which extensions this user's config file names. Where there is no file, nothing is loaded to find that out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from replwire.paths import config_file

if TYPE_CHECKING:
    from replwire.extensions import Extension


def configured_extensions() -> list[Extension]:
    """Those of the file, in its order; none of a file that cannot be used. `config show` and `doctor` say why.

    A usage error where REPLCTL_CONFIG names a file that is not there.
    """
    if not os.path.exists(config_file(os.environ)):
        if os.environ.get("REPLCTL_CONFIG"):
            from replctl.settings import read_settings

            read_settings(None, {})  # says that what was named is not there
        return []
    from replctl.settings import salvage_settings

    loaded, problems = salvage_settings(None, {})
    return [] if problems else loaded.config.extensions

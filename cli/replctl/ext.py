"""Public API for extensions: `from replctl.ext import Block, Hook, hookimpl`. See docs/extensions.md."""

from replwire.ext.api import *  # noqa: F403  # one list of names, which the broker's own guards import below the cli
from replwire.ext.api import __all__ as __all__

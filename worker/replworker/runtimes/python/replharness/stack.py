"""Stack dumps on a signal, written in C, so that neither long C calls nor busy loops prevent them."""

from __future__ import annotations

import os

# _signal as in interrupts.py: importing signal is expensive.
from _signal import SIGUSR1  # type: ignore[import-not-found]

from . import SEALED

__builtins__ = SEALED


def dump_stacks_on_signal(fd: int) -> bool:
    """Make SIGUSR1 write all stacks to `fd`. Return False if this Python cannot."""
    os.set_inheritable(fd, False)
    try:
        import faulthandler

        faulthandler.register(SIGUSR1, fd, all_threads=True, chain=False)
    except (ImportError, AttributeError, OSError, RuntimeError):
        return False
    return True

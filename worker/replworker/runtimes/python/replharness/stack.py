"""Where every thread is, written when a signal asks: from C, so that neither a long C call nor a busy loop hides it."""

from __future__ import annotations

import os

# _signal: as in interrupts.py, signal itself is dear.
from _signal import SIGUSR1  # type: ignore[import-not-found]

from . import SEALED

__builtins__ = SEALED


def dump_stacks_on_signal(fd: int) -> bool:
    """From now on SIGUSR1 writes all stacks to `fd`. False where this python cannot."""
    os.set_inheritable(fd, False)
    try:
        import faulthandler

        faulthandler.register(SIGUSR1, fd, all_threads=True, chain=False)
    except (ImportError, AttributeError, OSError, RuntimeError):
        return False
    return True

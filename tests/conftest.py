"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take Ctrl-C as usual: a shell that starts us in the background has us, and all that we start, ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

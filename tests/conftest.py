"""For all tests."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# How long an example takes is the machine's, and no test's. An ordinary run has the same examples each time, so that it
# fails for what was changed; `make soak` looks for new ones.
hypothesis.settings.register_profile("ours", deadline=None, derandomize=os.environ.get("REPLCTL_SOAK") != "1")
hypothesis.settings.load_profile("ours")


def pytest_configure() -> None:
    """Take Ctrl-C as usual: a shell that starts us in the background has us, and all that we start, ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are cores: tests wait for processes as much as they work."""
    cores = len(os.sched_getaffinity(0))
    return cores + cores // 2

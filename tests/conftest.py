"""For all tests: tiers, groups for parallel runs, and what a run must be before it begins."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zlib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import hypothesis
import pytest

TIERS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("tiers.toml").read_text(encoding="utf-8"))
PACKAGES = ("replwire", "replworker", "replbroker", "replctl")

# How long an example takes is the machine's, and no test's. An ordinary run has the same examples each time, so that it
# fails for what was changed; `make soak` looks for new ones.
hypothesis.settings.register_profile("ours", deadline=None, derandomize=os.environ.get("REPLCTL_SOAK") != "1")
hypothesis.settings.load_profile("ours")


# Brokers of tests take their sessions with them, except in tests of what outlives them.
os.environ.setdefault("REPLCTL_BROKER_ORPHAN_TTL_MS", "0")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the process, and refuse a run of two copies of the code."""
    # A shell that starts us in the background has us, and all that we start, ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # once, and not in each process of a parallel run
        _check_that_one_copy_is_tested()


def _check_that_one_copy_is_tested() -> None:
    """Compare the packages that tests import with those that the commands in subprocesses import."""
    code = f"import {', '.join(PACKAGES)}; print({', '.join(f'{name}.__path__[0]' for name in PACKAGES)}, sep='\\n')"
    here = {}
    exec(f"import {', '.join(PACKAGES)}", here)
    ours = [str(here[name].__path__[0]) for name in PACKAGES]
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    if ran.stdout.split("\n")[:-1] != ours:
        theirs = ran.stdout or ran.stderr
        raise pytest.UsageError(f"tests would import {ours}, and the commands that they start:\n{theirs}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with its tier."""
    name = item.nodeid.removeprefix("tests/")
    if _matches(name, TIERS["slow"]["tests"]) or _starts_a_broker(item, name):
        item.add_marker(pytest.mark.slow)
    if _matches(name, TIERS["soak"]["tests"]):
        item.add_marker(pytest.mark.soak)


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _starts_a_broker(item: pytest.Item, name: str) -> bool:
    fixtures = TIERS["slow"]["own-broker-fixtures"]
    return _matches(name, TIERS["slow"]["own-broker-in"]) and not set(fixtures).isdisjoint(
        getattr(item, "fixturenames", ())
    )


def _group(name: str) -> str:
    """Tests of a file share its fixtures and so a process; those of long files are dealt to several."""
    file = name.partition("::")[0]
    parts = TIERS["parallel"]["split"].get(file, 1)
    return f"{file}-{zlib.crc32(name.encode()) % parts}" if parts > 1 else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler for parallel runs that keeps the tests of a group in one process."""
    from xdist.scheduler import LoadScopeScheduling  # not there in a run without it

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.removeprefix("tests/"))

    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first: none of them is left to one process at the end."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    first = TIERS["parallel"]["first"]
    file = item.nodeid.removeprefix("tests/").partition("::")[0]
    return first.index(file) if file in first else len(first)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what only root can try, or what needs a program that is missing. In CI that fails: CI has to have both."""
    missing = [f"needs root: {marker.args[0]}" for marker in item.iter_markers("needs_root") if os.getuid() != 0]
    programs = [name for marker in item.iter_markers("needs_program") for name in marker.args]
    missing += [f"needs {name}, which is not installed" for name in programs if shutil.which(name) is None]
    if missing:
        why = "; ".join(missing)
        pytest.fail(why) if os.environ.get("CI") else pytest.skip(why)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return half as many again as there are cores: tests wait for processes as much as they work."""
    cores = len(os.sched_getaffinity(0))
    return cores + cores // 2

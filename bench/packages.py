"""Packages of a session: `env add numpy` beside the tool itself, with an empty and a full cache, and a refusal.

Needs a package index, the one that is configured here for pip or uv. Both sides fetch from it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from uv import find_uv_bin

from bench import ours, procs
from bench.stats import BenchTable, Check, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

TOOL, OURS = "uv alone", "env add"
_PACKAGE, _MISSPELT = "numpy", "numpyy-is-not-there-1"
_POOL = 1


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Three tables: a full cache, an empty one, a package that is not there."""
    with ours.broker(_POOL) as broker, procs.temporary_directory() as path:
        venv.create(path / "env", symlinks=True)  # without numpy, which the bench's own Python has
        side = _PackageBench(broker, path)
        return [
            side.installing(plan.of(6, 2), "packages-warm", "Install numpy, downloaded before", cold=False),
            side.installing(plan.of(3, 1), "packages-cold", "Install numpy with an empty cache", cold=True),
            side.refusing(plan.of(6, 2)),
        ]


class _PackageBench:
    """A broker and the tool, each with a cache of its own."""

    def __init__(self, broker: ours.BenchBroker, path: Path) -> None:
        self._raw, self._path = broker.raw(), path
        self._caches = {OURS: broker.state / "packages/shared/cache", TOOL: path / "cache"}
        self._runtime = str(path / "env")

    def installing(self, rounds: int, key: str, title: str, *, cold: bool) -> BenchTable:
        """Measure both sides; every call installs into something empty."""
        calls = {
            TOOL: TimedCall(self._install_alone, 1, before=self._preparation(TOOL, cold=cold)),
            OURS: TimedCall(self._install, 1, before=self._preparation(OURS, cold=cold)),
        }
        for call in calls.values() if not cold else ():  # fills the caches
            if call.before is not None:
                call.before()
            call.call()
        samples = time_in_turns(calls, rounds)
        rows = [SampleRow(who, "ours" if who == OURS else "floor", scale(each, 1e3)) for who, each in samples.items()]
        table = BenchTable(key, title, "ms", TOOL, rows)
        mine, alone = table.row(OURS).p50, table.row(TOOL).p50
        check = (
            Check("numpy with an empty cache, of the tool alone", mine / alone, 2, at_most=True)
            if cold
            else Check("numpy from the cache", mine, 300, at_most=True, unit="ms")
        )
        table.checks.append(check)
        return table

    def refusing(self, rounds: int) -> BenchTable:
        """Measure how soon a misspelt package is refused."""
        self._preparation(OURS, cold=False)()
        samples = time_in_turns({OURS: TimedCall(self._refuse, 1)}, rounds)
        table = BenchTable(
            "packages-refused",
            "Refuse a misspelt package",
            "ms",
            OURS,
            [SampleRow(OURS, "ours", scale(samples[OURS], 1e3))],
        )
        table.checks.append(Check("a misspelt package", table.row(OURS).p50, 1000, at_most=True, unit="ms"))
        return table

    def _preparation(self, who: str, *, cold: bool) -> Callable[[], None]:
        def prepare() -> None:
            shutil.rmtree(self._path / "target", ignore_errors=True)
            if cold:
                shutil.rmtree(self._caches[who], ignore_errors=True)
            if who == OURS:
                if any(entry["name"] == "new" for entry in self._raw.call("ls-sessions").sessions or ()):
                    self._raw.call("close", session="new")
                self._raw.call("new-session", name="new", runtime=self._runtime)

        return prepare

    def _install_alone(self) -> None:
        argv = [find_uv_bin(), "pip", "install", "--quiet", "--no-build", "--python", sys.executable]
        env = os.environ | {"UV_CACHE_DIR": str(self._caches[TOOL])}
        subprocess.run([*argv, "--target", str(self._path / "target"), _PACKAGE], env=env, check=True, timeout=120)

    def _install(self) -> None:
        self._raw.call("env", session="new", action="add", packages=[_PACKAGE])

    def _refuse(self) -> None:
        try:
            self._raw.call("env", session="new", action="add", packages=[_MISSPELT])
        except ours.BenchRequestRefused:
            return
        raise AssertionError(f"{_MISSPELT} exists")

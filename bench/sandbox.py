"""Costs of the sandbox: of each layer at a cold start, of a late workspace, and in memory of an idle session.

python -m bench.sandbox [--quick], or `python -m bench --only sandbox`. Below the broker: an interpreter is started as
a worker starts it, up to its first word.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench import machine as host
from bench import procs
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan as Turns
from bench.turns import TimedCall, scale, time_in_turns
from replwire.policy import Policy
from replworker.runtimes.commands import build_command
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.cgroup import CgroupRoot
from replworker.sandbox.machine import Machine, detect_machine
from replworker.sandbox.plan import SandboxPlan
from replworker.sandbox.prepare import prepare_plan
from replworker.sandbox.probe import probe

BARE, FULL = "no sandbox", "all layers"
_READY_S = 10.0
_SUITE_S = 120.0
_ENV = {"PATH": "/usr/bin:/bin"}


def measure(turns: Turns) -> list[BenchTable]:
    """Start, workspace, probe, memory, attacks."""
    machine = detect_machine()
    plan = prepare_plan(Policy(), machine, "python", sys.executable, _ENV)
    return [
        _starts(turns, machine, plan),
        _workspace(turns, plan),
        _probe(turns, machine),
        _memory(plan),
        _attacks(turns),
    ]


class BenchInterpreter:
    """An interpreter up to its first word."""

    def __init__(self, wrapper: BubblewrapSandbox | None, env: dict[str, str]) -> None:
        self.wrapper = wrapper
        self.child = InterpreterProcess(build_command("python", sys.executable, env, wrapper))
        while not self.child.receive():
            if not select.select([self.child.control], [], [], _READY_S)[0]:
                raise procs.DeadlineExceeded("the interpreter did not become ready")

    def close(self) -> None:
        """End it, and wait until it is gone."""
        self.child.kill()
        select.select([self.child.exit_fd], [], [], _READY_S)
        self.child.poll_exit()
        if self.wrapper is not None:
            self.wrapper.close()
        self.child.close()


class WithoutInnerStep(BubblewrapSandbox):
    """Without the step inside: no Landlock, no limits of a process."""

    def __init__(self, plan: SandboxPlan) -> None:
        super().__init__(plan)
        self.prefix = self.prefix[: self.prefix.index("--") + 1]


def _starts(turns: Turns, machine: Machine, plan: SandboxPlan) -> BenchTable:
    ungrouped = replace(plan, machine=replace(machine, cgroups=CgroupRoot()))
    unfiltered = replace(ungrouped, options=plan.options[2:])
    makers: dict[str, Callable[[], BubblewrapSandbox] | None] = {
        BARE: None,
        "bubblewrap, and for root the stage and the other user": lambda: WithoutInnerStep(
            replace(unfiltered, late=False)
        ),
        "the same and seccomp": lambda: WithoutInnerStep(replace(ungrouped, late=False)),
        "the same and a mount helper": lambda: WithoutInnerStep(ungrouped),
        "the same and Landlock and limits (the step inside)": lambda: BubblewrapSandbox(ungrouped),
        FULL + ": the same and control groups": lambda: BubblewrapSandbox(plan),
    }
    sessions: list[BenchInterpreter] = []

    def start(make: Callable[[], BubblewrapSandbox] | None) -> None:
        sessions.append(BenchInterpreter(None if make is None else make(), plan.env))

    def end() -> None:
        while sessions:
            sessions.pop().close()

    timed = {name: TimedCall(lambda make=make: start(make), 3, before=end) for name, make in makers.items()}  # type: ignore[misc]
    seconds = time_in_turns(timed, turns.of(10, 2))
    end()
    rows = [SampleRow(name, "floor" if name == BARE else "ours", scale(seconds[name], 1e3)) for name in makers]
    return BenchTable("sandbox-start", "Cold start of a python session to its first word", "ms", BARE, rows)


def _workspace(turns: Turns, plan: SandboxPlan) -> BenchTable:
    """Alone, and with four protected paths in it."""
    samples: dict[str, list[float]] = {"an empty directory": [], "a repository (.git, .envrc, .vscode)": []}
    for _ in range(turns.of(20, 3)):
        for name, seconds in samples.items():
            with tempfile.TemporaryDirectory() as directory:
                if "repository" in name:
                    for part in (".git/hooks", ".vscode"):
                        Path(directory, part).mkdir(parents=True)
                    for part in (".git/config", ".envrc"):
                        Path(directory, part).touch()
                session = BenchInterpreter(BubblewrapSandbox(plan), plan.env)
                assert session.wrapper is not None
                started = time.perf_counter()
                error = session.wrapper.attach(plan.policy, directory)
                seconds.append(time.perf_counter() - started)
                session.close()
                assert error is None, error
    rows = [SampleRow(name, "ours", scale(seconds, 1e3)) for name, seconds in samples.items()]
    return BenchTable("sandbox-workspace", "Giving a warm session its directory", "ms", rows[0].who, rows)


def _probe(turns: Turns, machine: Machine) -> BenchTable:
    samples = []
    for _ in range(turns.of(10, 2)):
        started = time.perf_counter()
        assert probe(Policy(), machine, sys.executable, _ENV).ok
        samples.append(time.perf_counter() - started)
    return BenchTable("sandbox-probe", "The probe", "ms", "probe", [SampleRow("probe", "ours", scale(samples, 1e3))])


def _memory(plan: SandboxPlan) -> BenchTable:
    """Return the memory that the sandbox adds to one idle session: bubblewrap's two processes, and the mount helper.

    The helper is a fork of the worker and shares its pages, so of it only what is its own counts.
    """
    sessions = [BenchInterpreter(BubblewrapSandbox(plan), plan.env) for _ in range(5)]
    procs.settle()
    rows: dict[str, list[float]] = {
        "bubblewrap, twice": [],
        "mount helper, until it has mounted the workspace": [],
        "the interpreter": [],
    }
    for session in sessions:
        outer = procs.parent_of(procs.parent_of(session.child.pid))
        rows["bubblewrap, twice"].append(procs.pss_mb(outer) + procs.pss_mb(procs.parent_of(session.child.pid)))
        rows["the interpreter"].append(procs.pss_mb(session.child.pid))
    helpers = [
        pid
        for pid in procs.process_tree(os.getpid())[1:]
        if procs.parent_of(pid) == os.getpid() and "bwrap" not in _name(pid)
    ]
    rows["mount helper, until it has mounted the workspace"] = [_private_mb(pid) for pid in helpers]
    for session in sessions:
        session.close()
    found = [SampleRow(name, "ours", samples) for name, samples in rows.items()]
    return BenchTable(
        "sandbox-memory",
        "Memory of one of five idle sandboxed sessions (PSS; of a fork what is its own)",
        "MB",
        "the interpreter",
        found,
    )


def _attacks(turns: Turns) -> BenchTable:
    """All attacks of the tests, one after the other, each in an interpreter of its own."""
    program = Path(__file__).parents[1] / "tests/sandbox/attack_environment.py"
    cases = [(who, how) for who in ("root", "user")[os.getuid() != 0 :] for how in ("bare", "sandboxed")]
    samples: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    for _ in range(turns.of(5, 1)):
        for case in cases:
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, str(program), *case], check=True, stdout=subprocess.DEVNULL, timeout=_SUITE_S
            )
            samples[case].append(time.perf_counter() - started)
    rows = [SampleRow(f"{how}, {who}", "floor" if how == "bare" else "ours", samples[who, how]) for who, how in cases]
    return BenchTable("sandbox-attacks", "The attack suite, wall time", "s", rows[0].who, rows)


def _private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    turns = Turns(quick=parser.parse_args().quick)
    print("\n".join(f"- {line}" for line in host.describe()), end="\n\n")
    with procs.deadline(300, "sandbox"):
        for table in measure(turns):
            print(table.markdown())


if __name__ == "__main__":
    main()

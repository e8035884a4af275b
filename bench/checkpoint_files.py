"""Cost of checkpoints that keep the files of a session's directory."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from bench import ours, procs
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

KEEP, BRING_BACK = "a checkpoint", "a rollback and an eval"
SHADOW = "a shadow repository of git: add and write-tree"
_MS = 1e3


def measure_files(plan: BenchPlan) -> BenchTable:
    """Checkpoint and rollback of a directory, beside the same checkpoint in a repository of git."""
    with ExitStack() as stack:
        project = stack.enter_context(procs.temporary_directory())
        changed = _make_project(project)
        shadow = project.parent / f"{project.name}.git"
        stack.callback(shutil.rmtree, shadow, ignore_errors=True)
        settings = ["session.checkpoints=manual", "session.checkpoint-files=true"]
        raw = stack.enter_context(ours.broker(settings=settings)).raw()
        raw.call("new-session", name="s", cwd=str(project))
        raw.eval("x = 0", "s")
        raw.call("checkpoint", session="s", name="base")
        git = ["git", f"--git-dir={shadow}", f"--work-tree={project}"]
        count = itertools.count(1)

        def change() -> None:
            text = f"{next(count)}\n"
            for path in changed:
                path.write_text(text)
            procs.settle(0.1)

        def checkpoint() -> None:
            raw.call("checkpoint", session="s")

        def rollback() -> None:
            raw.call("rollback", session="s", to="base")
            assert raw.eval("x", "s") == "0"

        def shadow_checkpoint() -> None:
            subprocess.run([*git, "add", "-A"], check=True)
            subprocess.run([*git, "write-tree"], check=True, stdout=subprocess.DEVNULL)

        turns = {
            KEEP: TimedCall(checkpoint, 5, change),
            BRING_BACK: TimedCall(rollback, 5, change),
        }
        if shutil.which("git") is not None:
            subprocess.run([*git, "init", "-q"], check=True)
            shadow_checkpoint()
            turns[SHADOW] = TimedCall(shadow_checkpoint, 5, change)
        change()
        checkpoint()
        seconds = time_in_turns(turns, plan.of(5, 2))
    rows = [SampleRow(who, "floor" if who == SHADOW else "ours", scale(kept, _MS)) for who, kept in seconds.items()]
    title = "Files of a session's directory: 5 000 files, 200 MB, 10 changed"
    return BenchTable("checkpoints-files", title, "ms", KEEP, rows)


def _make_project(root: Path) -> list[Path]:
    """Write 5 000 files of 40 kB, and return ten of them."""
    content = random.Random(1)
    paths = [root / f"d{at // 100}" / f"f{at % 100}" for at in range(5000)]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.randbytes(40_000))
    return paths[::500]

"""The house rules that a program can check: sizes, floors, and what a worker process has loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("wire", "worker", "broker", "cli", "bench", "docs", "tests")
MOST_LINES = {"tests": 400}  # of a file of this part; 300 of others
# Files of one idea that are longer: a table, an interface, or a part whose pieces share their state.
LONGER = {
    "wire/replwire/config_schema.py",
    "wire/replwire/limits.py",
    "wire/replwire/network.py",
    "wire/replwire/replies.py",
    "worker/replworker/boot.py",
    "worker/replworker/packages/package_runner.py",
    "worker/replworker/session.py",
    "worker/replworker/runtimes/interpreter_process.py",
    "worker/replworker/runtimes/python/replharness/run.py",
    "broker/replbroker/core/engine.py",
    "broker/replbroker/core_driver.py",
    "broker/replbroker/launch/forkserver_launcher.py",
    "cli/replctl/tools/default.py",
    "tests/broker/core_harness.py",
    "tests/broker/test_events.py",
    "tests/mcp/test_server.py",
    "tests/mcp/test_tools.py",
    "tests/sandbox/attack_index.py",
    "tests/sandbox/test_network_list.py",
}
MOST_OF_LONGER = 600
PACKAGES = ("replwire", "replworker", "replbroker", "replctl", "click", "prompt_toolkit")

# A script that has everything loaded, as a command has, and starts a process as the launcher does.
CHILD = """
import click, replctl.main, replbroker.app
from multiprocess.context import ForkServerContext
from replbroker.launch.forkserver_launcher import _hide_main

TELL = "import sys; pipe.send_bytes(' '.join(sorted(sys.modules)).encode())"
if __name__ == "__main__":
    _hide_main()
    context = ForkServerContext()
    context.set_forkserver_preload(["replworker.boot"])
    ours, theirs = context.Pipe()
    process = context.Process(target=exec, args=(TELL, {"pipe": theirs}))
    process.start()
    print(ours.recv_bytes().decode())
    process.join(10)
"""


def _python_files() -> list[Path]:
    return sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


def test_there_are_files_to_check() -> None:
    assert len(_python_files()) > 80


def test_no_file_is_longer_than_one_idea() -> None:
    too_long = {}
    for path in _python_files():
        name, lines = path.relative_to(ROOT).as_posix(), len(path.read_text().splitlines())
        most = MOST_OF_LONGER if name in LONGER else MOST_LINES.get(name.partition("/")[0], 300)
        if lines > most:
            too_long[name] = lines
    assert too_long == {}


def test_the_longer_files_are_still_longer() -> None:
    for name in LONGER:
        lines = len((ROOT / name).read_text().splitlines())
        assert lines > MOST_LINES.get(name.partition("/")[0], 300), f"{name} needs no exception any more"


def test_the_floors_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout


def test_a_worker_has_loaded_neither_the_command_line_nor_the_broker(tmp_path: Path) -> None:
    script = tmp_path / "like_a_command.py"
    script.write_text(CHILD)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded & set(PACKAGES) == {"replwire", "replworker"}

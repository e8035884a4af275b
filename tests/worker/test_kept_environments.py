"""Environments that have a name: made once, whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replworker.runtimes.environments import EnvironmentUnavailable, resolve_interpreter

WAIT_S = 20.0
# Stands for a python that is asked for `-m venv PATH`; what it does besides is in the file `do` beside it.
MAKER = """#!/bin/sh
here=$(dirname "$0")
echo made >> "$here/log"
mkdir -p "$3/bin" && cp /bin/true "$3/bin/python"
. "$here/do"
touch "$3/whole"
"""


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that makes environments, where there is no uv."""
    monkeypatch.setattr("replworker.runtimes.environments.find_uv", lambda: None)
    path = tmp_path / "python"
    path.write_text(MAKER)
    path.chmod(0o700)
    (tmp_path / "do").write_text("")
    return path


def made(maker: Path) -> int:
    return (maker.parent / "log").read_text().count("made")


def test_it_is_made_the_first_time_and_never_again(maker: Path, tmp_path: Path) -> None:
    kept = str(tmp_path / "envs")
    for _ in range(2):
        assert resolve_interpreter("@data", str(maker), kept, {}).executable == f"{kept}/data/bin/python"
    assert made(maker) == 1
    assert os.stat(kept).st_mode & 0o777 == 0o700


def test_of_many_that_name_it_at_once_one_makes_it_and_all_get_it_whole(maker: Path, tmp_path: Path) -> None:
    kept = str(tmp_path / "envs")

    def look(_: int) -> bool:
        resolve_interpreter("@data", str(maker), kept, {})
        return Path(kept, "data/whole").exists()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(look, range(8))) == [True] * 8
    assert made(maker) == 1


def test_one_that_cannot_be_made_leaves_nothing_and_may_be_tried_again(maker: Path, tmp_path: Path) -> None:
    kept = str(tmp_path / "envs")
    (tmp_path / "do").write_text("echo no room >&2; exit 1\n")
    with pytest.raises(EnvironmentUnavailable, match="no room"):
        resolve_interpreter("@data", str(maker), kept, {})
    assert not Path(kept, "data").exists()
    (tmp_path / "do").write_text("")
    resolve_interpreter("@data", str(maker), kept, {})
    assert Path(kept, "data/whole").exists()


def test_what_was_left_by_a_worker_that_was_killed_over_it_is_made_anew(maker: Path, tmp_path: Path) -> None:
    kept = str(tmp_path / "envs")
    (tmp_path / "do").write_text(f"touch '{tmp_path}/begun'; exec tail -f /dev/null\n")
    code = (
        "import sys; from replworker.runtimes import environments; environments.find_uv = lambda: None\n"
        "environments.resolve_interpreter('@data', sys.argv[1], sys.argv[2], {})"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, str(maker), kept], start_new_session=True)
    try:
        deadline = time.monotonic() + WAIT_S
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(WAIT_S)
    assert Path(kept, "data/bin/python").exists()
    (tmp_path / "do").write_text("")
    resolve_interpreter("@data", str(maker), kept, {})
    assert Path(kept, "data/whole").exists()
    assert made(maker) == 2

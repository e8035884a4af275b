"""A named environment goes at once, its files later, and nothing else with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replworker.runtimes.environments import list_environments
from replworker.runtimes.removal import delete_set_aside, has_set_aside, set_aside


@pytest.fixture
def envs(tmp_path: Path) -> Path:
    for place in ("data/lib", "other", "@uid%3A7/data"):
        (tmp_path / "envs" / place).mkdir(parents=True)
    (tmp_path / "envs/.data.lock").touch()
    (tmp_path / "envs/data/lib/x.py").write_text("x")
    return tmp_path / "envs"


def test_it_is_gone_at_once_and_its_files_later(envs: Path) -> None:
    set_aside(str(envs), "@data")
    assert list_environments(str(envs)) == {"@other", "@uid:7/data"}
    assert has_set_aside(str(envs))
    assert sorted(os.listdir(envs)) == [".removed", "@uid%3A7", "other"]
    set_aside(str(envs), "@uid:7/data")
    assert delete_set_aside(str(envs)) == []
    assert not has_set_aside(str(envs))
    assert list_environments(str(envs)) == {"@other"}


def test_one_that_is_not_there_and_a_directory_without_any_are_no_failure(envs: Path, tmp_path: Path) -> None:
    set_aside(str(envs), "@none")
    assert delete_set_aside(str(tmp_path / "nothing")) == []
    assert not has_set_aside(str(tmp_path / "nothing"))


def test_symlinks_lead_nowhere(envs: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (envs / "data/lib/link").symlink_to(precious)
    (envs / "link").symlink_to(precious)
    for name in ("@data", "@link"):
        set_aside(str(envs), name)
    assert delete_set_aside(str(envs)) == []
    assert (precious / "file").read_text() == "kept"
    (envs / "@evil").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError):
        set_aside(str(envs), "@evil/precious")
    (envs / ".removed").rmdir()
    (envs / ".removed").symlink_to(precious)
    with pytest.raises(NotADirectoryError):
        set_aside(str(envs), "@other")
    assert (precious / "file").read_text() == "kept"


DEEP = """
import os, sys
os.chdir(sys.argv[1])
for _ in range(3000):
    os.mkdir("a-directory-with-a-long-name"); os.chdir("a-directory-with-a-long-name")
open("file", "w").close()
"""


def test_depth_and_modes_do_not_keep_it(envs: Path) -> None:
    subprocess.run([sys.executable, "-c", DEEP, str(envs / "data")], check=True, timeout=60)
    closed = envs / "data/closed/inner"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    for path in (closed, closed.parent, envs / "data"):
        path.chmod(0)
    set_aside(str(envs), "@data")
    assert delete_set_aside(str(envs)) == []
    assert not has_set_aside(str(envs))


@pytest.mark.needs_root("to become somebody else")
def test_modes_do_not_keep_it_from_an_ordinary_user(envs: Path) -> None:
    for path in (envs.parent, *envs.parent.rglob("*")):
        os.chown(path, 65534, 65534)
    code = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from replworker.runtimes.removal import set_aside, delete_set_aside\n"
        "os.setgid(65534); os.setuid(65534); os.chdir(sys.argv[1])\n"
        "for path in ('envs/data/lib', 'envs/data'): os.chmod(path, 0)\n"
        "set_aside('envs', '@data'); print(delete_set_aside('envs'), os.listdir('envs/.removed'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, ".", *sys.path],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        cwd=envs.parent,
    )
    assert done.stdout == "[] []\n", done.stderr

"""Which paths a runtime needs, and which mounts make a folder a place to work in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from replwire.policy import Policy
from replworker.confine.reach import needs
from replworker.confine.workspace import Mount, Refused, check, hidden, mounts


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an installed python and a virtual environment that builds on it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    base = tmp_path / "pythons/3.12"
    for folder in ("bin", "lib/python3.12"):
        (base / folder).mkdir(parents=True)
    (base / "bin/python3.12").write_text("")
    (base / "bin/python3").symlink_to("python3.12")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "lib/python3.12/site-packages").mkdir(parents=True)
    (venv / "bin/python").symlink_to(base / "bin/python3")
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.12.1\n")
    return tmp_path


def test_an_environment_needs_itself_and_what_it_builds_on(home: Path) -> None:
    found = needs(str(home / "venv/bin/python"))
    assert found.paths == (f"{home}/pythons/3.12", f"{home}/venv")
    assert found.links == ()


def test_packages_that_are_developed_elsewhere_are_read_too(home: Path) -> None:
    (home / "project/src").mkdir(parents=True)
    (home / "venv/lib/python3.12/site-packages/dev.pth").write_text(f"{home}/project/src\nimport os\n{home}\n/\n")
    assert f"{home}/project/src" in needs(str(home / "venv/bin/python")).paths
    assert str(home) not in needs(str(home / "venv/bin/python")).paths


def test_a_lone_link_does_not_bring_the_home_along(home: Path) -> None:
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to("../pythons/3.12/bin/python3")
    found = needs(str(home / "bin/python"))
    assert found.paths == (f"{home}/pythons/3.12",)
    assert found.links == ((f"{home}/bin/python", "../pythons/3.12/bin/python3"),)


def test_a_program_of_the_system_needs_nothing() -> None:
    assert needs("/bin/sh").paths == ()


def test_a_runtime_that_is_missing_is_named(home: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        needs(str(home / "nothing"))
    assert caught.value.filename == str(home / "nothing")


def test_links_that_go_round_are_given_up(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FileNotFoundError, match="too many symlinks"):
        needs(str(tmp_path / "a"))


def test_this_python_is_found() -> None:
    found = needs(sys.executable)
    assert os.path.realpath(sys.executable).startswith((*found.paths, "/usr/"))


# --- workspaces ---


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / ".git/hooks").mkdir(parents=True)
    (root / ".git/config").write_text("")
    return root


def kinds(found: list[Mount], root: Path) -> dict[str, str]:
    return {os.path.relpath(mount.path, root): mount.kind for mount in found}


def test_what_is_protected_is_read_only_and_its_parents_cannot_be_renamed(project: Path) -> None:
    found = kinds(mounts(Policy(), str(project)), project)
    assert found == {".": "writable", ".git": "writable", ".git/hooks": "readable", ".git/config": "readable"}
    assert next(iter(found)) == "."


def test_only_what_exists_is_protected(tmp_path: Path) -> None:
    assert mounts(Policy(), str(tmp_path)) == [Mount(str(tmp_path), "writable")]


def test_a_file_in_the_place_of_a_protected_folders_parent_is_protected_itself(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /elsewhere")
    assert kinds(mounts(Policy(), str(tmp_path)), tmp_path) == {".": "writable", ".git": "readable"}


@pytest.mark.parametrize("name", [".git", ".envrc"])
def test_a_symlink_cannot_be_protected_and_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "real/hooks").mkdir(parents=True)
    (tmp_path / name).symlink_to("real")
    with pytest.raises(Refused, match="symlink"):
        mounts(Policy(), str(tmp_path))


def test_a_read_only_session_needs_no_protection(project: Path) -> None:
    assert mounts(Policy(profile="read-only"), str(project)) == [Mount(str(project), "readable")]


def test_a_runtime_inside_the_folder_stays_read_only(project: Path) -> None:
    (project / "envs/main").mkdir(parents=True)
    found = kinds(mounts(Policy(protected_paths=[]), str(project), [f"{project}/envs/main"]), project)
    assert found == {".": "writable", "envs": "writable", "envs/main": "readable"}


def test_what_is_hidden_is_covered(project: Path) -> None:
    (project / "state/run").mkdir(parents=True)
    (project / "state/key").write_text("")
    policy = Policy(protected_paths=[], hidden_paths=[f"{project}/state/run", f"{project}/state/key", "/elsewhere"])
    found = kinds(mounts(policy, str(project)), project)
    assert found == {".": "writable", "state": "writable", "state/run": "hidden-folder", "state/key": "hidden-file"}


def test_a_symlink_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(Refused, match="symlink"):
        hidden(str(tmp_path / "link"))


@pytest.mark.parametrize("folder", ["/", "/etc", "/usr", "/usr/lib/python3", "/proc", "/home", "/var", "/tmp", "/run"])
def test_system_folders_are_no_workspaces(folder: str) -> None:
    real = folder if os.path.isdir(folder) else "/usr/lib"
    with pytest.raises(Refused, match="system folder"):
        check(Policy(), real, "/nowhere")


def test_a_home_is_no_workspace_unless_it_is_named(tmp_path: Path) -> None:
    ada = tmp_path / "ada"
    (ada / "project").mkdir(parents=True)
    for folder in (ada, tmp_path):
        with pytest.raises(Refused, match="is a home or holds one"):
            check(Policy(), str(folder), str(ada))
    assert check(Policy(), str(ada / "project"), str(ada)) == str(ada / "project")
    assert check(Policy(workspaces=[str(ada)]), str(ada), str(ada)) == str(ada)


def test_a_workspace_is_known_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path / "out")
    with pytest.raises(Refused, match="not in one of the broker's workspaces"):
        check(Policy(workspaces=[f"{tmp_path}/in"]), f"{tmp_path}/in/link", "/nowhere")
    with pytest.raises(Refused, match="is not a folder"):
        check(Policy(), str(tmp_path / "none"), "/nowhere")

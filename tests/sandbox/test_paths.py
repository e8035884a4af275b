"""Paths that a runtime needs, and mounts that make a directory a workspace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from replwire.policy import Policy
from replworker.sandbox.runtime_paths import find_runtime_paths
from replworker.sandbox.workspace import DirectoryRefused, SandboxMount, check_directory, hide, workspace_mounts


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an installed python and a virtual environment that builds on it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    base = tmp_path / "pythons/3.12"
    for directory in ("bin", "lib/python3.12"):
        (base / directory).mkdir(parents=True)
    (base / "bin/python3.12").write_text("")
    (base / "bin/python3.12").chmod(0o755)
    (base / "bin/python3").symlink_to("python3.12")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "lib/python3.12/site-packages").mkdir(parents=True)
    (venv / "bin/python").symlink_to(base / "bin/python3")
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.12.1\n")
    return tmp_path


def test_an_environment_needs_itself_and_what_it_builds_on(home: Path) -> None:
    found = find_runtime_paths(str(home / "venv/bin/python"))
    assert found.paths == (f"{home}/pythons/3.12", f"{home}/venv")
    assert found.links == ()


def test_packages_that_are_developed_elsewhere_are_read_too(home: Path) -> None:
    (home / "project/src").mkdir(parents=True)
    (home / "venv/lib/python3.12/site-packages/dev.pth").write_text(f"{home}/project/src\nimport os\n{home}\n/\n")
    assert f"{home}/project/src" in find_runtime_paths(str(home / "venv/bin/python")).paths
    assert str(home) not in find_runtime_paths(str(home / "venv/bin/python")).paths


def test_packages_that_are_developed_in_the_workspace_can_be_written(home: Path) -> None:
    (home / "project/src").mkdir(parents=True)
    (home / "venv/lib/python3.12/site-packages/dev.pth").write_text(f"{home}/project/src\n{home}\n")
    assert find_runtime_paths(str(home / "venv/bin/python")).read_only == (f"{home}/pythons/3.12", f"{home}/venv")


def test_an_environment_brings_no_directory_along_that_its_session_may_not_read(home: Path) -> None:
    (home / "project/src").mkdir(parents=True)
    (home / ".ssh").mkdir()
    (home / "venv/lib/python3.12/site-packages/dev.pth").write_text(f"{home}/project/src\n{home}/.ssh\n")
    found = find_runtime_paths(str(home / "venv/bin/python"), may_read=lambda path: "/." not in path)
    assert f"{home}/project/src" in found.paths
    assert f"{home}/.ssh" not in found.paths


def test_an_environment_builds_on_a_program_and_on_no_other_file(home: Path) -> None:
    (home / "lies").mkdir()
    (home / "id_rsa").write_text("for nobody")
    (home / "lies/python3").symlink_to(home / "id_rsa")
    (home / "venv/pyvenv.cfg").write_text(f"home = {home}/lies\n")
    assert f"{home}/id_rsa" not in find_runtime_paths(str(home / "venv/bin/python")).paths


def test_a_lone_link_does_not_bring_the_home_along(home: Path) -> None:
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to("../pythons/3.12/bin/python3")
    found = find_runtime_paths(str(home / "bin/python"))
    assert found.paths == (f"{home}/pythons/3.12",)
    assert found.links == ((f"{home}/bin/python", "../pythons/3.12/bin/python3"),)


def test_a_program_of_the_system_needs_nothing() -> None:
    assert find_runtime_paths("/bin/sh").paths == ()


def test_a_runtime_that_is_missing_is_named(home: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        find_runtime_paths(str(home / "nothing"))
    assert caught.value.filename == str(home / "nothing")


def test_links_that_go_round_are_given_up(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FileNotFoundError, match="too many symlinks"):
        find_runtime_paths(str(tmp_path / "a"))


def test_this_python_is_found() -> None:
    found = find_runtime_paths(sys.executable)
    assert os.path.realpath(sys.executable).startswith((*found.paths, "/usr/"))


# --- workspaces ---


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / ".git/hooks").mkdir(parents=True)
    (root / ".git/config").write_text("")
    (root / ".git/HEAD").write_text("ref: refs/heads/main")
    return root


def kinds(found: list[SandboxMount], root: Path) -> dict[str, str]:
    return {os.path.relpath(mount.path, root): mount.kind for mount in found}


def test_what_is_protected_is_read_only_and_its_parents_cannot_be_renamed(project: Path) -> None:
    found = kinds(workspace_mounts(Policy(), str(project)), project)
    assert found == {".": "writable", ".git": "writable", ".git/hooks": "readable", ".git/config": "readable"}
    assert next(iter(found)) == "."


def test_only_what_exists_is_protected(tmp_path: Path) -> None:
    assert workspace_mounts(Policy(), str(tmp_path)) == [SandboxMount(str(tmp_path), "writable")]


def test_a_file_in_the_place_of_a_protected_directories_parent_is_protected_itself(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /elsewhere")
    assert kinds(workspace_mounts(Policy(), str(tmp_path)), tmp_path) == {".": "writable", ".git": "readable"}


@pytest.mark.parametrize("name", [".git", ".envrc"])
def test_a_symlink_cannot_be_protected_and_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "real/hooks").mkdir(parents=True)
    (tmp_path / name).symlink_to("real")
    with pytest.raises(DirectoryRefused, match="symlink"):
        workspace_mounts(Policy(), str(tmp_path))


def test_a_read_only_session_needs_no_protection(project: Path) -> None:
    assert workspace_mounts(Policy(profile="read-only"), str(project)) == [SandboxMount(str(project), "readable")]


def test_a_runtime_inside_the_directory_stays_read_only(project: Path) -> None:
    (project / "envs/main").mkdir(parents=True)
    found = kinds(workspace_mounts(Policy(protected_paths=[]), str(project), [f"{project}/envs/main"]), project)
    assert found == {".": "writable", "envs": "writable", "envs/main": "readable"}


def test_what_is_hidden_is_covered(project: Path) -> None:
    (project / "state/run").mkdir(parents=True)
    (project / "state/key").write_text("")
    policy = Policy(protected_paths=[], hidden_paths=[f"{project}/state/run", f"{project}/state/key", "/elsewhere"])
    found = kinds(workspace_mounts(policy, str(project)), project)
    assert found == {".": "writable", "state": "writable", "state/run": "hidden-directory", "state/key": "hidden-file"}


def test_a_symlink_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(DirectoryRefused, match="symlink"):
        hide(str(tmp_path / "link"))


@pytest.mark.parametrize(
    "directory", ["/", "/etc", "/usr", "/usr/lib/python3", "/proc", "/home", "/var", "/tmp", "/run"]
)
def test_system_directories_are_no_workspaces(directory: str) -> None:
    real = directory if os.path.isdir(directory) else "/usr/lib"
    with pytest.raises(DirectoryRefused, match="system directory"):
        check_directory(Policy(), real, "/nowhere")


def test_a_home_is_no_workspace_unless_it_is_named(tmp_path: Path) -> None:
    ada = tmp_path / "ada"
    (ada / "project").mkdir(parents=True)
    for directory in (ada, tmp_path):
        with pytest.raises(DirectoryRefused, match="is or contains a home directory"):
            check_directory(Policy(), str(directory), str(ada))
    assert check_directory(Policy(), str(ada / "project"), str(ada)) == str(ada / "project")
    assert check_directory(Policy(workspaces=[str(ada)]), str(ada), str(ada)) == str(ada)


@pytest.mark.parametrize("name", [".ssh", ".config/systemd/user", ".local/bin", "bin"])
def test_what_a_home_keeps_for_its_owner_is_no_workspace_unless_it_is_named(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    (place / "work").mkdir(parents=True)
    for directory in (place, place / "work"):
        with pytest.raises(DirectoryRefused, match="settings or programs of a home"):
            check_directory(Policy(), str(directory), str(tmp_path))
        assert check_directory(Policy(workspaces=[str(place)]), str(directory), str(tmp_path)) == str(directory)
        with pytest.raises(DirectoryRefused, match="settings or programs of a home"):
            check_directory(Policy(workspaces=[str(tmp_path)]), str(directory), str(tmp_path))


def test_what_programs_of_the_machine_obey_is_no_workspace_unless_it_is_named() -> None:
    for directory in ("/usr/local/bin", "/usr/lib", "/var/lib", "/var/spool"):
        with pytest.raises(DirectoryRefused, match="system directory"):
            check_directory(Policy(), directory, "/nowhere")
        with pytest.raises(DirectoryRefused, match="system directory"):
            check_directory(Policy(workspaces=["/"]), directory, "/nowhere")
        assert check_directory(Policy(workspaces=[directory]), directory, "/nowhere") == directory
    assert check_directory(Policy(workspaces=["/usr/local"]), "/usr/local/bin", "/nowhere") == "/usr/local/bin"


def test_sources_and_a_home_of_a_service_are_places_to_work_in_all_the_same() -> None:
    assert check_directory(Policy(), "/usr/src", "/nowhere") == "/usr/src"
    assert (
        check_directory(Policy(), "/var/lib/dpkg/info", "/var/lib/dpkg") == "/var/lib/dpkg/info"
    )  # as if that were its home
    with pytest.raises(DirectoryRefused, match="system directory"):
        check_directory(Policy(), "/usr/lib/python3", "/usr/lib")


def test_what_agents_check_out_in_a_home_is_a_place_to_work_in(tmp_path: Path) -> None:
    tree = tmp_path / ".codex/worktrees/1f/project"
    (tree / ".git").mkdir(parents=True)
    assert check_directory(Policy(), str(tree), str(tmp_path)) == str(tree)
    for directory in (tmp_path / ".codex", tmp_path / ".codex/worktrees"):
        with pytest.raises(DirectoryRefused, match="settings or programs of a home"):
            check_directory(Policy(), str(directory), str(tmp_path))


@pytest.mark.parametrize("name", [".git/hooks", ".git/hooks/deep", ".claude", ".claude/commands"])
def test_what_is_protected_in_a_project_is_no_workspace_to_write(project: Path, name: str) -> None:
    (project / name).mkdir(parents=True, exist_ok=True)
    with pytest.raises(DirectoryRefused, match="is protected"):
        check_directory(Policy(), f"{project}/{name}", "/nowhere")
    assert check_directory(Policy(profile="read-only"), f"{project}/{name}", "/nowhere") == f"{project}/{name}"
    assert (
        check_directory(Policy(workspaces=[f"{project}/{name}"]), f"{project}/{name}", "/nowhere")
        == f"{project}/{name}"
    )


def test_a_directory_on_the_way_to_what_is_protected_has_it_read_only(project: Path) -> None:
    git = project / ".git"
    assert kinds(workspace_mounts(Policy(), check_directory(Policy(), str(git), "/nowhere")), git) == {
        ".": "writable",
        "hooks": "readable",
        "config": "readable",
    }


def test_a_repository_inside_of_what_is_protected_is_a_project_of_its_own(project: Path) -> None:
    tree = project / ".claude/worktrees/one"
    (tree / "src").mkdir(parents=True)
    (tree / ".git").write_text("gitdir: ../../../.git/worktrees/one")
    assert check_directory(Policy(), str(tree / "src"), "/nowhere") == str(tree / "src")


def test_a_protected_path_of_the_machine_and_all_in_it_is_no_workspace_to_write(project: Path) -> None:
    (project / "golden/data").mkdir(parents=True)
    policy = Policy(protected_paths=[f"{project}/golden"])
    with pytest.raises(DirectoryRefused, match="is protected"):
        check_directory(policy, f"{project}/golden/data", "/nowhere")
    assert kinds(workspace_mounts(policy, str(project)), project) == {".": "writable", "golden": "readable"}


def test_a_hidden_directory_and_all_in_it_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "state/run").mkdir(parents=True)
    for directory in (tmp_path / "state", tmp_path / "state/run"):
        with pytest.raises(DirectoryRefused, match="hidden from sessions"):
            check_directory(
                Policy(hidden_paths=[f"{tmp_path}/state"], workspaces=[str(directory)]), str(directory), "/nowhere"
            )


def test_what_lies_in_a_hidden_directory_is_hidden_with_it(project: Path) -> None:
    (project / "state/run").mkdir(parents=True)
    policy = Policy(protected_paths=[], hidden_paths=[f"{project}/state/run", f"{project}/state"])
    assert kinds(workspace_mounts(policy, str(project)), project) == {".": "writable", "state": "hidden-directory"}


def test_a_workspace_is_known_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in/link").symlink_to(tmp_path / "out")
    with pytest.raises(DirectoryRefused, match="not in one of the broker's workspaces"):
        check_directory(Policy(workspaces=[f"{tmp_path}/in"]), f"{tmp_path}/in/link", "/nowhere")
    with pytest.raises(DirectoryRefused, match="is not a directory"):
        check_directory(Policy(), str(tmp_path / "none"), "/nowhere")

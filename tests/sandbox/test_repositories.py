"""A session in a repository: git works there, and what the owner's git and tools run later is none of the session's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end, uid_of
from kit import Wire, wait_until
from replctl.mcp.clients import CLIENTS
from replwire.policy import Policy
from replwire.protected import PROTECTED
from replworker.sandbox.placeholders import create_placeholders, remove_placeholders
from replworker.sandbox.report import SandboxReport
from replworker.sandbox.workspace import workspace_mounts

WORKS = (
    "git status",
    "git log",
    "git diff",
    "echo 2 >> f; git add f",
    "git commit -qm two",
    "git branch side",
    "git checkout -q -b work",
    "echo 3 >> f && git commit -qam three",
    "git checkout -q main",
    "echo 4 > g && git add g && git commit -qm four",
    "git merge -q work -m merged",
    "git switch -q side",
    "git rebase -q main",
    "echo 5 >> f; git stash -q",
    "git stash pop -q",
    "git checkout -q f",
    "git tag v1",
    "git gc -q",
    "git reset -q --hard HEAD~1",
    "git fsck",
    "git commit -q --allow-empty --amend -m again",
    "git submodule status",
    "git worktree list",
    "git notes add -m x",
)
REFUSED = (
    "git config core.fsmonitor x",
    "git remote add o ./x",
    "git worktree add ../tree",
    "git -C sub commit --allow-empty -m x",
    "git submodule update",
    "git init .",
    "mv .git other",
    "mv sub other",
    "rm -f sub/.git",
    "mkdir .git/hooks/x",
    "echo x > .git/commondir",
    "rm .git/commondir",
    "mv .git/worktrees .git/x",
    "touch .git/worktrees/x",
)


class Repository:
    """A repository with a submodule, and its owner's git."""

    def __init__(self, directory: Path, uid: int) -> None:
        self.directory, self.path, self._uid = directory, directory / "project", uid
        os.chown(directory, uid, uid)
        for name in ("lib", "project"):
            self.git("init", "-q", "-b", "main", name, at=directory)
            self.git("config", "user.email", "a@b", at=directory / name)
            self.git("config", "user.name", "Ada", at=directory / name)
            (directory / name / "f").write_text("1\n")
            os.chown(directory / name / "f", uid, uid)
            self.git("add", ".", at=directory / name)
            self.git("commit", "-qm", "one", at=directory / name)
        self.git("submodule", "--quiet", "add", str(directory / "lib"), "sub")
        self.git("commit", "-qm", "sub")

    def git(self, *words: str, at: Path | None = None) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.directory)}
        command = ["git", "-c", "protocol.file.allow=always", *words]
        done = subprocess.run(
            command,
            cwd=at or self.path,
            env=env,
            user=self._uid,
            group=self._uid,
            extra_groups=[] if os.getuid() == 0 else None,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        return done.stdout + done.stderr


@pytest.fixture
def repository(who: str) -> Iterator[Repository]:
    directory = Path(tempfile.mkdtemp(prefix="rpl-git-", dir="/tmp"))
    yield Repository(directory, uid_of(who))
    shutil.rmtree(directory)


def enter(wire: Wire, directory: Path, name: str = "s") -> None:
    opened = wire.ask("new-session", name=name, runtime="bash", cwd=str(directory))
    assert opened.status == ["done"], opened.messages


def test_git_works_in_a_session(wire: Wire, repository: Repository) -> None:
    enter(wire, repository.path)
    for command in WORKS:
        answer = wire.run(command)
        assert answer.value == "0", (command, answer.messages)
    assert "again" in repository.git("log", "-1", "--format=%s")


def test_what_git_obeys_later_is_refused_and_as_it_was(wire: Wire, repository: Repository) -> None:
    kept = repository.path / ".git/config"
    before = kept.read_text()
    enter(wire, repository.path)
    for command in REFUSED:
        answer = wire.run(command)
        assert answer.value not in (None, "0"), (command, answer.messages)
    assert kept.read_text() == before
    assert (repository.path / "sub/.git").is_file()
    assert repository.git("status", "--short") == ""


def test_a_repository_that_is_protected_as_a_whole_is_read_and_not_written(
    who: str, repository: Repository, report: SandboxReport
) -> None:
    del report
    broker = begin(who, 'sandbox.protected-paths=[".git"]')
    try:
        with broker.wire() as wire:
            enter(wire, repository.path)
            assert wire.run("git log > /dev/null && git diff && git --no-optional-locks status -s").value == "0"
            assert wire.run("echo 2 >> f; git add f").value != "0"
            repository.git("config", "user.name", "Eve")  # puts another file in the place of the first
            assert wire.run("echo x >> .git/config").value != "0"
    finally:
        end(broker)


def test_what_holds_names_goes_with_the_last_session_and_not_before(wire: Wire, repository: Repository) -> None:
    before = sorted(os.listdir(repository.path)), sorted(os.listdir(repository.path / ".git"))
    enter(wire, repository.path, "s")
    enter(wire, repository.path, "t")
    assert (repository.path / ".cursor").is_dir()
    assert repository.git("status", "--short") == ""
    wire.ask("close", session="s")
    wire.ask("new-session", name="u")  # something else, so that the first one's end is over
    assert wire.run("mkdir -p .cursor && touch .cursor/mcp.json", session="t").value != "0"
    assert (repository.path / ".git/commondir").exists()
    wire.ask("close", session="t")
    now = lambda: (sorted(os.listdir(repository.path)), sorted(os.listdir(repository.path / ".git")))  # noqa: E731
    wait_until(lambda: now() == before, "what was held is gone")


def test_what_a_killed_broker_held_goes_with_the_next_start(who: str, repository: Repository) -> None:
    broker = begin(who)
    try:
        with broker.wire() as wire:
            enter(wire, repository.path)
        broker.kill()
        assert (repository.path / ".cursor").is_dir()
        broker.start()
        wait_until(lambda: not (repository.path / ".cursor").exists(), "it is gone")
        assert not (repository.path / ".git/commondir").exists()
    finally:
        end(broker)


def test_a_directory_without_a_repository_gets_none_and_a_session_may_make_one(wire: Wire, who: str) -> None:
    directory = Path(tempfile.mkdtemp(prefix="rpl-plain-", dir="/tmp"))
    os.chown(directory, uid_of(who), uid_of(who))
    try:
        enter(wire, directory)
        assert not (directory / ".git").exists()
        assert wire.run("git init -q .").value == "0"
    finally:
        shutil.rmtree(directory)


def test_what_the_owner_put_there_meanwhile_is_not_taken_away(tmp_path: Path) -> None:
    root, records = tmp_path / "project", str(tmp_path / "held")
    (root / ".git").mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main")
    for fd in create_placeholders(Policy(), str(root), records):
        os.close(fd)
    (root / ".cursor/mcp.json").write_text("{}")
    (root / ".git/config.worktree").write_text("[core]")
    remove_placeholders(records)
    assert sorted(os.listdir(root)) == [".cursor", ".git"]
    assert sorted(os.listdir(root / ".git")) == ["HEAD", "config.worktree"]
    assert os.listdir(records) == []


def test_whatever_install_writes_into_a_project_is_protected() -> None:
    for client in CLIENTS.values():
        assert client.project is None or client.project.partition("/")[0] in PROTECTED


def test_the_place_of_a_repository_that_is_none_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert [mount.kind for mount in workspace_mounts(Policy(), str(tmp_path))] == ["writable", "readable"]


def test_submodules_are_found_within_the_directory_and_nowhere_else(tmp_path: Path) -> None:
    for name in ("project/one", "project/two", "project/full", "outside"):
        (tmp_path / name).mkdir(parents=True)
    root = tmp_path / "project"
    (root / "one/.git").write_text("gitdir: ../.git/modules/one")
    (root / "full/code").write_text("")
    (root / "link").symlink_to(tmp_path / "outside")
    paths = ("one", "two", "full", "link", "../outside", "/etc", "none", ".")
    (root / ".gitmodules").write_text("".join(f'[submodule "{path}"]\n\tpath = {path}\n' for path in paths))
    found = {os.path.relpath(mount.path, root): mount.kind for mount in workspace_mounts(Policy(), str(root))}
    assert found == {".": "writable", "one": "writable", "one/.git": "readable", "two": "readable"}

"""The python harness: files of a directory that are kept, brought back and compared."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replworker.runtimes.python.replharness.file_changes import compare
from replworker.runtimes.python.replharness.file_restore import restore
from replworker.runtimes.python.replharness.file_tree import TreeWalk
from replworker.runtimes.python.replharness.file_versions import FileVersions

MIB = 1 << 20
Picture = dict[str, tuple[int, object]]  # mode and content of each path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def begin(root: Path, most: int = 16 * MIB) -> FileVersions:
    return FileVersions(os.fsencode(root), most)


def picture(root: Path) -> Picture:
    """Return the entries of a directory, without `.git`."""
    found: Picture = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        mode = path.lstat().st_mode
        if ".git" in name.split("/"):
            continue
        if stat.S_ISLNK(mode):
            found[name] = 0, os.readlink(path)
        else:
            found[name] = stat.S_IMODE(mode), None if stat.S_ISDIR(mode) else path.read_bytes()
    return found


def change_something(root: Path, rng: random.Random) -> None:
    """Make one random change, as a program does in its directory."""
    names = ["a", "b", "c/d", "c/e", "c/f/g", "h/i", "é", "j k"]
    path = root / rng.choice(names)
    above = [each for each in reversed(path.parents) if each.is_relative_to(root) and each != root]
    for each in above:  # never through a symlink: it may lead outside
        if each.is_symlink() or (each.exists() and not each.is_dir()):
            each.unlink()
            break
    what = rng.choice(["write", "write", "append", "delete", "link", "directory", "mode", "delete above", "same size"])
    if what in ("write", "append", "link", "directory", "same size"):
        path.parent.mkdir(parents=True, exist_ok=True)
    present = os.path.lexists(path)
    if what in ("write", "append", "same size") and (not present or (path.is_file() and not path.is_symlink())):
        text = b"x" * rng.choice([0, 1, 10]) if what != "same size" else bytes([rng.randrange(256)]) * 10
        with open(path, "ab" if what == "append" else "wb") as file:
            file.write(text)
    elif what == "mode" and present and not path.is_symlink():
        path.chmod(rng.choice([0o644, 0o600, 0o755]) | (0o700 if path.is_dir() else 0))
    elif what == "delete above" and path.parent != root and path.parent.is_dir():
        shutil.rmtree(path.parent)
        path.parent.symlink_to(root.parent / "outside")
    elif present and (path.is_symlink() or not path.is_dir()):
        path.unlink()
    elif present:
        shutil.rmtree(path)
    elif what == "link":
        path.symlink_to(rng.choice(["a", "../outside/file", "missing"]))
    elif what == "directory":
        path.mkdir()


@pytest.mark.parametrize("seed", range(8))
def test_any_changes_are_undone_exactly_and_nothing_outside_changes(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    outside = root.parent / "outside"
    (outside / "f").mkdir(parents=True)
    for name in ("d", "e", "file", "f/g", "i"):
        (outside / name).write_text("theirs")
    theirs = picture(outside)
    versions, known = begin(root), {}
    for number in range(1, 7):
        for _ in range(rng.randrange(12)):
            change_something(root, rng)
        assert versions.keep(number, known.keys()) == []
        known[number] = picture(root)
    for _ in range(12):
        for _ in range(rng.randrange(8)):
            change_something(root, rng)
        number = rng.choice(list(known))
        assert restore(versions, number) == []
        assert picture(root) == known[number]
        assert compare(versions, number, 1000)[0] == []
        assert picture(outside) == theirs


def test_a_file_that_did_not_change_is_not_touched(root: Path) -> None:
    for name in ("same", "touched", "changed"):
        (root / name).write_text(name)
    versions = begin(root)
    versions.keep(1, [])
    inodes = {name: (root / name).stat().st_ino for name in ("same", "touched", "changed")}
    os.utime(root / "touched", (1, 1))
    (root / "changed").write_text("other")
    assert restore(versions, 1) == []
    now = {name: (root / name).stat().st_ino for name in inodes}
    assert [name for name in inodes if now[name] != inodes[name]] == ["changed"]


def test_a_change_within_one_tick_of_the_clock_is_seen(root: Path) -> None:
    versions = begin(root)
    for number in range(1, 30):
        (root / "a").write_bytes(b"%02d" % number)
        versions.keep(number, range(number))
    for number in (1, 15, 29):
        restore(versions, number)
        assert (root / "a").read_bytes() == b"%02d" % number


def test_the_users_own_git_is_never_read_or_written(root: Path) -> None:
    for where in (root, root / "nested"):
        (where / ".git").mkdir(parents=True)
        (where / ".git" / "HEAD").write_text("before")
        (where / "file").write_text("before")
    versions = begin(root)
    versions.keep(1, [])
    for where in (root, root / "nested"):
        (where / ".git" / "HEAD").write_text("after")
        (where / ".git" / "new").write_text("after")
        (where / "file").write_text("after")
    assert restore(versions, 1) == []
    for where in (root, root / "nested"):
        assert (where / ".git" / "HEAD").read_text() == (where / ".git" / "new").read_text() == "after"
        assert (where / "file").read_text() == "before"


def test_what_the_project_ignores_stays_as_it_is(root: Path) -> None:
    (root / ".gitignore").write_text("build/\n*.log\n!keep.log\n")
    (root / "sub").mkdir()
    (root / "sub" / ".gitignore").write_text("/only-here\n")
    versions = begin(root)
    versions.keep(1, [])
    for name in ("build/out", "a.log", "keep.log", "sub/only-here", "only-here", "new/build/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("new")
    (root / ".gitignore").write_text("*\n")
    assert {path for path, _ in compare(versions, 1, 0)[0]} == {".gitignore"}
    assert restore(versions, 1) == []
    left = {name for name, (_, content) in picture(root).items() if content == b"new"}
    assert left == {"build/out", "a.log", "sub/only-here", "new/build/x"}


def test_a_directory_swapped_for_a_symlink_leads_nowhere(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("theirs")
    (root / "sub").mkdir()
    (root / "sub" / "file").write_text("ours")
    (root / "sub" / "more").write_text("ours")
    versions = begin(root)
    versions.keep(1, [])
    shutil.rmtree(root / "sub")
    (root / "sub").symlink_to(outside)
    changes, patch, _ = compare(versions, 1, 1000)
    assert changes == [("sub", "modified"), ("sub/file", "deleted"), ("sub/more", "deleted")]
    assert "theirs" not in patch
    versions.keep(2, [1])
    assert restore(versions, 1) == []
    assert (root / "sub" / "file").read_text() == "ours"
    assert not (root / "sub").is_symlink()
    assert restore(versions, 2) == []
    assert os.readlink(root / "sub") == str(outside)
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"file": "theirs"}


def test_a_root_that_is_a_symlink_is_not_followed(root: Path, tmp_path: Path) -> None:
    versions = begin(root)
    versions.keep(1, [])
    root.rename(tmp_path / "away")
    (tmp_path / "outside").mkdir()
    root.symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        restore(versions, 1)


def test_special_files_are_said_and_left_alone(root: Path) -> None:
    os.mkfifo(root / "pipe")
    versions = begin(root)
    assert versions.keep(1, []) == ["files: sockets, pipes and devices are not kept: pipe"]
    assert restore(versions, 1) == []
    assert stat.S_ISFIFO((root / "pipe").lstat().st_mode)
    (root / "pipe").unlink()
    assert restore(versions, 1) == ["files: what was not kept is not restored: pipe"]


def test_what_exceeds_the_bound_is_said_and_not_deleted(root: Path) -> None:
    (root / "small").write_text("small")
    (root / "large").write_bytes(bytes(2 * MIB))
    versions = begin(root, MIB)
    kept = versions.keep(1, [])
    assert kept == ["files: files beyond the limit (max-checkpoint-file-bytes) are not kept: large"]
    (root / "large").write_text("other")
    (root / "small").write_text("other")
    assert restore(versions, 1) == ["files: what was not kept is not restored: large"]
    assert ((root / "large").read_text(), (root / "small").read_text()) == ("other", "small")


def test_contents_of_dropped_checkpoints_make_room(root: Path) -> None:
    versions = begin(root, MIB)
    for number in range(1, 20):
        (root / "a").write_bytes(bytes([number]) * 300_000)
        assert versions.keep(number, [number - 1]) == []
    assert restore(versions, 18) == []
    assert (root / "a").read_bytes()[:1] == b"\x12"
    used = {id(each.content): each.content for files in versions.lists.values() for each in files.values()}
    assert len(used) <= 2


def test_nothing_is_left_of_the_contents(root: Path) -> None:
    (root / "a").write_text("a")
    versions = begin(root)
    versions.keep(1, [])
    assert [path.name for path in root.iterdir()] == ["a"]
    before = len(os.listdir("/proc/self/fd"))
    del versions
    assert len(os.listdir("/proc/self/fd")) == before - 1


@pytest.mark.parametrize("replaced", [False, True])
def test_a_session_that_closes_the_descriptor_is_told_and_loses_no_file(root: Path, replaced: bool) -> None:
    (root / "a").write_text("a")
    versions = begin(root)
    versions.keep(1, [])
    fd = versions._content._fd
    other = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    if replaced:
        os.dup2(other, fd)
    os.close(other)
    (root / "a").write_text("b")
    assert len(restore(versions, 1)) == 1
    assert [(path.name, path.read_text()) for path in root.iterdir()] == [("a", "b")]
    if replaced:
        os.close(fd)


def test_a_patch_shows_texts_and_is_bounded(root: Path) -> None:
    (root / "text").write_text("one\ntwo\n")
    (root / "bytes").write_bytes(b"\0")
    (root / "run").write_text("x")
    (root / "gone").write_text("bye")
    time.sleep(0.05)  # the signatures become sure
    versions = begin(root)
    versions.keep(1, [])
    (root / "text").write_text("one\n2")
    (root / "bytes").write_bytes(b"\0\1")
    (root / "run").chmod(0o755)
    (root / "gone").unlink()
    (root / "new").write_text("new\n")
    changes, patch, truncated = compare(versions, 1, 10_000)
    kinds = {"bytes": "modified", "gone": "deleted", "new": "added", "run": "mode", "text": "modified"}
    assert (dict(changes), truncated) == (kinds, False)
    assert "-two\n+2\n\\ No newline" in patch
    assert "+++ b/new\n@@ -0,0 +1 @@\n+new\n" in patch
    assert "bytes" not in patch
    short, truncated = compare(versions, 1, 20)[1:]
    assert (len(short), truncated) == (20, True)


# --- rules ---

PATTERNS = st.lists(
    st.text(st.sampled_from("ab*?/!\\[]-#. "), min_size=1, max_size=7)
    | st.sampled_from(["**/a", "a/**", "a/**/b", "*.a"]),
    max_size=4,
)
PATHS = [f"{top}{sep}{name}" for top in ("a", "b", "a.a") for sep in ("/", "/ab/") for name in ("a", "b", "a.a", "#b")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for path in (*PATHS, "ab", "[a]"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    return root


@pytest.mark.needs_program("git")
@given(PATTERNS, PATTERNS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rules_mean_what_they_mean_to_git(repository: Path, above: list[str], inside: list[str]) -> None:
    (repository / ".gitignore").write_text("\n".join(above))
    (repository / "a" / ".gitignore").write_text("\n".join(inside))
    listed = subprocess.run(
        ["git", "-C", str(repository), "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"],
        capture_output=True,
        check=True,
    ).stdout
    found: list[bytes] = []

    def visit(_: int, __: bytes, path: bytes, status: os.stat_result) -> None:
        if not stat.S_ISDIR(status.st_mode):
            found.append(path)

    TreeWalk(visit).run(os.fsencode(repository))
    assert sorted(found) == sorted(filter(None, listed.split(b"\0")))


def test_a_pattern_made_to_be_slow_is_not(root: Path) -> None:
    (root / ".gitignore").write_text("a*" * 30 + "b\n" + "*a" * 60 + "\n" + "**/" * 40 + "b\n" + "[" * 500 + "\n")
    (root / ("a" * 200)).write_text("")
    begun = time.process_time()
    begin(root).keep(1, [])
    assert time.process_time() - begun < 5

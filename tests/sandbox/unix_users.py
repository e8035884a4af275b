"""`python unix_users.py COMMAND...`: a command in a mount namespace in which this machine has users ada, bob and a group.

And for tests in the same process: connections that the kernel knows as another user's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from kit import LineWire

ADA, BOB, EVE = 1001, 1002, 1003  # eve has a number and no name
TEAM = 1500  # a group with ada in it
PEOPLE = str(Path(__file__))
_PASSWD = "root:x:0:0::/root:/bin/sh\nada:x:1001:1001::/home/ada:/bin/sh\nbob:x:1002:1002::/home/bob:/bin/sh\n"
_GROUP = "root:x:0:\nada:x:1001:\nbob:x:1002:\nteam:x:1500:ada\n"


@contextmanager
def user(uid: int, groups: Sequence[int] = ()) -> Iterator[None]:
    """Change this process's effective user for a while: connections made meanwhile are that user's."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def connect_as(url: str, uid: int, groups: Sequence[int] = ()) -> LineWire:
    """A line connection of another user's."""
    with user(uid, groups):
        return LineWire(url)


def make_directory(parent: Path, name: str, owner: int, mode: int = 0o700, group: int | None = None) -> Path:
    """A directory of somebody's."""
    (path := parent / name).mkdir()
    return give_to(path, owner, mode, group)


def file(path: Path, owner: int, mode: int = 0o600, text: str = "for its owner") -> Path:
    """A file of somebody's."""
    path.write_text(text)
    return give_to(path, owner, mode)


def give_to(path: Path, owner: int, mode: int, group: int | None = None) -> Path:
    """Give a path to another user."""
    os.chown(path, owner, owner if group is None else group)
    path.chmod(mode)
    return path


def _with_people() -> None:
    from replworker.sandbox import mounts

    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.make_private()
    for path, text in (("/etc/passwd", _PASSWD), ("/etc/group", _GROUP)):
        with tempfile.NamedTemporaryFile("w") as made:
            made.write(text)
            made.flush()
            os.chmod(made.name, 0o644)
            mounts.attach(mounts.clone(mounts.open_strictly(made.name)), path)


if __name__ == "__main__":
    _with_people()
    os.execv(sys.argv[1], sys.argv[1:])

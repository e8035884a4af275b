"""Host identity of sessions. User code never runs with the host's root credentials."""

from __future__ import annotations

import os

FIRST_UID = 61_000  # above users and services, below systemd's dynamic range
UIDS = 1_000
INSIDE_UID = 1_000  # its uid as seen inside
NAME = "repl"
HOME = "/tmp/home"


def uid_for(slot: int) -> int:
    """Return the host uid (and gid) of a root broker's session; each slot has its own, as long as there are enough."""
    return FIRST_UID + slot % UIDS


def drop_to_user(uid: int) -> None:
    """Drop root permanently. The kernel clears PR_SET_PDEATHSIG, so the caller has to set it again."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def passwd() -> str:
    """Return the text of /etc/passwd."""
    users = (
        "root:x:0:0:root:/:/bin/false",
        f"{NAME}:x:{INSIDE_UID}:{INSIDE_UID}::{HOME}:/bin/bash",
        "nobody:x:65534:65534::/:/bin/false",
    )
    return "\n".join(users) + "\n"


def group() -> str:
    """Return the text of /etc/group."""
    return f"root:x:0:\n{NAME}:x:{INSIDE_UID}:\nnogroup:x:65534:\n"

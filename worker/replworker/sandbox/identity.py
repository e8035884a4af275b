"""Who a session is to the host. Code never runs with the host's root credentials, whatever else is around it."""

from __future__ import annotations

import os

FIRST_UID = 61_000  # above people and services, below what systemd hands out by itself
UIDS = 1_000
INSIDE_UID = 1_000  # what it sees itself as
NAME = "repl"
HOME = "/tmp/home"


def uid_for(slot: int) -> int:
    """The host's user (and group) of a session of a root broker: each has its own, as long as there are enough."""
    return FIRST_UID + slot % UIDS


def drop_to_user(uid: int) -> None:
    """Give up root, for good. The caller has to ask again for PR_SET_PDEATHSIG: the kernel forgets it here."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def passwd() -> str:
    """Text of /etc/passwd."""
    users = (
        "root:x:0:0:root:/:/bin/false",
        f"{NAME}:x:{INSIDE_UID}:{INSIDE_UID}::{HOME}:/bin/bash",
        "nobody:x:65534:65534::/:/bin/false",
    )
    return "\n".join(users) + "\n"


def group() -> str:
    """Text of /etc/group."""
    return f"root:x:0:\n{NAME}:x:{INSIDE_UID}:\nnogroup:x:65534:\n"

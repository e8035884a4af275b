"""Temporary use of another user's file system rights in the calling thread."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

_QUERY = -1  # an invalid id: the call returns the current one
_libc = ctypes.CDLL(None)


class Rights(NamedTuple):
    """A host user with its groups, as compared by the kernel."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


NO_RIGHTS = Rights(65534, 65534)


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights of a session's owner.

    `rights` None: those of the broker's own user; `directories` empty: wherever the policy permits.
    """

    identity: str
    rights: Rights | None = None
    directories: tuple[str, ...] = ()
    home: str | None = None  # of that user

    @property
    def is_restricted(self) -> bool:
        """True if the owner has fewer rights than the broker's user."""
        return self.rights is not None or bool(self.directories)


@contextmanager
def acting_as(rights: Rights | None) -> Iterator[None]:
    """Access the file system as this user.

    Only the calling thread's file system ids change: signals and tracing of the process still require root, and other
    threads are unaffected. The kernel clears PR_SET_PDEATHSIG.

    Raises:
        OSError: the rights cannot be assumed
    """
    if rights is None:
        yield
        return
    groups, gid, uid = os.getgroups(), _libc.setfsgid(_QUERY), _libc.setfsuid(_QUERY)
    try:
        os.setgroups(rights.groups)
        _set_and_check(_libc.setfsgid, rights.gid)
        _set_and_check(_libc.setfsuid, rights.uid)
        yield
    finally:
        _set_and_check(_libc.setfsuid, uid)
        _set_and_check(_libc.setfsgid, gid)
        os.setgroups(groups)


def _set_and_check(call: Callable[[int], int], wanted: int) -> None:
    """Set an id and verify it, because these calls report no errors."""
    call(ctypes.c_int(wanted & 0xFFFF_FFFF).value)
    if call(_QUERY) & 0xFFFF_FFFF != wanted & 0xFFFF_FFFF:
        raise OSError(1, f"cannot assume the rights of user {wanted}")

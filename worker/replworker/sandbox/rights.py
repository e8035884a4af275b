"""Opening with another user's rights, in the thread that asks: what root may do otherwise is left aside meanwhile."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

_QUERY = -1  # an id that none has: the call says which one is in force
_libc = ctypes.CDLL(None)


class Rights(NamedTuple):
    """A host user with its groups, as the kernel compares them."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


NOBODY = Rights(65534, 65534)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a session's owner may have opened for it. `rights` None: as much as the broker's own user; `directories`
    empty: wherever the policy lets a session work."""

    identity: str
    rights: Rights | None = None
    directories: tuple[str, ...] = ()
    home: str | None = None  # of that user

    @property
    def is_restricted(self) -> bool:
        """Whether it is less than the broker's own user has."""
        return self.rights is not None or bool(self.directories)


@contextmanager
def acting_as(rights: Rights | None) -> Iterator[None]:
    """The file system is seen and opened as this user sees it. Raises OSError when that cannot be had.

    The calling thread's file system ids alone change: the process stays root's to signal and to trace, and other
    threads go on. The kernel forgets PR_SET_PDEATHSIG over it.
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
    """These calls tell of no failure."""
    call(ctypes.c_int(wanted & 0xFFFF_FFFF).value)
    if call(_QUERY) & 0xFFFF_FFFF != wanted & 0xFFFF_FFFF:
        raise OSError(1, f"the rights of user {wanted} cannot be taken on")

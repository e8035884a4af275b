"""Landlock, the layer that holds when a path leads out of the mount tree: kernel documentation, userspace-api/landlock.

Only what differs between kernels is decided here; `inner` makes the calls, in the sandbox and before the runtime.
Rights are tied to what a path walk meets on its way up. A workspace that is mounted later is reached through the
sandbox's own root, so the rule stands there, and who may write where is the mounts' business. What no walk from
that root reaches (a descriptor of a host folder, the file behind /proc/self/fd) is out of bounds.
"""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass

CREATE_RULESET = 444
_VERSION = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 15
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FIRST = (1 << 13) - 1  # the rights that every version knows
SCOPE_ABSTRACT, SCOPE_SIGNAL = 1, 2
SCOPE_ABI = 6


@dataclass(frozen=True, slots=True)
class LandlockRules:
    """A ruleset: rights that are handled, scopes, and rights beneath paths of the sandbox."""

    handled: int
    scoped: int
    paths: tuple[tuple[str, int], ...]


def kernel_abi() -> int:
    """The kernel's version of Landlock, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 0:
        assert ctypes.get_errno() in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL)
        return 0
    return int(version)


def build_rules(abi_version: int, *, writable: bool) -> LandlockRules:
    """What a session gets on a kernel of this version: nothing when that is 0."""
    if abi_version < 1:
        return LandlockRules(0, 0, ())
    handled = _FIRST
    handled |= _REFER if abi_version >= 2 else 0
    handled |= _TRUNCATE if abi_version >= 3 else 0
    handled |= _IOCTL_DEV if abi_version >= 5 else 0
    scoped = SCOPE_ABSTRACT | SCOPE_SIGNAL if abi_version >= SCOPE_ABI else 0
    tree = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
    reading = _EXECUTE | _READ_FILE | _READ_DIR
    paths = [("/", tree if writable else reading), ("/tmp", tree), ("/dev", tree | handled & _IOCTL_DEV)]
    return LandlockRules(handled, scoped, tuple(paths))

"""Landlock ruleset: stops paths that lead out of the mount tree (kernel docs, userspace-api/landlock).

Only differences between kernels are decided here; `sandbox_init` makes the calls, inside the sandbox and before the
runtime. Landlock checks the directories that a path walk passes on its way up. A workspace mounted later is reached
through the sandbox's root, so the rule is attached there, and the mounts decide what is writable. Anything not
reachable from that root (a descriptor of a host directory, the file behind /proc/self/fd) is denied.
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
    """A ruleset: handled rights, scopes, and rights beneath paths of the sandbox."""

    handled: int
    scoped: int
    paths: tuple[tuple[str, int], ...]


def kernel_abi() -> int:
    """Return the kernel's Landlock ABI version, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 0:
        assert ctypes.get_errno() in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL)
        return 0
    return int(version)


def build_rules(abi_version: int, *, writable: bool) -> LandlockRules:
    """Build the ruleset for a Landlock ABI version; empty for 0."""
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

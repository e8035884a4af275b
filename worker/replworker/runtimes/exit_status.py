"""Exit status of a process that is no child of this one: from its pidfd, where the kernel tells (Linux 6.15)."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct

_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, struct pidfd_info) of 64 bytes; linux/pidfd.h
_PIDFD_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")  # mask, control group, eleven ids, wait status


def read_exit_status(pidfd: int) -> int | None:
    """Return the wait status of a process that has ended, or None if the kernel does not tell.

    The descriptor must have been opened before the process ended.
    """
    asked = bytearray(_INFO.pack(_PIDFD_INFO_EXIT, *([0] * 13)))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, asked)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL, errno.ESRCH):  # an older kernel
            return None
        raise
    mask, *_, status = _INFO.unpack(asked)
    return int(status) if mask & _PIDFD_INFO_EXIT else None


def describe_exit(status: int | None) -> str:
    """Say how an interpreter ended with a wait status; None: unknown."""
    if status is None:
        return "the interpreter ended; Linux before 6.15 does not report how"
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"the interpreter was killed by {signal_name(-code)}"
    return f"the interpreter exited with code {code}"


def signal_name(number: int) -> str:
    """Return name and number of a signal."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"

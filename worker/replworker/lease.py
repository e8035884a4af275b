"""A lease on the worker's life: a kernel timer that kills it unless it is renewed, also when it is stopped or hangs.

A process timer with SIGKILL (timer_create(2)); neither fork nor exec passes it on.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time

_SIGEV_SIGNAL = 0
_libc = ctypes.CDLL(None, use_errno=True)


class _SignalEvent(ctypes.Structure):
    """`struct sigevent` of 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_byte * 48),
    )


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`: interval and first expiration."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class KernelLease:
    """Timer that kills this process (SIGKILL). Time in which the machine is suspended does not count.

    Raises:
        OSError: the kernel has no timer left
    """

    def __init__(self) -> None:
        self._timer = ctypes.c_void_p()
        event = _SignalEvent(None, signal.SIGKILL, _SIGEV_SIGNAL)
        _check(_libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)))

    def renew(self, seconds: float) -> None:
        """Have this process killed after so many seconds; 0 for never."""
        part, whole = math.modf(seconds)
        spec = _TimerSpec(0, 0, int(whole), int(part * 1e9))
        _check(_libc.timer_settime(self._timer, 0, ctypes.byref(spec), None))

    def close(self) -> None:
        """Delete the timer."""
        _check(_libc.timer_delete(self._timer))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))

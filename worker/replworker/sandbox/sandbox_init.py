"""First program inside the sandbox: sets Landlock and per-namespace limits, then executes the runtime.

`python -I -S sandbox_init.py LIMITS HANDLED SCOPED RIGHTS N PATH ID... COMMAND...`; Python 3.8 and later, with only
library modules that load fast, since it runs at every start. bubblewrap cannot do this: under Landlock it could not
mount, and a process limit set outside would count the user's other processes.

LIMITS is `which=value,...`, RIGHTS is `path=rights,...`; HANDLED 0 means a kernel without Landlock. N pairs give the
identity of paths that could have been replaced before they were mounted.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
NO_NEW_PRIVS = 38


def call(libc: ctypes.CDLL, *args: object) -> int:
    result = int(libc.syscall(*args))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, "sandbox: Landlock: " + os.strerror(number))
    return result


def restrict(handled: int, scoped: int, paths: list[tuple[str, int]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("=QQQ", handled, 0, scoped)
    size = len(attributes) if scoped else 8  # older kernels know only the first field
    ruleset = call(libc, CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    for path, rights in paths:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call(libc, ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
        os.close(fd)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    call(libc, RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def pairs(text: str) -> list[list[str]]:
    return [pair.split("=") for pair in text.split(",") if pair]


def main() -> None:
    limits, handled, scoped, rights = sys.argv[1:5]
    for which, value in pairs(limits):
        hard = resource.getrlimit(int(which))[1]
        most = int(value) if hard < 0 else min(int(value), hard)
        resource.setrlimit(int(which), (most, most))
    if int(handled):
        restrict(int(handled), int(scoped), [(path, int(right)) for path, right in pairs(rights)])
    end = 6 + 2 * int(sys.argv[5])
    command = sys.argv[end:]
    for at in range(6, end, 2):
        path, status = sys.argv[at], os.stat(sys.argv[at])
        if f"{status.st_dev}:{status.st_ino}" != sys.argv[at + 1]:
            sys.exit(f"sandbox: {path} was replaced meanwhile")
    os.execv(command[0], command)


main()

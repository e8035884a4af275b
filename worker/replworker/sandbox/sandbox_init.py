"""First program inside the sandbox: sets Landlock and per-namespace limits, then executes the runtime.

`python -I -S sandbox_init.py HOLD LIMITS HANDLED SCOPED RIGHTS N PATH ID... COMMAND...`; Python 3.8 and later, with
only library modules that load fast, since it runs at every start. bubblewrap cannot do this: under Landlock it could
not mount, and a process limit set outside would count the user's other processes.

LIMITS is `which=value,...`, RIGHTS is `path=rights,...`; HANDLED 0 means a kernel without Landlock. N pairs give the
identity of paths that could have been replaced before they were mounted. HOLD is the number of a free descriptor: the
runtime is started as a child and gets this number as its last argument, and the sandbox lasts longer than the runtime.
With HOLD 0 the runtime replaces this program.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

# importing signal would import enum, functools and collections
from _signal import SIG_IGN, SIGCHLD, signal  # type: ignore[import-not-found]

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
NO_NEW_PRIVS = 38
FOREVER_S = str(2**31 - 1)  # "infinity" is not known to every sleep


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


def hold(free_fd: int) -> None:
    """Return in a child; once that has started, remain as the smallest process that keeps the sandbox alive.

    The child's command writes one byte to `free_fd` when it has started. If it ends before, so does this, in the same
    way. Landlock is for the child alone, and so it cannot even signal this process.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, free_fd)
        os.set_inheritable(free_fd, True)
        return
    os.dup2(reader, 0)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the runtime's channels, so that their readers see its end
    if not os.read(0, 1):
        status = os.waitpid(pid, 0)[1]
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        os._exit(code)
    signal(SIGCHLD, SIG_IGN)  # kept by exec: the kernel reaps what is reparented to this process
    os.closerange(0, 3)
    os.execv("/usr/bin/sleep" if os.path.exists("/usr/bin/sleep") else "/bin/sleep", ["sleep", FOREVER_S])


def main() -> None:
    hold_fd, limits, handled, scoped, rights = sys.argv[1:6]
    for which, value in pairs(limits):
        hard = resource.getrlimit(int(which))[1]
        most = int(value) if hard < 0 else min(int(value), hard)
        resource.setrlimit(int(which), (most, most))
    end = 7 + 2 * int(sys.argv[6])
    command = sys.argv[end:]
    for at in range(7, end, 2):
        path, status = sys.argv[at], os.stat(sys.argv[at])
        if f"{status.st_dev}:{status.st_ino}" != sys.argv[at + 1]:
            sys.exit(f"sandbox: {path} was replaced meanwhile")
    if int(hold_fd):
        hold(int(hold_fd))
        command.append(hold_fd)
    if int(handled):
        restrict(int(handled), int(scoped), [(path, int(right)) for path, right in pairs(rights)])
    os.execv(command[0], command)


main()

"""Self-test program: runs inside a sandbox, attempts escapes, and reports the results as JSON.

`python -I selftest.py TARGETS`; standard library only. Each attempt is harmless if it succeeds: it reads a bait file,
connects to a bait listener, or sends signal 0. Nothing is mounted or written.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import socket
import sys
from collections.abc import Callable

NEWUSER = 0x10000000
AF_VSOCK = 40
IO_URING_SETUP = 425
libc = ctypes.CDLL(None, use_errno=True)


def attempt(action: Callable[[], object]) -> str:
    """Call `action` and return `done`, or the name of its error."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def call(*args: object) -> None:
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), "syscall")


def try_open(path: str, flags: int = os.O_RDONLY) -> str:
    return attempt(lambda: os.close(os.open(path, flags)))


def try_connect(family: int, address: tuple[str, int] | str) -> str:
    def action() -> None:
        with socket.socket(family, socket.SOCK_STREAM) as end:
            end.settimeout(2)
            end.connect(address)

    return attempt(action)


def in_child(action: Callable[[], object]) -> str:
    """Run an attempt that would change this process in a child process."""
    out, back = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(back, attempt(action).encode())
        os._exit(0)
    os.close(back)
    text = os.read(out, 100).decode()
    os.close(out)
    os.waitpid(pid, 0)
    return text


def try_walk(fd: int, path: str) -> str:
    return attempt(lambda: os.close(os.open(path, os.O_RDONLY, dir_fd=fd)))


def unshare() -> None:
    if libc.unshare(NEWUSER) < 0:
        raise OSError(ctypes.get_errno(), "unshare")


def status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        lines = [line.split(":", 1) for line in file]
    wanted = ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")
    return {name: value.strip() for name, value in lines if name in wanted}


def main() -> None:
    targets = json.loads(sys.argv[1])
    print("here", flush=True)
    sys.stdin.readline()  # the workspace is mounted meanwhile
    usage = os.statvfs("/tmp")
    found = {
        "status": status(),
        "secret": try_open(targets["secret"]),
        "outside": try_open(targets["secret"], os.O_WRONLY),
        "root": try_open("/usr", os.O_WRONLY | os.O_TMPFILE),
        "sysctl": try_open("/proc/sys/kernel/core_pattern", os.O_WRONLY),
        "signal": attempt(lambda: os.kill(targets["pid"], 0)),
        "tcp": try_connect(socket.AF_INET, ("127.0.0.1", targets["port"])),
        "abstract": try_connect(socket.AF_UNIX, "\0" + targets["abstract"]),
        "path-socket": try_connect(socket.AF_UNIX, targets["socket"]),
        "vsock": attempt(lambda: socket.socket(AF_VSOCK, socket.SOCK_STREAM).close()),
        "io-uring": attempt(lambda: call(IO_URING_SETUP, 1, None)),
        "userns": in_child(unshare),
        "walk": try_walk(targets["fd"], "../" + os.path.basename(targets["secret"])),
        "variables": variables(),
        "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in ("mnt", "pid", "net", "ipc", "uts")},
        "limits": {name: resource.getrlimit(which)[1] for name, which in LIMITS.items()},
        "tmp": usage.f_blocks * usage.f_frsize,
        "workspace": attempt(lambda: os.close(os.open(targets["workspace"], os.O_WRONLY | os.O_TMPFILE))),
    }
    print(json.dumps(found))


LIMITS = {"open-files": resource.RLIMIT_NOFILE, "file-bytes": resource.RLIMIT_FSIZE, "pids": resource.RLIMIT_NPROC}


def variables() -> list[str]:
    """Return the names of environment variables of this process and, if readable, its parent."""
    found: set[str] = set()
    for path in ("/proc/self/environ", f"/proc/{os.getppid()}/environ"):
        if try_open(path) == "done":
            with open(path) as file:
                found |= {pair.split("=")[0] for pair in file.read().split("\0") if pair}
    return sorted(found)


main()

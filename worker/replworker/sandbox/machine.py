"""Facts about the machine that determine the sandbox, detected once and passed on as data."""

from __future__ import annotations

import os
import platform
import re
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from replworker.sandbox import cgroup, landlock, mounts, seccomp

_BWRAP = ("/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap", "/run/current-system/sw/bin/bwrap")
_VERSION_S = 5.0
# Parts of /etc that programs expect; nothing about users or the network.
_ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl",
    "pki",
    "ca-certificates",
    "localtime",
    "timezone",
    "mime.types",
    "fonts",
    "terminfo",
    "os-release",
    "debian_version",
    "crypto-policies",
)
_ETC_NETWORK = ("resolv.conf", "hosts", "services", "protocols", "gai.conf")
_TOP_LEVEL = (
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
)  # links into /usr on most machines, directories on others


@dataclass(frozen=True, slots=True)
class Machine:
    """Detected facts. Everything that depends on them is a pure function of this struct."""

    uid: int
    gid: int
    admin: bool  # root with CAP_SYS_ADMIN: may mount, map ids, drop to other users
    arch: str
    bwrap: str | None
    bwrap_version: tuple[int, ...]
    bwrap_problem: str | None
    landlock_abi: int
    seccomp: bool
    late_mounts: bool  # open_tree, move_mount and mount_setattr exist
    cgroups: cgroup.CgroupRoot
    top_links: dict[str, str]  # /lib -> usr/lib
    top_directories: tuple[str, ...]
    etc: tuple[str, ...]
    etc_network: tuple[str, ...]


def detect_machine(bwrap: str | None = None) -> Machine:
    """Detect the machine's facts; runs `bwrap --version`.

    Args:
        bwrap: path to use instead of the usual ones; PATH is never searched
    """
    found, problem = _find_bwrap((bwrap,) if bwrap else _BWRAP)
    version: tuple[int, ...] = ()
    if found is not None:
        version = _version(found)
        if not version:
            found, problem = None, f"{found} does not report its version"
    links = {f"/{name}": os.readlink(f"/{name}") for name in _TOP_LEVEL if os.path.islink(f"/{name}")}
    return Machine(
        uid=os.geteuid(),
        gid=os.getegid(),
        admin=os.geteuid() == 0 and mounts.has_sys_admin(),
        arch=platform.machine(),
        bwrap=found,
        bwrap_version=version,
        bwrap_problem=problem,
        landlock_abi=landlock.kernel_abi(),
        seccomp=platform.machine() in seccomp.ARCHES,
        late_mounts=mounts.has_mount_calls(),
        cgroups=cgroup.find_cgroup_root(),
        top_links=links,
        top_directories=tuple(
            f"/{name}" for name in _TOP_LEVEL if f"/{name}" not in links and os.path.isdir(f"/{name}")
        ),
        etc=_existing(_ETC),
        etc_network=_existing(_ETC_NETWORK),
    )


def _existing(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"/etc/{name}" for name in names if os.path.exists(f"/etc/{name}"))


def _find_bwrap(paths: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the first bwrap that only root and this user can change, or the reason why there is none."""
    problem = None
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:
            continue
        if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
            problem = f"{path} is not an executable file"
        elif found.st_uid not in (0, 65534, os.geteuid()) or found.st_mode & 0o022:  # 65534: root, in a user namespace
            problem = f"{path} is writable by other users"
        else:
            return str(Path(path).resolve()), None
    return None, problem or f"there is no {' or '.join(paths[:2])}"


def _version(path: str) -> tuple[int, ...]:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_VERSION_S, env={})
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", done.stdout)
    return tuple(int(part) for part in found.groups(default="0")) if found else ()

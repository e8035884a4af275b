"""Checks of Python, libzmq, disk and clock."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from replctl.doctor.finding import Finding, fail, ok, warn
from replwire.config import Config
from replwire.descriptors import clamp_limits, descriptors_needed

PYTHON = (3, 11)
LIBZMQ = (4, 2)  # has heartbeats, which detect a vanished host
DISK_FLOOR = 16 * 1024 * 1024  # bytes; below this even logging may fail
_INODES_FLOOR = 100
_SKEW_S = 300.0  # files on a network disk have that server's time
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 512  # larger than struct timex


def python(version: tuple[int, ...] = sys.version_info[:3], system: str = sys.platform) -> Iterator[Finding]:
    """Check the Python that runs replctl and the packages that replctl needs."""
    seen = f"{'.'.join(map(str, version))} at {sys.executable}"
    if system != "linux":
        yield fail("python", f"{seen}, on {system}", "replctl needs Linux", "run it on Linux")
    elif version < PYTHON:
        yield fail(
            "python", seen, "replctl needs 3.11", "install replctl into a newer Python; sessions may use older ones"
        )
    elif missing := _missing_packages():
        fix = f"{sys.executable} -m pip install --force-reinstall replctl"
        yield fail("python", seen, f"missing or incomplete: {', '.join(missing)}", fix)
    else:
        yield ok("python", f"{seen}, replctl {metadata.version('replctl')}")


def descriptors(config: Config, most: int | None = None) -> Iterator[Finding]:
    """Check that enough files may be open for the configured sessions and connections."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if most is None else most
    limits, warm = config.limits, config.broker.warm_workers
    found, seen = clamp_limits(limits, warm, most), f"{most} open files at most"
    if found == limits:
        yield ok("descriptors", seen)
        return
    cause = f"enough for {found.max_sessions} sessions and {found.max_connections} connections"
    fix = f"ulimit -Hn {descriptors_needed(limits, warm)}, or LimitNOFILE= of the service"
    yield (warn if found.max_sessions else fail)("descriptors", seen, cause, fix)


def _missing_packages() -> list[str]:
    try:
        needed = metadata.requires("replctl") or []
    except metadata.PackageNotFoundError:
        return ["replctl"]
    return [name for name in _package_names(needed) if not _is_installed(name)]


def _package_names(requirements: list[str]) -> Iterator[str]:
    """Yield the packages that are always required."""
    for requirement in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name is not None and "extra ==" not in requirement:
            yield name[0]


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def libzmq() -> Iterator[Finding]:
    """Check the version and features of libzmq."""
    fix = f"{sys.executable} -m pip install --force-reinstall pyzmq"
    try:
        import zmq
    except ImportError as error:
        yield fail("libzmq", "cannot be loaded", str(error), fix)
        return
    seen = f"{zmq.zmq_version()}, pyzmq {zmq.__version__}"
    if zmq.zmq_version_info()[:2] < LIBZMQ:
        yield fail("libzmq", seen, "replctl needs 4.2", fix)
    elif not zmq.has("ipc"):
        yield fail("libzmq", f"{seen}, without ipc", "a broker cannot listen at the user's own socket", fix)
    elif not zmq.has("curve"):
        yield warn("libzmq", f"{seen}, without CURVE", "remote clients cannot use keys", fix)
    else:
        yield ok("libzmq", seen)


def disk(config: Config, state_dir: str, scratch: str) -> Iterator[Finding]:
    """Check the free space for audit log, snapshots, logs and temporary files."""
    own = 2 * config.broker.audit_bytes if config.broker.audit else 0
    yield _check_space("disk", state_dir, own + config.limits.max_snapshot_bytes)
    if os.path.realpath(scratch) != os.path.realpath(state_dir):
        yield _check_space("disk", scratch, DISK_FLOOR)


def _check_space(name: str, directory: str, wanted: int) -> Finding:
    place = Path(directory)
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    seen = f"{free // 1024**2} MiB free for {directory}"
    fix = f"free space on `df {place}`, or use another directory: REPLCTL_STATE_DIR, TMPDIR"
    if not os.access(place, os.W_OK | os.X_OK):
        return fail(
            name,
            f"{place} is not writable",
            f"{directory} must be created in it",
            f"chown or chmod {place}, or mount it read-write",
        )
    if free < DISK_FLOOR or (found.f_files and found.f_favail < _INODES_FLOOR):
        return fail(name, f"{seen}, {found.f_favail} more files", "the disk is full", fix)
    if free < wanted:
        most = f"audit and snapshots may take {wanted // 1024**2} MiB"
        return warn(name, seen, most, f"{fix}; or lower broker.audit-bytes and limits.max-snapshot-bytes")
    return ok(name, seen)


def clock(state_dir: str, now: float | None = None, synchronised: bool | None = None) -> Iterator[Finding]:
    """Check the wall clock, used for the audit log. Time limits use another clock, which cannot be set."""
    now = time.time() if now is None else now
    seen = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    fix = "run `timedatectl set-ntp true` or install chrony (containers use the host's clock)"
    for path in (Path(__file__), Path(state_dir, "audit.ndjson")):
        if path.exists() and path.stat().st_mtime > now + _SKEW_S:
            why = f"{path} has a later time: audit times and `--since` are wrong"
            yield warn("clock", seen, why, fix)
            return
    if (_is_synchronised() if synchronised is None else synchronised) is False:
        yield warn(
            "clock", f"{seen}, not synchronised", "audit times may be wrong; nothing else depends on the clock", fix
        )
    else:
        yield ok("clock", seen)


def _is_synchronised() -> bool | None:
    """Return the kernel's answer, None without permission. With `modes` 0 the call only reads: adjtimex(2)."""
    state: int = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else state != _TIME_ERROR


def machine() -> Iterator[Finding]:
    """Report kernel and processor."""
    yield ok("machine", f"Linux {platform.release()}, {platform.machine()}, {os.cpu_count()} processors")

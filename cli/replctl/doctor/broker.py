"""Checks of the broker: running, responsive, and leftovers of a crashed one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from replctl import __version__
from replctl.client.address import is_listening
from replctl.client.errors import ReplError
from replctl.client.protocol import final_reply
from replctl.client.sync import Client
from replctl.doctor.finding import Finding, fail, ok, warn
from replctl.doctor.journals import find_left_sessions
from replwire.paths import ipc_path
from replwire.replies import Reply

ANSWER_TIMEOUT_S = 3.0  # a healthy broker replies to `describe` within a millisecond
_PROTOCOL = "1"


def broker(endpoint: str, state_dir: str) -> Iterator[Finding]:
    """Check the broker at this endpoint, or the leftovers of one."""
    path = ipc_path(endpoint)
    try:
        listening = is_listening(endpoint)
    except ReplError as error:
        yield fail(
            "broker", error.message, "it cannot be reached from here", "check the address, its directory, and your user"
        )
        return
    if listening:
        yield from _check_listening(endpoint, path)
    elif path is None:
        yield ok("broker", f"none at {endpoint}; commands do not start remote brokers")
    else:
        yield from _check_leftovers(endpoint, path, state_dir)
    yield from find_orphan_brokers(os.getuid())


def _check_listening(endpoint: str, path: str | None) -> Iterator[Finding]:
    holder = None if path is None else lock_holder(path + ".lock")
    who = f" (pid {holder})" if holder else ""
    try:
        with Client(endpoint, "doctor", start=False) as client:
            described, stats = (_request(client, op) for op in ("describe", "stats"))
    except ReplError as error:
        if error.code in ("unauthorized", "forbidden"):
            yield warn(
                "broker",
                f"the broker at {endpoint} refuses this client",
                error.message,
                "see `replctl keys` and docs/agents.md",
            )
            return
        fix = f"kill {holder}; the next command starts a fresh one" if holder else "stop whatever is listening there"
        cause = "it hangs, or is not a replctl broker"
        seen = f"something listens at {endpoint}{who} and does not reply within {ANSWER_TIMEOUT_S:g} s"
        yield fail("broker", seen, cause, fix)
        return
    yield _describe(described, f"running at {endpoint}{who}")
    for problem in (stats.stats or {}).get("problems", ()):
        cause = "the broker needs this file and cannot recreate it"
        yield fail("broker", problem, cause, "free the path; the broker retries every two seconds")


def _request(client: Client, op: str) -> Reply:
    pending = client.send(op, {})
    client.wait(pending, ANSWER_TIMEOUT_S)
    return final_reply(pending)


def _describe(described: Reply, seen: str) -> Finding:
    versions = described.versions or {}
    its = versions.get("replctl", "unknown")
    restart = "run `replctl restart` to start the new version; sessions go on"
    if described.instance is None:  # it is older than that command
        restart = "run `replctl shutdown` (sessions end) or `systemctl restart replctl` to start the new version"
    if versions.get("protocol") != _PROTOCOL:
        cause = f"it speaks protocol {versions.get('protocol')}, this replctl {_PROTOCOL}"
        return fail("broker", f"{seen}, version {its}", cause, restart)
    if its != __version__:
        return warn(
            "broker",
            f"{seen}, version {its}",
            f"this replctl is {__version__}: the broker was started before an upgrade",
            restart,
        )
    if described.acts_as == "nobody":
        cause = (
            f"{described.identity} is not a user of that machine: sessions get no directory, environment or files there"
        )
        return warn("broker", f"{seen}, version {its}", cause, "ask the operator to map it to a user in [[identities]]")
    seen += f", where you are {described.identity} and sessions act as {described.acts_as}" if described.acts_as else ""
    return ok(
        "broker",
        f"{seen}, version {its}, {_describe_sandbox(described.sandbox if isinstance(described.sandbox, dict) else {})}",
    )


def _describe_sandbox(sandbox: dict[str, Any]) -> str:
    """Describe the sandbox that the broker saw at startup; a service unit may restrict it further."""
    if not sandbox.get("layers"):
        return "sessions without a sandbox"
    without = f", without {', '.join(sandbox['missing'])}" if sandbox.get("missing") else ""
    return f"{len(sandbox['layers'])} sandbox layers{without}"


def _check_leftovers(endpoint: str, path: str, state_dir: str) -> Iterator[Finding]:
    """Check for a broker that is starting, and for leftovers of the last one."""
    left = is_socket(path)
    waiting, lost, pids = find_left_sessions(state_dir)
    starter = lock_holder(path + ".start.lock")
    if (pid := lock_holder(path + ".lock")) is not None:
        cause = "it is starting or stopping, or it hangs"
        yield warn(
            "broker", f"pid {pid} holds {path}.lock and does not listen", cause, f"check again in 10 s, then kill {pid}"
        )
    elif starter is not None:
        yield warn(
            "broker",
            f"pid {starter} is starting a broker",
            "a start takes a second",
            f"check again in 20 s, then kill {starter}",
        )
    elif waiting:
        seen = f"nothing is listening at {path}; sessions that wait for a broker: {', '.join(waiting)}"
        seen += f"; sessions lost: {', '.join(lost)}" if lost else ""
        cause = f"a broker has ended without its sessions (pids {', '.join(map(str, pids))})"
        fix = "the next broker goes on with them; `replctl shutdown` ends it and them"
        yield warn("broker", seen, cause, fix)
    elif left or lost:
        seen = "; ".join(
            [f"nothing is listening at {path}"] * left + [f"sessions lost: {', '.join(lost)}"] * bool(lost)
        )
        fix = "nothing to do: the next broker cleans up and reports the lost sessions"
        yield warn("broker", seen, "a broker was killed and could not clean up", fix)
    else:
        yield ok("broker", f"none at {endpoint}; the first command starts one")


def is_socket(path: str) -> bool:
    """Return True if the path is a socket."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def lock_holder(path: str, locks: str = "/proc/locks") -> int | None:
    """Return the pid that holds a lock file, from the kernel's list (proc(5)); testing the lock would take it."""
    try:
        inode = os.stat(path).st_ino
        lines = Path(locks).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            pid = int(words[4])
            if os.path.realpath(path) in _open_files(pid, default=os.path.realpath(path)):
                return pid
    return None


def find_orphan_brokers(uid: int, proc: str = "/proc") -> Iterator[Finding]:
    """Find brokers of this user whose lock file was deleted: unreachable, but still holding their sessions."""
    for entry in filter(str.isdigit, os.listdir(proc)):
        try:
            if os.stat(f"{proc}/{entry}").st_uid != uid or b"replctl" not in Path(proc, entry, "cmdline").read_bytes():
                continue
        except OSError:  # the process has exited
            continue
        deleted = [link for link in _open_files(int(entry), proc=proc) if link.endswith(".sock.lock (deleted)")]
        if deleted:
            seen = f"pid {entry} serves {deleted[0].removesuffix('.lock (deleted)')}, whose directory was cleared"
            yield warn(
                "broker", seen, "it can no longer be reached, but it and its sessions keep running", f"kill {entry}"
            )


def _open_files(pid: int, default: str = "", proc: str = "/proc") -> list[str]:
    """Return the open files of a process; only `default` without permission to look."""
    try:
        names = os.listdir(f"{proc}/{pid}/fd")
    except OSError:
        return [default]
    links = []
    for name in names:
        try:
            links.append(os.readlink(f"{proc}/{pid}/fd/{name}"))
        except OSError:  # closed meanwhile
            continue
    return links

"""Is there a broker, is it one that works, and what did one leave that is gone?"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from replctl import __version__
from replctl.client.address import is_listening
from replctl.client.errors import ReplError
from replctl.client.protocol import final_reply
from replctl.client.sync import Client
from replctl.doctor.finding import Finding, fail, ok, warn
from replwire.paths import ipc_path
from replwire.replies import Reply

ANSWER_TIMEOUT_S = 3.0  # a broker answers `describe` in a millisecond, whatever its sessions do
_PROTOCOL = "1"


class _SessionListHead(msgspec.Struct):
    """The first line of a session list file: who wrote it."""

    pid: int


class _SessionListRecord(msgspec.Struct):
    """A further line, as far as it matters here."""

    id: str
    name: str | None
    open: bool


def broker(endpoint: str, state_dir: str) -> Iterator[Finding]:
    """Whoever listens there; else what is left of one."""
    path = ipc_path(endpoint)
    try:
        listening = is_listening(endpoint)
    except ReplError as error:
        yield fail(
            "broker", error.message, "it cannot be reached from here", "see the address, its folder, and who you are"
        )
        return
    if listening:
        yield from _check_listening(endpoint, path)
    elif path is None:
        yield ok("broker", f"none at {endpoint}; commands do not start one there")
    else:
        yield from _check_leftovers(endpoint, path, state_dir)
    yield from find_orphan_brokers(os.getuid())


def _check_listening(endpoint: str, path: str | None) -> Iterator[Finding]:
    holder = None if path is None else lock_holder(path + ".lock")
    who = f" (pid {holder})" if holder else ""
    try:
        with Client(endpoint, "doctor", start=False) as client:
            said, stats = (_request(client, op) for op in ("describe", "stats"))
    except ReplError as error:
        if error.code in ("unauthorized", "forbidden"):
            yield warn(
                "broker", f"one at {endpoint} refuses us", error.message, "see `replctl keys` and docs/agents.md"
            )
            return
        mend = f"kill {holder}; the next command starts a fresh one" if holder else "end whatever listens there"
        cause = "it hangs, or is no broker of replctl's"
        seen = f"something listens at {endpoint}{who} and does not answer in {ANSWER_TIMEOUT_S:g} s"
        yield fail("broker", seen, cause, mend)
        return
    yield _describe(said, f"one answers at {endpoint}{who}")
    for trouble in (stats.stats or {}).get("troubles", ()):
        cause = "what lies there is the broker's own, and it cannot make it anew"
        yield fail("broker", trouble, cause, "make room there; the broker tries again every two seconds")


def _request(client: Client, op: str) -> Reply:
    gathering = client.send(op, {})
    client.wait(gathering, ANSWER_TIMEOUT_S)
    return final_reply(gathering)


def _describe(said: Reply, seen: str) -> Finding:
    versions = said.versions or {}
    its = versions.get("replctl", "unknown")
    restart = "replctl shutdown (its sessions end), or systemctl restart replctl; the next start is of the new version"
    if versions.get("protocol") != _PROTOCOL:
        cause = f"it speaks protocol {versions.get('protocol')}, replctl here {_PROTOCOL}"
        return fail("broker", f"{seen}, version {its}", cause, restart)
    if its != __version__:
        return warn(
            "broker",
            f"{seen}, version {its}",
            f"replctl here is {__version__}: it was started before an upgrade",
            restart,
        )
    if said.acts_as == "nobody":
        cause = f"{said.identity} is no user of that machine, so sessions get no directory, environment or file there"
        return warn("broker", f"{seen}, version {its}", cause, "have its operator name a user in [[identities]]")
    seen += f", where you are {said.identity} and sessions act as {said.acts_as}" if said.acts_as else ""
    return ok(
        "broker", f"{seen}, version {its}, {_describe_sandbox(said.sandbox if isinstance(said.sandbox, dict) else {})}"
    )


def _describe_sandbox(sandbox: dict[str, Any]) -> str:
    """What the broker saw at its start, which may be less than we see: a service has its unit around it."""
    if not sandbox.get("layers"):
        return "sessions without a sandbox"
    without = f", without {', '.join(sandbox['missing'])}" if sandbox.get("missing") else ""
    return f"{len(sandbox['layers'])} sandbox layers{without}"


def _check_leftovers(endpoint: str, path: str, state_dir: str) -> Iterator[Finding]:
    """Nobody listens: is somebody about to, and what did the last one leave?"""
    left = is_socket(path)
    lost = _lost_sessions(state_dir)
    starter = lock_holder(path + ".start.lock")
    if (pid := lock_holder(path + ".lock")) is not None:
        cause = "it starts or ends at this moment, or it hangs"
        yield warn(
            "broker", f"pid {pid} holds {path}.lock and does not listen", cause, f"look again in 10 s; then kill {pid}"
        )
    elif starter is not None:
        yield warn(
            "broker",
            f"pid {starter} is starting one",
            "a start takes a second",
            f"look again in 20 s; then kill {starter}",
        )
    elif left or lost:
        seen = "; ".join([f"nobody listens at {path}"] * left + [f"sessions lost: {', '.join(lost)}"] * bool(lost))
        mend = "nothing need be done: the next broker replaces them and says what was lost"
        yield warn("broker", seen, "a broker was killed and could not tidy up", mend)
    else:
        yield ok("broker", f"none at {endpoint}; the first command starts one")


def is_socket(path: str) -> bool:
    """Whether a socket's file is there."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _lost_sessions(state_dir: str) -> list[str]:
    """Sessions that were open when their broker was killed."""
    lost = []
    for path in sorted(Path(state_dir).glob("sessions-*.ndjson")):
        try:
            head, *lines = path.read_bytes().splitlines()
            pid = msgspec.json.decode(head, type=_SessionListHead).pid
            records = [msgspec.json.decode(line, type=_SessionListRecord) for line in lines]
        except (OSError, ValueError, msgspec.MsgspecError):
            continue
        if not _is_running(pid):
            lost += [each.name or each.id for each in {each.id: each for each in records}.values() if each.open]
    return lost


def _is_running(pid: int) -> bool:
    """Whether there is such a process: one that nobody reaped is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def lock_holder(path: str, locks: str = "/proc/locks") -> int | None:
    """Who holds a lock file, by the kernel's list (proc(5)): to try the lock would be to hold it for a moment."""
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
    """Brokers of this user whose lock file was deleted: nobody finds them, and they hold their sessions."""
    for entry in filter(str.isdigit, os.listdir(proc)):
        try:
            if os.stat(f"{proc}/{entry}").st_uid != uid or b"replctl" not in Path(proc, entry, "cmdline").read_bytes():
                continue
        except OSError:  # it ended
            continue
        gone = [link for link in _open_files(int(entry), proc=proc) if link.endswith(".sock.lock (deleted)")]
        if gone:
            seen = f"pid {entry} serves {gone[0].removesuffix('.lock (deleted)')}, whose folder was cleared"
            yield warn("broker", seen, "nobody reaches it any more; it and its sessions live on", f"kill {entry}")


def _open_files(pid: int, default: str = "", proc: str = "/proc") -> list[str]:
    """What a process has open; only `default` where we may not look."""
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

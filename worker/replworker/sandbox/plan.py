"""From a policy, the facts of a machine and a runtime's needs to everything that a sandbox is made of. Pure.

The order of mounts matters: a later one covers an earlier one, so what lies in /tmp comes after /tmp, and the root
is made read-only when all is in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from replwire.policy import Policy
from replworker.sandbox import identity, landlock, rlimits, seccomp
from replworker.sandbox.machine import Machine
from replworker.sandbox.rights import Rights
from replworker.sandbox.runtime_paths import RuntimePaths
from replworker.sandbox.workspace import SandboxMount

FIRST_FD = 7  # 0 to 6 are the interpreter's own
ARGUMENTS_FD, FILTER_FD, FIRST_TEXT_FD = FIRST_FD, FIRST_FD + 1, FIRST_FD + 2
# What is mounted in the place of what is hidden. A device, on mounts that allow none: not even opening it works.
EMPTY_FOLDER, NO_FILE = "/run/empty", "/dev/null"
SCRATCH = "/tmp/work"  # where a session without a folder works
_MIN_VERSION = (0, 7)  # bubblewrap: --size
_DISABLE_USERNS_VERSION = (0, 8)  # bubblewrap: --disable-userns
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"
# With `read: host`: where people keep what is not meant to be read.
_SECRETS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".config/gcloud",
    ".config/gh",
    ".netrc",
    ".pgpass",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".password-store",
    ".local/share/keyrings",
    ".mozilla",
)
_DROPPED = ("XDG_", "DBUS_", "SSH_", "GPG_")


class SandboxUnavailable(Exception):
    """No such sandbox on this machine: why, and what would mend it."""

    def __init__(self, cause: str, mend: str) -> None:
        self.cause, self.fix = cause, mend
        super().__init__(f"{cause}; {mend}" if mend else cause)


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """One sandbox, ready to be started any number of times."""

    policy: Policy
    machine: Machine
    runtime: str
    bwrap: str
    options: tuple[str, ...]
    texts: tuple[str, ...]  # contents of the files that are made, in the order of their descriptors
    filter: bytes
    step: tuple[str, ...]  # what runs inside before the runtime
    env: dict[str, str]
    run_as: int | None  # the host's user, when the broker is root
    open_way: tuple[str, ...]  # host paths that this user must be able to reach
    owned: tuple[str, ...]  # and those whose owner it is to stand for
    asked: tuple[str, ...]  # of both, what a client has named
    rights: Rights | None  # and with whose rights that is opened
    kept: tuple[str, ...]  # what nobody writes, wherever it lies
    late: bool  # the workspace can be given to it while it runs


def build_plan(
    policy: Policy,
    machine: Machine,
    needs: RuntimePaths,
    *,
    runtime: str,
    python: str,
    inner: str,
    env: dict[str, str],
    hidden: Sequence[SandboxMount] = (),
    granted: Sequence[SandboxMount] = (),
    workspace: Sequence[SandboxMount] = (),
    found: Sequence[tuple[str, str]] = (),
    slot: int = 0,
    asked: Sequence[str] = (),
    rights: Rights | None = None,
) -> SandboxPlan:
    """How to confine `runtime`. Raises Unavailable.

    `python` runs sandbox_init.py (`inner` is its path) in the sandbox; `needs` covers both and the runtime. `granted`
    are the mounts of the policy's own paths, `hidden` those over secrets, as found on the disk by `workspace.mounts`.
    `workspace` is for a folder that is known at the start, where it cannot be mounted later. `found` are paths with
    what stood there, to be compared when they are mounted: bubblewrap follows symlinks. `asked` are those of `needs`
    that a client has named, to be opened with `rights` as the workspace is.
    """
    assert policy.profile != "off", "nothing to plan"
    bwrap = _require_usable(machine)
    run_as = identity.uid_for(slot) if machine.uid == 0 else None
    # Abstract sockets of the host are reached through its network, unless Landlock says no; a path in a mount always.
    no_unix = policy.read == "host" or (policy.network == "host" and machine.landlock_abi < landlock.SCOPE_ABI)
    texts = _generated_files(policy)
    return SandboxPlan(
        policy=policy,
        machine=machine,
        runtime=runtime,
        bwrap=bwrap,
        options=(
            "--seccomp",
            str(FILTER_FD),
            *_namespaces(policy, machine),
            *_system(policy, machine),
            *_private_filesystems(policy),
            *_files(texts),
            *_runtime(policy, needs),
            *_bind_options([*granted, *hidden, *workspace]),
            *_seal_options(workspace),
        ),
        texts=tuple(texts.values()),
        filter=seccomp.build_filter(machine.arch, unix_sockets=not no_unix),
        step=(python, "-I", "-S", inner, *_init_arguments(policy, machine, runtime), str(len(found)), *chain(*found)),
        env=environment(env),
        run_as=run_as,
        open_way=needs.paths,
        owned=_visible_paths(*granted, *workspace),
        asked=(*asked, *_visible_paths(*workspace)),
        rights=rights,
        kept=needs.read_only,
        late=machine.late_mounts and not workspace,
    )


def _visible_paths(*mounts: SandboxMount) -> tuple[str, ...]:
    return tuple(mount.path for mount in mounts if not mount.kind.startswith("hidden"))


def secret_paths(home: str) -> list[str]:
    """What `read: host` leaves out of a home."""
    return [f"{home}/{name}" for name in _SECRETS]


def environment(env: dict[str, str]) -> dict[str, str]:
    """A session's variables: a home of its own, and no address of the host's agents and buses."""
    kept = {name: value for name, value in env.items() if not name.startswith(_DROPPED)}
    own = {"HOME": identity.HOME, "USER": identity.NAME, "LOGNAME": identity.NAME, "TMPDIR": "/tmp"}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **kept, **own}


def _require_usable(machine: Machine) -> str:
    if machine.bwrap is None:
        raise SandboxUnavailable(
            f"bubblewrap: {machine.bwrap_problem}", "install it: apt-get install bubblewrap, dnf install bubblewrap"
        )
    if machine.bwrap_version < _MIN_VERSION:
        version = ".".join(map(str, machine.bwrap_version))
        raise SandboxUnavailable(
            f"bubblewrap {version} is too old", f"install {'.'.join(map(str, _MIN_VERSION))} or later"
        )
    if not machine.seccomp:
        raise SandboxUnavailable(
            f"system calls of {machine.arch} are not known here", "use an x86_64 or aarch64 machine"
        )
    if machine.uid == 0 and not machine.admin:
        raise SandboxUnavailable(
            "the broker is root without CAP_SYS_ADMIN, as in a container, and sessions may not have root's credentials",
            "run it as an ordinary user, or give the container CAP_SYS_ADMIN",
        )
    if machine.uid == 0 and not machine.late_mounts:
        raise SandboxUnavailable("a root broker needs mount calls of Linux 5.12", "run it as an ordinary user")
    return machine.bwrap


def _namespaces(policy: Policy, machine: Machine) -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    if policy.network == "none":
        yield "--unshare-net"
    if machine.bwrap_version >= _DISABLE_USERNS_VERSION:
        yield "--disable-userns"
    inside = str(identity.INSIDE_UID)
    yield from ("--uid", inside, "--gid", inside, "--hostname", "sandbox")
    yield from ("--cap-drop", "ALL", "--die-with-parent", "--new-session")


def _system(policy: Policy, machine: Machine) -> Iterator[str]:
    return _whole_host(policy, machine) if policy.read == "host" else _minimal(policy, machine)


def _minimal(policy: Policy, machine: Machine) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for path, target in machine.top_links.items():
        yield from ("--symlink", target, path)
    for path in machine.top_folders:
        yield from ("--ro-bind", path, path)
    for path in (*machine.etc, *(machine.etc_network if policy.network == "host" else ())):
        yield from ("--ro-bind", path, path)
    yield from ("--proc", "/proc", "--dev", "/dev")


def _whole_host(policy: Policy, machine: Machine) -> Iterator[str]:
    yield from ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run")
    if policy.network == "host" and "/etc/resolv.conf" in machine.etc_network:
        yield from ("--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf")  # often a link into /run


def _private_filesystems(policy: Policy) -> Iterator[str]:
    """File systems of its own, all bounded."""
    size = str(policy.limits.tmp_bytes)
    yield from ("--size", size, "--tmpfs", "/dev/shm", "--perms", "1777", "--size", size, "--tmpfs", "/tmp")
    yield from ("--dir", identity.HOME, "--dir", SCRATCH, "--dir", EMPTY_FOLDER)


def _generated_files(policy: Policy) -> dict[str, str]:
    """Files that are made: path to contents."""
    texts: dict[str, str] = {}
    if policy.read == "minimal":
        texts = {"/etc/passwd": identity.passwd(), "/etc/group": identity.group(), "/etc/nsswitch.conf": _NSSWITCH}
        if policy.network == "none":
            texts["/etc/hosts"] = _HOSTS  # else node asks a name server that is not there
    return texts


def _files(texts: Iterable[str]) -> Iterator[str]:
    for fd, path in enumerate(texts, FIRST_TEXT_FD):
        yield from ("--perms", "0444", "--ro-bind-data", str(fd), path)


def _runtime(policy: Policy, needs: RuntimePaths) -> Iterator[str]:
    for path in needs.paths:
        yield from ("--ro-bind", path, path)
    if policy.read == "minimal":  # else they are there
        for path, target in needs.links:
            yield from ("--symlink", target, path)


def _bind_options(mounts: Iterable[SandboxMount]) -> Iterator[str]:
    for mount in mounts:
        if mount.kind == "hidden-folder":
            yield from ("--tmpfs", mount.path, "--remount-ro", mount.path)
        elif mount.kind == "hidden-file":
            yield from ("--ro-bind", NO_FILE, mount.path)
        else:
            yield from ("--bind" if mount.kind == "writable" else "--ro-bind", mount.path, mount.path)


def _init_arguments(policy: Policy, machine: Machine, runtime: str) -> Iterator[str]:
    """The arguments of sandbox_init.py."""
    limits = rlimits.limits(policy.limits, runtime, grouped="memory" in machine.cgroups.folders)
    rules = landlock.build_rules(machine.landlock_abi, writable=policy.profile == "workspace-write")
    yield ",".join(f"{which}={value}" for which, value in limits)
    yield from (str(rules.handled), str(rules.scoped), ",".join(f"{path}={right}" for path, right in rules.paths))


def _seal_options(workspace: Sequence[SandboxMount]) -> Iterator[str]:
    """A writable root or /dev would be a second, unbounded /tmp."""
    yield from ("--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/")
    yield from ("--chdir", workspace[0].path if workspace else SCRATCH)

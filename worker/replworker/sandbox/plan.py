"""Sandbox plan: a pure function of policy, machine and runtime paths.

The order of mounts matters: a later one covers an earlier one, so paths in /tmp come after /tmp, and the root becomes
read-only last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from replwire.policy import Policy
from replworker.sandbox import identity, landlock, rlimits, seccomp
from replworker.sandbox.machine import Machine
from replworker.sandbox.rights import Rights
from replworker.sandbox.runtime_paths import RuntimePaths
from replworker.sandbox.workspace import SandboxMount

FIRST_FD = 7  # 0 to 6 are the interpreter's
ARGUMENTS_FD, FILTER_FD, FIRST_TEXT_FD = FIRST_FD, FIRST_FD + 1, FIRST_FD + 2
# Covers of hidden paths. The device is on a nodev mount, so it cannot even be opened.
EMPTY_DIRECTORY, NO_FILE = "/run/empty", "/dev/null"
PACKAGES = "/run/packages"  # packages that the session has installed
SCRATCH = "/tmp/work"  # working directory of sessions without a workspace
_MIN_VERSION = (0, 7)  # bubblewrap: --size
_DISABLE_USERNS_VERSION = (0, 8)  # bubblewrap: --disable-userns
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
_RESOLV = "nameserver 127.0.0.1\n"  # for resolvers that, unlike glibc's, do not assume it
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"
# Secrets in home directories, excluded with `read: host`.
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
_NO_RETRIES = {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0", "npm_config_fetch_retries": "0"}
_DROPPED = ("XDG_", "DBUS_", "SSH_", "GPG_")


class SandboxUnavailable(Exception):
    """Error of a machine that cannot provide the sandbox: cause and fix."""

    def __init__(self, cause: str, fix: str) -> None:
        self.cause, self.fix = cause, fix
        super().__init__(f"{cause}; {fix}" if fix else cause)


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """Plan of a sandbox, reusable for any number of starts."""

    policy: Policy
    machine: Machine
    runtime: str
    bwrap: str
    options: tuple[str, ...]
    texts: tuple[str, ...]  # contents of generated files, in the order of their descriptors
    filter: bytes
    step: tuple[str, ...]  # program run inside before the runtime
    env: dict[str, str]
    run_as: int | None  # host user of the session, if the broker is root
    open_way: tuple[str, ...]  # host paths this user must be able to reach
    owned: tuple[str, ...]  # paths id-mapped to this user
    requested: tuple[str, ...]  # those of both that a client named
    rights: Rights | None  # rights with which they are opened
    read_only: tuple[str, ...]  # read-only, wherever they are
    late: bool  # the workspace can be mounted while it runs
    has_holder: bool  # the sandbox lasts longer than its first interpreter


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
    requested: Sequence[str] = (),
    rights: Rights | None = None,
    has_holder: bool = False,
    files: Mapping[str, str] | None = None,
    packages: str | None = None,
) -> SandboxPlan:
    """Build the plan for `runtime`.

    `python` runs `inner` (the path of sandbox_init.py) in the sandbox; `needs` covers both and the runtime. `granted`
    are mounts of the policy's own paths, `hidden` those over secrets, as found on disk by `workspace_mounts`.
    `workspace` is for a directory known at the start, where it cannot be mounted later. `found` has paths and their
    identities, compared again after mounting because bubblewrap follows symlinks. `requested` are the paths of `needs`
    named by a client, opened with `rights` like the workspace. With `has_holder`, the sandbox outlasts the runtime.
    `files` are further generated ones: path to contents.
    `packages` is the directory shown at PACKAGES.

    Raises:
        SandboxUnavailable: the machine cannot provide this sandbox
    """
    assert policy.profile != "off", "nothing to plan"
    bwrap = _require_usable(machine)
    run_as = identity.uid_for(slot) if machine.uid == 0 else None
    # The host's abstract sockets are reachable through its network unless Landlock denies it; mounted ones always are.
    no_unix = policy.read == "host" or (policy.network == "host" and machine.landlock_abi < landlock.SCOPE_ABI)
    texts = _generated_files(policy) | dict(files or {})
    return SandboxPlan(
        policy=policy,
        machine=machine,
        runtime=runtime,
        bwrap=bwrap,
        options=(
            "--seccomp",
            str(FILTER_FD),
            *_namespaces(policy, machine),
            *(("--as-pid-1",) if has_holder else ()),
            *_system(policy, machine),
            *_private_filesystems(policy),
            *_files(texts),
            *_runtime(policy, needs),
            *(("--ro-bind", packages, PACKAGES) if packages is not None else ()),
            *_bind_options([*granted, *hidden, *workspace]),
            *_seal_options(workspace),
        ),
        texts=tuple(texts.values()),
        filter=seccomp.build_filter(machine.arch, unix_sockets=not no_unix),
        step=(
            *(python, "-I", "-S", inner, str(FIRST_FD if has_holder else 0)),
            *_init_arguments(policy, machine, runtime),
            *(str(len(found)), *chain(*found)),
        ),
        env=environment(env, policy),
        run_as=run_as,
        open_way=(*needs.paths, *((packages,) if packages is not None else ())),
        owned=_visible_paths(*granted, *workspace),
        requested=(*requested, *_visible_paths(*workspace)),
        rights=rights,
        read_only=needs.read_only,
        late=machine.late_mounts and not workspace,
        has_holder=has_holder,
    )


def _visible_paths(*mounts: SandboxMount) -> tuple[str, ...]:
    return tuple(mount.path for mount in mounts if not mount.kind.startswith("hidden"))


def secret_paths(home: str) -> list[str]:
    """Return the paths in a home directory that `read: host` excludes."""
    return [f"{home}/{name}" for name in _SECRETS]


def environment(env: dict[str, str], policy: Policy) -> dict[str, str]:
    """Return a session's variables: its own home, and no addresses of the host's agents and buses.

    Package tools try a refused host again for up to a minute, which changes nothing where a policy has refused it.
    """
    tools = _NO_RETRIES if policy.network != "host" else {}
    kept = {name: value for name, value in env.items() if not name.startswith(_DROPPED)}
    own = {"HOME": identity.HOME, "USER": identity.NAME, "LOGNAME": identity.NAME, "TMPDIR": "/tmp"}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", **tools, **kept, **own}


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
            f"system calls of {machine.arch} are not supported", "use an x86_64 or aarch64 machine"
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
    if policy.network != "host":
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
    for path in machine.top_directories:
        yield from ("--ro-bind", path, path)
    for path in (*machine.etc, *(machine.etc_network if policy.network == "host" else ())):
        yield from ("--ro-bind", path, path)
    yield from ("--proc", "/proc", "--dev", "/dev")


def _whole_host(policy: Policy, machine: Machine) -> Iterator[str]:
    yield from ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run")
    if policy.network == "host" and "/etc/resolv.conf" in machine.etc_network:
        yield from ("--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf")  # often a symlink into /run


def _private_filesystems(policy: Policy) -> Iterator[str]:
    """Mount private, size-limited file systems."""
    size = str(policy.limits.tmp_bytes)
    yield from ("--size", size, "--tmpfs", "/dev/shm", "--perms", "1777", "--size", size, "--tmpfs", "/tmp")
    yield from ("--dir", identity.HOME, "--dir", SCRATCH, "--dir", EMPTY_DIRECTORY)


def _generated_files(policy: Policy) -> dict[str, str]:
    """Return generated files: path to contents."""
    texts: dict[str, str] = {}
    if policy.read == "minimal":
        texts = {"/etc/passwd": identity.passwd(), "/etc/group": identity.group(), "/etc/nsswitch.conf": _NSSWITCH}
        if policy.network != "host":
            texts["/etc/hosts"] = _HOSTS  # otherwise Node queries an unreachable name server
        if policy.network == "list":
            texts["/etc/resolv.conf"] = _RESOLV
    return texts


def _files(texts: Iterable[str]) -> Iterator[str]:
    for fd, path in enumerate(texts, FIRST_TEXT_FD):
        yield from ("--perms", "0444", "--ro-bind-data", str(fd), path)


def _runtime(policy: Policy, needs: RuntimePaths) -> Iterator[str]:
    for path in needs.paths:
        yield from ("--ro-bind", path, path)
    if policy.read == "minimal":  # otherwise they exist
        for path, target in needs.links:
            yield from ("--symlink", target, path)


def _bind_options(mounts: Iterable[SandboxMount]) -> Iterator[str]:
    for mount in mounts:
        if mount.kind == "hidden-directory":
            yield from ("--tmpfs", mount.path, "--remount-ro", mount.path)
        elif mount.kind == "hidden-file":
            yield from ("--ro-bind", NO_FILE, mount.path)
        else:
            yield from ("--bind" if mount.kind == "writable" else "--ro-bind", mount.path, mount.path)


def _init_arguments(policy: Policy, machine: Machine, runtime: str) -> Iterator[str]:
    """Yield the arguments of sandbox_init.py."""
    limits = rlimits.limits(policy.limits, runtime, grouped="memory" in machine.cgroups.directories)
    rules = landlock.build_rules(machine.landlock_abi, writable=policy.profile == "workspace-write")
    yield ",".join(f"{which}={value}" for which, value in limits)
    yield from (str(rules.handled), str(rules.scoped), ",".join(f"{path}={right}" for path, right in rules.paths))


def _seal_options(workspace: Sequence[SandboxMount]) -> Iterator[str]:
    """Make root, /dev and /proc read-only: writable, they would be a second, unlimited /tmp."""
    yield from ("--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/")
    yield from ("--chdir", workspace[0].path if workspace else SCRATCH)

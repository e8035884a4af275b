"""seccomp filter: system calls denied to sessions, as classic BPF for `bwrap --seccomp`.

Everything else is allowed and limited by namespaces. Denied are kernel interfaces that REPL code does not need, ways to
a new user namespace (and so to mounts), other processes' memory, and set-user-id files, which outlive the session on
the host. Linux, Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

_X86, _ARM = "x86_64", "aarch64"
ARCHES = {_X86: 0xC000_003E, _ARM: 0xC000_00B7}  # AUDIT_ARCH_*

# name: number on x86_64, on aarch64 (None: there is none)
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # kernel interfaces with a history of exploits
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "modify_ldt": (154, None),
    "lookup_dcookie": (212, 18),
    "uselib": (134, None),
    "nfsservctl": (180, 42),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    # the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}
# Callers fall back if these are missing; their arguments are in memory, which filters cannot read.
_ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}
# name: number on x86_64, on aarch64, and which argument is the mode
_WITH_MODE: dict[str, tuple[int | None, int | None, int]] = {
    "chmod": (90, None, 1),
    "fchmod": (91, 52, 1),
    "fchmodat": (268, 53, 2),
    "fchmodat2": (452, 452, 2),
    "mknod": (133, None, 1),
    "mknodat": (259, 33, 2),
    "creat": (85, None, 1),
    "open": (2, None, 2),
    "openat": (257, 56, 3),
}
_CLONE = (56, 220)
_IOCTL = (16, 29)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)

_NEW_NAMESPACE = 0x7E02_0000  # CLONE_NEW*: ns, cgroup, uts, ipc, user, pid, net
_SET_ID = 0o6000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: injecting input into a terminal
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_X32 = 0x4000_0000

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_KILL, _ERRNO, _ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_NR_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16

Instruction = tuple[int, int, int, int]


def build_filter(arch: str, *, unix_sockets: bool = True) -> bytes:
    """Build the filter for an architecture.

    Without `unix_sockets`, host sockets cannot be connected to by path; socket pairs still work.

    Raises:
        KeyError: the system call numbers of the architecture are unknown
    """
    audit, column = ARCHES[arch], list(ARCHES).index(arch)
    out = [_load(_ARCH_AT), (_JEQ, 1, 0, audit), _ret(_KILL), _load(_NR_AT)]
    if arch == _X86:
        out += [(_JGE, 0, 1, _X32), _error(_ENOSYS)]
    for numbers in _REFUSED.values():
        out += _if_syscall(numbers[column], [_error(_EPERM)])
    for numbers in _ABSENT.values():
        out += _if_syscall(numbers[column], [_error(_ENOSYS)])
    for *pair, position in _WITH_MODE.values():
        out += _if_syscall(pair[column], [_argument(position), (_JSET, 0, 1, _SET_ID), _error(_EPERM), _ret(_ALLOW)])
    out += _if_syscall(_CLONE[column], [_argument(0), (_JSET, 0, 1, _NEW_NAMESPACE), _error(_EPERM), _ret(_ALLOW)])
    out += _if_syscall(_IOCTL[column], [_argument(1), *_deny_values(_TERMINAL_INPUT, _EPERM), _ret(_ALLOW)])
    out += _if_syscall(_SOCKETPAIR[column], [_argument(0), (_JEQ, 1, 0, _AF_UNIX), _error(_EAFNOSUPPORT), _ret(_ALLOW)])
    out += _if_syscall(_SOCKET[column], _socket_families(unix_sockets))
    out.append(_ret(_ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in out)


def _socket_families(unix_sockets: bool) -> list[Instruction]:
    """Allow socket families; of netlink only routes (protocol 0), which programs use to list addresses."""
    plain = [_AF_INET, _AF_INET6, *([_AF_UNIX] if unix_sockets else [])]
    body: list[Instruction] = [_argument(0)]
    for family in plain:
        body += [(_JEQ, 0, 1, family), _ret(_ALLOW)]
    body += [(_JEQ, 1, 0, _AF_NETLINK), _error(_EAFNOSUPPORT)]
    return [*body, _argument(2), (_JEQ, 1, 0, 0), _error(_EAFNOSUPPORT), _ret(_ALLOW)]


def _deny_values(values: Iterable[int], number: int) -> list[Instruction]:
    return [step for value in values for step in ((_JEQ, 0, 1, value), _error(number))]


def _if_syscall(number: int | None, body: list[Instruction]) -> list[Instruction]:
    """Apply `body` to one system call, whose number is in the accumulator before and, if different, after."""
    return [] if number is None else [(_JEQ, 0, len(body), number), *body]


def _load(offset: int) -> Instruction:
    return (_LD, 0, 0, offset)


def _argument(position: int) -> Instruction:
    """Load the low half of an argument, all that the kernel reads of these. Little-endian machines only."""
    return _load(_ARGS_AT + 8 * position)


def _error(number: int) -> Instruction:
    return _ret(_ERRNO | number)


def _ret(value: int) -> Instruction:
    return (_RET, 0, 0, value)

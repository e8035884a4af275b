"""The seccomp program, run by a small BPF machine: what it answers to each call, and that it always answers."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replworker.sandbox.seccomp import ARCHES, build_filter

ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
X86, ARM = "x86_64", "aarch64"


def run(code: bytes, arch: int, number: int, args: tuple[int, ...] = ()) -> int:
    """The verdict on one call. Raises IndexError when the program runs off its end."""
    data = struct.pack("<iIQ6Q", number - (1 << 32 if number >= 1 << 31 else 0), arch, 0, *args, *[0] * (6 - len(args)))
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    accumulator, at = 0, 0
    while True:
        operation, yes, no, value = steps[at]
        at += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            accumulator = int.from_bytes(data[value : value + 4], "little")
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            at += yes if test else no


def answer(number: int, *args: int, arch: str = X86, **options: bool) -> str:
    verdict = run(build_filter(arch, **options), ARCHES[arch], number, args)
    if verdict in (ALLOW, KILL):
        return "allow" if verdict == ALLOW else "kill"
    return errno.errorcode[verdict & 0xFFFF]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ((0,), "allow"),  # read
        ((101, 0), "EPERM"),  # ptrace
        ((165,), "EPERM"),  # mount
        ((272, 0x1000_0000), "EPERM"),  # unshare
        ((425,), "EPERM"),  # io_uring_setup
        ((435,), "ENOSYS"),  # clone3
        ((437,), "ENOSYS"),  # openat2
        ((56, 0x11), "allow"),  # fork
        ((56, 0x3D0F00), "allow"),  # a thread
        ((56, 0x1000_0011), "EPERM"),  # a user namespace
        ((90, 0, 0o755), "allow"),
        ((90, 0, 0o4755), "EPERM"),
        ((91, 3, 0o2755), "EPERM"),
        ((268, 0, 0, 0o4755), "EPERM"),
        ((257, 0, 0, 0o101, 0o644), "allow"),
        ((257, 0, 0, 0o101, 0o4755), "EPERM"),
        ((16, 0, 0x5413), "allow"),  # TIOCGWINSZ
        ((16, 0, 0x5412), "EPERM"),  # TIOCSTI
        ((16, 0, 0x1_0000_5412), "EPERM"),  # the kernel looks at the low half as well
        ((41, 1, 1), "allow"),  # unix
        ((41, 2, 1), "allow"),
        ((41, 10, 1), "allow"),
        ((41, 16, 3, 0), "allow"),  # routes
        ((41, 16, 3, 12), "EAFNOSUPPORT"),  # the firewall
        ((41, 17, 3), "EAFNOSUPPORT"),
        ((41, 40, 1), "EAFNOSUPPORT"),
        ((0x4000_0000 | 39,), "ENOSYS"),  # x32
    ],
)
def test_calls_on_x86_64(call: tuple[int, ...], expected: str) -> None:
    assert answer(*call) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ((63,), "allow"),
        ((117,), "EPERM"),
        ((40,), "EPERM"),
        ((97,), "EPERM"),
        ((220, 0x11), "allow"),
        ((220, 0x1000_0011), "EPERM"),
        ((53, 0, 0, 0o4755), "EPERM"),
        ((56, 0, 0, 0, 0o4755), "EPERM"),
        ((29, 0, 0x5412), "EPERM"),
        ((198, 40, 1), "EAFNOSUPPORT"),
        ((198, 1, 1), "allow"),
        ((199, 1, 1), "allow"),
    ],
)
def test_calls_on_aarch64(call: tuple[int, ...], expected: str) -> None:
    assert answer(*call, arch=ARM) == expected


def test_unix_sockets_can_be_left_out_but_not_pairs() -> None:
    assert answer(41, 1, 1, unix_sockets=False) == "EAFNOSUPPORT"
    assert answer(53, 1, 1, unix_sockets=False) == "allow"


@given(st.sampled_from(sorted(ARCHES)), st.integers(0, 2**32 - 1), st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
def test_every_call_is_answered_and_jumps_stay_inside(arch: str, number: int, args: tuple[int, ...]) -> None:
    verdict = run(build_filter(arch), ARCHES[arch], number, args)
    assert verdict in (ALLOW, KILL) or verdict >> 16 == 5


@given(st.integers(0, 2**32 - 1).filter(lambda value: value != ARCHES[X86]))
def test_a_call_of_another_architecture_is_fatal(arch: int) -> None:
    assert run(build_filter(X86), arch, 0) == KILL


def test_an_architecture_without_a_table_has_no_filter() -> None:
    with pytest.raises(KeyError):
        build_filter("riscv64")

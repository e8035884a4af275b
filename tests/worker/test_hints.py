"""Hints on failures that the sandbox causes name its setting, and are never given where it is not the cause."""

from __future__ import annotations

import pytest

from replwire.limits import MIB
from replwire.policy import Policy, SandboxLimits
from replworker.hints import find_hint

POLICY = Policy(limits=SandboxLimits(memory_bytes=512 * MIB, file_bytes=3 * MIB, tmp_bytes=2 * MIB))


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("URLError: <urlopen error [Errno -3] Temporary failure in name resolution>", "sandbox.network"),
        ("gaierror: [Errno -2] Name or service not known", "sandbox.network"),
        ("OSError: [Errno 101] Network is unreachable", "sandbox.network"),
        ("Error: connect ECONNREFUSED 127.0.0.1:80", "sandbox.network"),
        ("curl: (6) Could not resolve host: example.com", "sandbox.network"),
        ("OSError: [Errno 28] No space left on device", "2 MiB each (sandbox.tmp-bytes)"),
        ("OSError: [Errno 27] File too large", "3 MiB (sandbox.file-bytes)"),
        ("OSError: [Errno 30] Read-only file system: '/x'", "/w (but not in sandbox.protected-paths) and /tmp"),
        ("Error: EROFS: read-only file system, open '/x'", "sandbox.writable-paths"),
        ("PermissionError: [Errno 13] Permission denied: '/x'", "sandbox.readable-paths"),
        ("MemoryError: ", "512 MiB of memory (sandbox.memory-bytes)"),
        ("_ArrayMemoryError: Unable to allocate 8 TiB", "512 MiB of memory (sandbox.memory-bytes)"),
        ("bash: fork: Cannot allocate memory", "sandbox.memory-bytes"),
    ],
)
def test_a_failure_of_the_sandbox_names_its_setting(text: str, setting: str) -> None:
    assert setting in (find_hint(text, POLICY, "/w") or "")


def test_what_the_sandbox_did_not_cause_has_no_hint() -> None:
    assert find_hint("ZeroDivisionError: division by zero", POLICY, "/w") is None
    assert find_hint("gaierror: Name or service not known", Policy(network="host"), "/w") is None


def test_where_nothing_may_be_written_but_tmp_the_hint_says_so() -> None:
    result = find_hint("OSError: [Errno 30] Read-only file system", Policy(profile="read-only"), "/w")
    assert result == "writing is allowed in /tmp alone, which a reset empties (sandbox.profile)"

"""Hints on failures that a session's sandbox causes: what it allows, and which setting says so. No I/O."""

from __future__ import annotations

import re

from replwire.limits import MIB
from replwire.policy import Policy

_NETWORK = re.compile(
    r"name resolution|Name or service not known|Could not resolve host|EAI_AGAIN|ENOTFOUND|getaddrinfo"
    r"|Network is unreachable|ENETUNREACH|No route to host|EHOSTUNREACH|Connection refused|ECONNREFUSED"
)
_NO_SPACE = re.compile(r"No space left on device|ENOSPC")
_TOO_LARGE = re.compile(r"File too large|EFBIG|File size limit exceeded")
_READ_ONLY = re.compile(r"Read-only file system|EROFS")
_NO_ACCESS = re.compile(r"Permission denied|EACCES")
_NO_MEMORY = re.compile(r"MemoryError|Cannot allocate memory|ENOMEM|Array buffer allocation failed")


def find_hint(text: str, policy: Policy, directory: str | None) -> str | None:
    """Return what the sandbox has to do with a failure, in one line; None if nothing.

    Args:
        text: Type and message of the exception, or the end of stderr.
        policy: The session's policy.
        directory: The session's working directory.
    """
    limits = policy.limits
    if _NETWORK.search(text):
        return _network_hint(policy)
    if _NO_SPACE.search(text):
        return f"/tmp and /dev/shm hold {limits.tmp_bytes // MIB} MiB each (sandbox.tmp-bytes), or the disk is full"
    if _TOO_LARGE.search(text):
        return f"a file may have {limits.file_bytes // MIB} MiB (sandbox.file-bytes)"
    if _READ_ONLY.search(text):
        return _writing_hint(policy, directory)
    if _NO_ACCESS.search(text):
        reads = "the sandbox shows what the runtime needs (sandbox.readable-paths adds more)"
        return f"{reads}; {_writing_hint(policy, directory)}"
    if _NO_MEMORY.search(text):
        return f"the session has {limits.memory_bytes // MIB} MiB of memory (sandbox.memory-bytes)"
    return None


def _writing_hint(policy: Policy, directory: str | None) -> str:
    if policy.profile == "read-only":
        return "writing is allowed in /tmp alone, which a reset empties (sandbox.profile)"
    places = [f"{directory} (but not in sandbox.protected-paths)"] if directory else []
    places += policy.writable_paths
    where = ", ".join(places) + (" and " if places else "")
    return f"writing is allowed in {where}/tmp, which a reset empties (sandbox.writable-paths adds more)"


def _network_hint(policy: Policy) -> str | None:
    if policy.network == "host":
        return None
    if policy.network == "list":
        return "the session reaches listed hosts alone (sandbox.allowed-hosts)"
    return "the session has no network but its own localhost (sandbox.network)"

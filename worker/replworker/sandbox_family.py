"""Sessions whose interpreters share a sandbox: one that had it made, and its branches."""

from __future__ import annotations

from dataclasses import dataclass

from replwire.limits import KIB
from replworker.checkpoints.copies import CopySet
from replworker.checkpoints.leftovers import kill_leftovers, pids_in_session
from replworker.runtimes.interpreter_process import InterpreterProcess

_ROLLUP_BYTES = 8192
_FREEING_S = 0.5  # from the end of an interpreter until its memory is no longer counted, at most


@dataclass(frozen=True, eq=False, slots=True)
class FamilyMember:
    """A session's part of a sandbox: its interpreter, and the copies that wait."""

    process: InterpreterProcess
    copies: CopySet


class SandboxFamily:
    """The sessions of one sandbox, oldest first. Each ends what is its own; the sandbox ends with the last."""

    def __init__(self) -> None:
        self._members: list[FamilyMember] = []
        self._freed_at = 0.0

    def join(self, process: InterpreterProcess, copies: CopySet) -> FamilyMember:
        """Add a session."""
        member = FamilyMember(process, copies)
        self._members.append(member)
        return member

    @property
    def is_shared(self) -> bool:
        """True if more than one session has the sandbox."""
        return len(self._members) > 1

    def note_end(self, now: float) -> None:
        """Note that a session is ended for its memory."""
        self._freed_at = now + _FREEING_S

    def may_end(self, member: FamilyMember, now: float) -> bool:
        """Return whether a session is the one to be ended when all together use too much."""
        return not self.is_freeing(now) and self.is_largest(member)

    def is_freeing(self, now: float) -> bool:
        """Return whether the memory of a session that was ended may still be counted for the others."""
        return self.is_shared and now < self._freed_at

    def reports_memory(self, member: FamilyMember) -> bool:
        """Return whether a session reports what all of them use: the oldest does."""
        return self._members[0] is member

    def is_largest(self, member: FamilyMember) -> bool:
        """Return whether no other session uses more memory: such a one is ended when all together use too much."""
        return not self.is_shared or max(self._members, key=_used_bytes) is member

    def kill_leftovers(self, member: FamilyMember) -> list[str]:
        """Kill what a session's last interpreter has started; return the command lines.

        In a shared sandbox that is what has stayed in the interpreter's kernel session.
        """
        keep = {pid for each in self._members for pid in (each.process.pid, *each.copies.pids)}
        own = member.process.kernel_session
        if not self.is_shared:
            return kill_leftovers(member.process.outer_pid, keep)
        return [] if own is None else kill_leftovers(member.process.outer_pid, keep, own)

    def end_interpreter(self, member: FamilyMember) -> None:
        """Kill the interpreter of a session and what it has started; the sandbox too, if nobody else has it."""
        if not self.is_shared:
            member.process.kill()
            return
        member.process.kill_interpreter()
        self.kill_leftovers(member)

    def leave(self, member: FamilyMember) -> None:
        """Remove a session, with its interpreter and copies."""
        self.end_interpreter(member)
        self._members.remove(member)
        member.copies.close()
        member.process.close_interpreter()


def _used_bytes(member: FamilyMember) -> int:
    """Return what a session uses: its interpreter, what that has started, and its copies. Takes 27 ms per gigabyte."""
    own, process = member.process.kernel_session, member.process
    pids = [] if own is None else pids_in_session(process.outer_pid, own)
    return sum(map(_pss_bytes, {process.pid, *pids, *member.copies.pids} - {process.outer_pid}))


def _pss_bytes(pid: int) -> int:
    """Return the memory of a process, with its share of what others use as well."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            line = next(line for line in file.read(_ROLLUP_BYTES).splitlines() if line.startswith(b"Pss:"))
    except (OSError, StopIteration):  # it has ended
        return 0
    return int(line.split()[1]) * KIB

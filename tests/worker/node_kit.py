"""A real node driver at the end of a real socketpair and pipes, spoken to as the python harness is."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from typing import Any

from harness_kit import TIMEOUT_S, Harness
from replworker.runtimes.node.command import build_argv

CONTROL, LATE = 3, 4


def node_path() -> str | None:
    """The node to test: that of REPLCTL_TEST_NODE, or the one on the path."""
    return os.environ.get("REPLCTL_TEST_NODE") or shutil.which("node")


class Node(Harness):
    """Starts a driver on descriptors 3 and 4, as the worker does; all else is the harness's kit."""

    def __init__(self, node: str, env: dict[str, str] | None = None) -> None:
        self.control, theirs = socket.socketpair()
        late, late_theirs = os.pipe()
        # The shell puts the descriptors where the worker has them; up here they are not in its way.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64) for end in (theirs.fileno(), late_theirs)]
        places = f'exec {CONTROL}<&{high[0]} {LATE}>&{high[1]} {high[0]}<&- {high[1]}>&-; exec "$0" "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", places, *build_argv(node, CONTROL, LATE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=high,
            start_new_session=True,
            env=None if env is None else os.environ | env,
        )
        theirs.close()
        for end in (late_theirs, *high):
            os.close(end)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin_fd = self.process.stdin.fileno()
        self._late = late
        self.trace, unused = os.pipe()  # node has no use for these two, and gets neither
        os.close(unused)
        self._fd_sender, other = socket.socketpair()
        other.close()
        self._frames = bytearray()
        self._sinks = {
            self.control.fileno(): self._frames,
            self.process.stdout.fileno(): bytearray(),
            self.process.stderr.fileno(): bytearray(),
            late: bytearray(),
        }
        self.stdout, self.stderr, self.late = list(self._sinks.values())[1:]
        self._open = set(self._sinks)
        self.input_requests = 0
        self.number = 0

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a frame that is no eval and return its answer, which carries the same number."""
        self.number += 1
        self.send(n=self.number, **message)
        answer = self.frame()
        assert answer.pop("n") == self.number
        return answer

    def error(self, code: str, **options: bool) -> dict[str, Any]:
        answer = self.eval(code, **options)
        assert answer["outcome"] == "error", answer
        return answer

    def begin(self, code: str, **options: bool) -> None:
        """Start an eval and wait until it has printed a line of its own, `begun`."""
        self.stdout.clear()
        self.start_eval(f"console.log('begun');{code}", **options)
        self.until(lambda: b"begun\n" in self.stdout)

    def interrupted(self) -> dict[str, Any]:
        """Interrupt what begin() started; its result."""
        self.interrupt()
        answer = self.result()
        assert answer["outcome"] == "interrupted", answer
        return answer


__all__ = ["TIMEOUT_S", "Node", "node_path"]

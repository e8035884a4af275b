"""A peer: an interpreter on two pipes and a line that marks the end, which is what most tools do.

Nothing limits, queues or checks; a value is what the interpreter echoes. Code that prints the mark breaks it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench import procs

_MARK = "--end-of-eval--"
# How to start it, and what makes it say the mark.
_HOW = {
    "python": ([sys.executable, "-q", "-u", "-c", "import code; code.interact('', exitmsg='')"], f"print('{_MARK}')"),
    "node": (["node", "-i"], f"console.log('{_MARK}')"),
    "bash": (["bash", "--norc"], f"echo {_MARK}"),
}


class PipedInterpreter:
    """One interpreter."""

    def __init__(self, runtime: str) -> None:
        argv, self._mark = _HOW[runtime]
        self._process = procs.start(argv)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def eval(self, code: str) -> str:
        """Run code of one line; what was printed and echoed up to the mark."""
        self._in.write(f"{code}\n{self._mark}\n")
        self._in.flush()
        results: list[str] = []
        while _MARK not in (line := self._out.readline()):
            if not line:
                raise EOFError("the interpreter ended")
            results.append(line)
        return "".join(results)

    def close(self) -> None:
        """End it."""
        procs.stop(self._process)


@contextmanager
def piped(runtime: str) -> Iterator[PipedInterpreter]:
    """Start an interpreter, and end it."""
    made = PipedInterpreter(runtime)
    try:
        yield made
    finally:
        made.close()

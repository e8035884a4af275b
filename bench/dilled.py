"""A peer of clone: dill alone. `python -m bench.dilled hold|load FILE`, driven by lines on its stdin.

`hold` takes a line of code that makes the data, and writes them to FILE at each further line. `load` imports dill
first, reads FILE at its first line and says the length: no start of a process is timed.
"""

from __future__ import annotations

import sys
from typing import Any

import dill


def _hold(file: str) -> None:
    names: dict[str, Any] = {}
    exec(sys.stdin.readline(), names)
    print("ready", flush=True)
    while sys.stdin.readline():
        with open(file, "wb") as sink:
            dill.dump({"data": names["data"]}, sink)
        print("dumped", flush=True)


def _load(file: str) -> None:
    print("ready", flush=True)
    if sys.stdin.readline():
        with open(file, "rb") as source:
            print(len(dill.load(source)["data"]), flush=True)
        sys.stdin.readline()  # until the caller has looked; taking the data apart is not timed


if __name__ == "__main__":
    {"hold": _hold, "load": _load}[sys.argv[1]](sys.argv[2])

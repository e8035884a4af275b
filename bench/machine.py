"""The machine and the builds that a table was made with: what explains a figure, and nothing that names a host."""

from __future__ import annotations

import compileall
import os
import platform
import sys
import sysconfig
import timeit
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import zmq


def describe() -> list[str]:
    """One fact a line."""
    cores = len(os.sched_getaffinity(0))
    return [
        f"{_cpu_model()}, {cores} cores, Linux {platform.release().split('-')[0]}",
        f"{platform.python_implementation()} {platform.python_version()}, {_build()}, {_call_ns()} ns a call",
        f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}, msgspec {_version('msgspec')}",
        f"ipykernel {_version('ipykernel')}, jupyter_client {_version('jupyter_client')}",
        f"dill {_version('dill')}, numpy {_version('numpy')}, posit-mcp-repl {_version('posit-mcp-repl')}",
    ]


def compile_packages() -> None:
    """Compile what is measured, as an installer does: a source newer than its bytecode is compiled at every start."""
    for name in ("replwire", "replworker", "replbroker", "replctl"):
        found = find_spec(name)
        for directory in (found.submodule_search_locations or ()) if found is not None else ():
            compileall.compile_dir(directory, quiet=1)


def load() -> str:
    """Return the load of the machine; numbers of a busy one are good for their ratios only."""
    return f"load average {os.getloadavg()[0]:.1f}"


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.machine()


def _build() -> str:
    """Return the build's flags. A distribution may optimise and record nothing: so the speed is given as well."""
    flags = " ".join(
        str(sysconfig.get_config_var(name) or "")
        for name in ("CONFIG_ARGS", "PY_CORE_CFLAGS", "PY_CFLAGS_NODIST", "PY_LDFLAGS_NODIST")
    )
    pgo = "--enable-optimizations" in flags or "-fprofile-use" in flags
    lto = "--with-lto" in flags or "-flto" in flags
    debug = ", debug build" if hasattr(sys, "gettotalrefcount") else ""
    return f"{'PGO' if pgo else 'no PGO on record'}, {'LTO' if lto else 'no LTO on record'}{debug}"


def _call_ns() -> int:
    """Nanoseconds of calling a function that does nothing: tells builds of one version apart."""
    best = min(timeit.repeat("f()", "def f(): pass", number=100_000, repeat=7))
    return round(best * 10_000)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"

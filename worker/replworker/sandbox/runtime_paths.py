"""Host paths a runtime needs, found without executing it, since it is untrusted.

Symlinks of the command are followed one by one. A directory that looks like an installation of the runtime is included
whole, at its own path, which may be compiled in; a lone link or program is included alone, so `~/bin/python` does not
expose the home directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from replworker.sandbox import bounded_read

_MOST_LINKS = 40
_MOST_BYTES = 64 * 1024  # of a pyvenv.cfg or a .pth file
_MOST_NAMED = 100  # directories named by .pth files of an installation
_MARKS = ("pyvenv.cfg", "lib/node_modules", "include/node", "conda-meta")
_MOST_BASES = 16  # installations based on one another
_PYTHON = r"python3.*"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")  # always mounted


@dataclass(frozen=True, slots=True)
class RuntimePaths:
    """Directories and files to bind, and symlinks (path to target) to recreate.

    `read_only` lists those that stay read-only even inside a workspace: all except packages under development there.
    """

    paths: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    read_only: tuple[str, ...] = ()

    def with_paths(self, more: RuntimePaths) -> RuntimePaths:
        """Return the union with other paths."""
        paths = (*self.paths, *more.paths)
        links = tuple(dict.fromkeys((*self.links, *more.links)))
        return RuntimePaths(_outermost(paths), links, _outermost((*self.read_only, *more.read_only)))


def find_runtime_paths(
    *programs: str, more: tuple[str, ...] = (), may_read: Callable[[str], bool] = lambda _: True
) -> RuntimePaths:
    """Find the paths that programs need, and `more` paths, beyond those of every sandbox.

    An environment may be a session's work. Its base Python must be an executable program, and directories named by its
    .pth files must be allowed by `may_read`.

    Raises:
        FileNotFoundError: a path does not exist
        Oversized: an environment names too many paths
    """
    paths: list[str] = []
    developed: list[str] = []
    links: list[tuple[str, str]] = []
    todo = [*programs]
    for program in todo:  # grows: an environment is based on another installation
        if len(todo) > _MOST_BASES:
            raise bounded_read.Oversized(f"{programs[0]} is based on more than {_MOST_BASES} other installations")
        found, end = follow_links(os.path.abspath(program))
        links += found
        paths.append(_require_existing(end, program))
        for place in (*(path for path, _ in found), end):
            directory = _installation_of(Path(place))
            if directory is not None and str(directory) not in paths:
                paths.append(str(directory))
                developed += filter(may_read, _pth_directories(directory))
                todo += [base for base in _bases(directory) if base not in todo]
    for path in more:
        found, end = follow_links(os.path.abspath(path))
        links += found
        paths.append(_require_existing(end, path))
    wanted = _outermost([*paths, *developed])
    links = [link for link in dict.fromkeys(links) if not _inside(link[0], wanted)]
    return RuntimePaths(wanted, tuple(links), _outermost(paths))


def _require_existing(path: str, asked: str) -> str:
    if not os.path.exists(path):
        raise FileNotFoundError(2, "no such file", asked)
    return path


def follow_links(path: str) -> tuple[list[tuple[str, str]], str]:
    """Return the symlinks along a path and its target."""
    found: list[tuple[str, str]] = []
    done, rest = "/", path.strip("/").split("/")
    while rest:
        name = rest.pop(0)
        here = os.path.normpath(os.path.join(done, name))
        if not os.path.islink(here):
            done = here
            continue
        if len(found) == _MOST_LINKS:
            raise FileNotFoundError(40, "too many symlinks", path)
        target = os.readlink(here)
        found.append((here, target))
        rest = [part for part in target.split("/") if part] + rest
        done = "/" if target.startswith("/") else done
    return found, done


def _installation_of(program: Path) -> Path | None:
    """Return the installation directory of a program, or None."""
    prefix = program.parent.parent
    if len(prefix.parts) > 2 and str(prefix) not in _homes() and _is_marked(prefix):
        return prefix
    return None


def _is_marked(prefix: Path) -> bool:
    marked = any(os.path.exists(prefix / mark) for mark in _MARKS)
    return marked or any(any(bounded_read.list_matching(f"{prefix}/{lib}", _PYTHON)) for lib in ("lib", "lib64"))


def _bases(prefix: Path) -> Iterator[str]:
    """Yield the Python that a virtual environment is based on."""
    for key, value in _pairs(prefix / "pyvenv.cfg"):
        if key == "home" and value.startswith("/"):
            yield from (python for python in [*bounded_read.list_matching(value, _PYTHON)][:1] if _is_program(python))


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK, effective_ids=True)


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    for line in (bounded_read.read_text(str(file), _MOST_BYTES) or "").splitlines():
        key, _, value = line.partition("=")
        yield key.strip(), value.strip()


def _pth_directories(prefix: Path) -> Iterator[str]:
    """Yield package directories named by .pth files of an installation; never a whole home."""
    found: set[str] = set()
    for library in bounded_read.list_matching(f"{prefix}/lib", _PYTHON):
        for kind in ("site-packages", "dist-packages"):
            for file in bounded_read.list_matching(f"{library}/{kind}", r".*\.pth"):
                found.update(_parse_pth(bounded_read.read_text(file, _MOST_BYTES) or ""))
                if len(found) > _MOST_NAMED:
                    raise bounded_read.Oversized(f"the .pth files of {prefix} name more than {_MOST_NAMED} directories")
    yield from sorted(found)


def _parse_pth(text: str) -> Iterator[str]:
    for line in text.splitlines():
        path = os.path.realpath(line.strip()) if line.startswith("/") and "\0" not in line else "/"
        if len(Path(path).parts) > 2 and os.path.isdir(path) and path not in _homes():
            yield path


def _homes() -> set[str]:
    return {str(Path.home()), "/root"}


def _inside(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in (*directories, *_SYSTEM))


def _outermost(paths: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Remove paths inside other paths, or in system directories."""
    kept: list[str] = []
    for path in sorted(set(paths), key=len):
        if not _inside(path, tuple(kept)):
            kept.append(path)
    return tuple(sorted(kept))

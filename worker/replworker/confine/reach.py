"""Which paths of the host a runtime needs, found without running it: it may be anybody's.

The command's symlinks are followed one by one. Each folder that looks like an installation of the runtime is wanted
whole, at its own path (a binary may know that path); a lone link or program is wanted alone, so that a
`~/bin/python` does not bring the home along.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MOST_LINKS = 40
_MOST_PTH_BYTES = 64 * 1024
_MARKS = ("lib/python3*", "lib64/python3*", "pyvenv.cfg", "lib/node_modules", "include/node", "conda-meta")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")  # there anyway


@dataclass(frozen=True, slots=True)
class Needs:
    """Folders and files to be seen as they are, and symlinks (path to target) to be made again.

    `kept` are those that nobody is to write, also where they lie in a workspace: all but what is developed there.
    """

    paths: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    kept: tuple[str, ...] = ()

    def and_also(self, more: Needs) -> Needs:
        """Both."""
        paths = (*self.paths, *more.paths)
        links = tuple(dict.fromkeys((*self.links, *more.links)))
        return Needs(_outermost(paths), links, _outermost((*self.kept, *more.kept)))


def needs(
    *programs: str, more: tuple[str, ...] = (), may_read: Callable[[str], bool] = lambda _: True
) -> Needs:  # fmt: skip
    """What these programs need, and `more` paths, beyond what every sandbox has. Raises FileNotFoundError.

    An environment may be a session's work. So the python that it says it builds on has to be a program, and a folder
    that it says its packages lie in has to be one that `may_read` lets through.
    """
    paths: list[str] = []
    developed: list[str] = []
    links: list[tuple[str, str]] = []
    todo = [*programs]
    for program in todo:  # grows: an environment builds on another installation
        found, end = _links(os.path.abspath(program))
        links += found
        paths.append(_existing(end, program))
        for place in (*(path for path, _ in found), end):
            folder = _installation(Path(place))
            if folder is not None:
                paths.append(str(folder))
                developed += filter(may_read, _named_by(folder))
                todo += [base for base in _bases(folder) if base not in todo]
    for path in more:
        found, end = _links(os.path.abspath(path))
        links += found
        paths.append(_existing(end, path))
    wanted = _outermost([*paths, *developed])
    links = [link for link in dict.fromkeys(links) if not _inside(link[0], wanted)]
    return Needs(wanted, tuple(links), _outermost(paths))


def _existing(path: str, asked: str) -> str:
    if not os.path.exists(path):
        raise FileNotFoundError(2, "no such file", asked)
    return path


def _links(path: str) -> tuple[list[tuple[str, str]], str]:
    """The symlinks on the way of a path, and what it comes to."""
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


def _installation(program: Path) -> Path | None:
    """The folder that a program at this place belongs to."""
    prefix = program.parent.parent
    if len(prefix.parts) > 2 and str(prefix) not in _homes() and any(any(prefix.glob(mark)) for mark in _MARKS):
        return prefix
    return None


def _bases(prefix: Path) -> Iterator[str]:
    """The python that a virtual environment builds on."""
    for key, value in _pairs(prefix / "pyvenv.cfg"):
        if key == "home" and value.startswith("/"):
            yield from (str(python) for python in sorted(Path(value).glob("python3*"))[:1] if _is_program(python))


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    if file.is_file():
        for line in file.read_text(errors="replace").splitlines():
            key, _, value = line.partition("=")
            yield key.strip(), value.strip()


def _named_by(prefix: Path) -> Iterator[str]:
    """Folders that an installation reads its packages from besides its own; never a whole home."""
    for kind in ("site-packages", "dist-packages"):
        for file in prefix.glob(f"lib/python3*/{kind}/*.pth"):
            if file.stat().st_size > _MOST_PTH_BYTES:
                continue
            for line in file.read_text(errors="replace").splitlines():
                path = os.path.realpath(line.strip()) if line.startswith("/") else "/"
                if len(Path(path).parts) > 2 and os.path.isdir(path) and path not in _homes():
                    yield path


def _homes() -> set[str]:
    return {str(Path.home()), "/root"}


def _inside(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in (*folders, *_SYSTEM))


def _outermost(paths: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Without those that lie in another one, or in what is there anyway."""
    kept: list[str] = []
    for path in sorted(set(paths), key=len):
        if not _inside(path, tuple(kept)):
            kept.append(path)
    return tuple(sorted(kept))

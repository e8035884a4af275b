"""Queries besides evals: completion, lookup, snapshots. All of them can be interrupted."""

from __future__ import annotations

import sys

from . import SEALED
from .bounds import MESSAGE_BYTES, cut_marked, type_name
from .channel import ChannelBroken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple

    from .channel import Channel
    from .interrupts import Interrupts
    from .lazy_import import LazyImporter

    Message = Dict[str, Any]

__builtins__ = SEALED

_PLAIN = ("SnapshotError", "DillUnavailable", "NoDescriptor")  # the harness's own: the message is complete
_DEPTH = 3000  # minimum recursion limit for snapshots: pickling takes about six frames per level


class QueryHandlers:
    """Validates a query, runs it, and replies even if it fails."""

    def __init__(
        self, module: Any, channel: Channel, interrupts: Interrupts, late: LazyImporter, transfer_fd: int
    ) -> None:
        self._module = module
        self._channel = channel
        self._interrupts = interrupts
        self._lazy = late
        self._transfer_fd = transfer_fd
        self._dill_loader: Any = None
        self._layer: Any = None
        self._file_queries: Any = None
        self.ops: Dict[str, Callable[[Message], Message]] = {
            "complete": self._complete,
            "lookup": self._lookup,
            "dump": self._dump,
            "restore": self._restore,
            "packages": self._packages,
            "keep-files": self._files,
            "restore-files": self._files,
            "compare-files": self._files,
        }

    def use_packages(self, path: str) -> None:
        """Import from a directory of installed packages."""
        self._package_layer().use(path)

    def _package_layer(self) -> Any:
        if self._layer is None:
            self._layer = self._load("layer").ImportLayer()
        return self._layer

    def _complete(self, message: Message) -> Message:
        code, pos, most = _typed(message, code=str, pos=int, max=int)

        def work() -> Tuple[int, Any]:
            return self._load("complete").complete(self._module.__dict__, code, pos, most)  # type: ignore[no-any-return]

        found, _ = self._run(message["n"], work)
        start, items = found if found is not None else (min(max(pos, 0), len(code)), [])
        return {"t": "completions", "n": message["n"], "start": start, "items": items}

    def _lookup(self, message: Message) -> Message:
        (symbol,) = _typed(message, symbol=str)
        module = _optional(message, "module")

        def work() -> Message:
            return self._load("lookup").lookup(self._module.__dict__, symbol, module)  # type: ignore[no-any-return]

        found, _ = self._run(message["n"], work)
        return {"t": "found", "n": message["n"], **(found or {"found": False})}

    def _dump(self, message: Message) -> Message:
        (most,) = _typed(message, max=int)
        return self._snapshot(message, lambda fd, dill: self._load("snapshot").dump(self._module, fd, most, dill))

    def _restore(self, message: Message) -> Message:
        begin, size = message.get("offset", 0), message.get("size")
        if type(begin) is not int or type(size) not in (int, type(None)):
            raise ChannelBroken("offset and size are not integers")
        span = (begin, None if size is None else begin + size)
        return self._snapshot(message, lambda fd, dill: self._load("restore").restore(self._module, fd, dill, span))

    def _snapshot(self, message: Message, body: Callable[[int, Any], Message]) -> Message:
        directory = _optional(message, "dill")

        def work() -> Message:
            received = self._load("fd_receiver").ReceivedDescriptor(self._transfer_fd, message["n"])
            depth = sys.getrecursionlimit()
            sys.setrecursionlimit(max(depth, _DEPTH))
            try:
                with received as fd, self._interrupts.uninterrupted(lambda: self._dill(directory)) as dill:
                    return body(fd, dill)
            finally:
                sys.setrecursionlimit(depth)

        done, exc = self._run(message["n"], work)
        if exc is not None:
            text, _ = self._interrupts.guard(lambda: _describe(exc))
            done = {"error": text or type_name(type(exc))}
        answer = {"t": "dumped", "n": message["n"], "count": 0, "bytes": 0, "skipped": [], "error": None}
        answer.update(done or {})
        return answer

    def _packages(self, message: Message) -> Message:
        path, file, modules = _optional(message, "path"), _optional(message, "file"), message.get("modules")
        if type(modules) is not list:
            raise ChannelBroken("modules is not a list")

        def work() -> Message:
            layer = self._package_layer()
            if path is not None:
                layer.use(path)
            answer = {"imported": layer.imported(modules), "distributions": layer.distributions()}
            if file is not None:
                answer.update(layer.read_requirements(file))
            return answer

        done, exc = self._run(message["n"], work)
        error = None if exc is None else self._interrupts.guard(lambda: _describe(exc))[0] or type_name(type(exc))
        return {"t": "packages", "n": message["n"], "error": error, **(done or {})}

    def _dill(self, directory: Optional[str]) -> Any:
        if self._dill_loader is None:
            self._dill_loader = self._lazy.load("dill_loader").DillLoader()
        return self._dill_loader.find(directory)

    def _load(self, name: str) -> Any:
        return self._interrupts.uninterrupted(lambda: self._lazy.load(name))

    def _run(self, number: int, body: Callable[[], Any]) -> Tuple[Any, Optional[BaseException]]:
        def work() -> Any:
            self._interrupts.check()
            return body()

        self._interrupts.install()
        self._interrupts.expect(lambda: self._channel.interrupted(number))
        return self._interrupts.guard(work)

    def _files(self, message: Message) -> Message:
        if self._file_queries is None:
            self._file_queries = self._load("file_queries").FileQueries()
        return self._file_queries.answer(message)  # type: ignore[no-any-return]


def _describe(exc: BaseException) -> str:
    name = type_name(type(exc))
    if name == "KeyboardInterrupt":
        return "interrupted"
    return cut_marked(str(exc) if name in _PLAIN else "%s: %s" % (name, exc), MESSAGE_BYTES)


def _typed(message: Message, **fields: type) -> Tuple[Any, ...]:
    for name, kind in fields.items():
        if type(message.get(name)) is not kind:
            raise ChannelBroken("%s is not of type %s" % (name, kind.__name__))
    return tuple(message[name] for name in fields)


def _optional(message: Message, name: str) -> Optional[str]:
    value = message.get(name)
    if value is not None and type(value) is not str:
        raise ChannelBroken("%s is not a text" % name)
    return value

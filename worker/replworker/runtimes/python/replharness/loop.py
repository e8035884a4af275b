"""Main loop of the harness: reads a frame, handles it, replies, until the worker is gone."""

from __future__ import annotations

import os
import sys
import time

from . import SEALED
from .bounds import MESSAGE_BYTES, cut_marked, type_name
from .channel import ChannelBroken, ChannelClosed
from .variables import listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    from .channel import Channel
    from .interrupts import Interrupts
    from .queries import QueryHandlers
    from .run import Runner

__builtins__ = SEALED

EXIT_PROTOCOL = 70  # EX_SOFTWARE: protocol violation by the worker


class HarnessLoop:
    """Loop of the main thread. Between frames it blocks in one read(), and the harness has no other threads."""

    def __init__(
        self,
        channel: Channel,
        runner: Runner,
        interrupts: Interrupts,
        asks: QueryHandlers,
        stack: bool,
        started_as: Any,
        take_checkpoint: Callable[[Dict[str, Any]], Any],
    ) -> None:
        self._channel = channel
        self._runner = runner
        self._interrupts = interrupts
        self._started_as = started_as  # the former __main__, whose globals harness.py still uses
        self._exit = os._exit
        self._use_packages = asks.use_packages
        more = {"vars": self._vars, "clear": self._clear, **asks.ops, "checkpoint": take_checkpoint}
        self._can = [*more, "stack"] if stack else [*more]
        self._ops = {"eval": self._eval, "assign": self._assign, **more}

    def serve(self) -> None:
        """Serve forever; exits with 0 when the worker closes the channel, 70 on a protocol violation."""
        channel, ops, run_exit = self._channel, self._ops, self._exit
        try:
            channel.send(self._ready())
            while True:
                message = channel.receive()
                if message.get("op") == "interrupt":
                    continue  # its eval is over
                op = ops.get(str(message.get("op")))
                if op is None or type(message.get("n")) is not int:
                    raise ChannelBroken("no such op")
                answer = op(message)
                if answer is not None:
                    channel.send(answer)
                message = {}  # keep nothing of the last eval while waiting
        except ChannelClosed:
            run_exit(0)
        except BaseException:
            run_exit(EXIT_PROTOCOL)

    def _ready(self) -> Dict[str, Any]:
        return {
            "t": "ready",
            "runtime": "python",
            "version": sys.version.split()[0],
            "implementation": sys.implementation.name,
            "executable": sys.executable,
            "pid": os.getpid(),
            "can": self._can,
        }

    def _eval(self, message: Dict[str, Any]) -> Dict[str, Any]:
        if type(message.get("code")) is not str or type(message.get("name")) is not str:
            raise ChannelBroken("an eval without code or name")
        try:
            return self._runner.run(message)
        except ChannelClosed:
            raise
        except BaseException as exc:  # out of memory, or a damaged standard library: reply anyway
            return self._runner.failed(message["n"], exc)

    def _assign(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Set directory, environment and limits. Reports an error and does the rest anyway."""
        error = None
        try:
            self._runner.limits.update(message.get("limits"))
            env = message.get("env") or {}
            old = os.environ.get("TZ")
            os.environ.update(env)
            if os.environ.get("TZ") != old:
                time.tzset()
            if message.get("cwd") is not None:
                os.chdir(message["cwd"])
            if message.get("packages") is not None:
                self._use_packages(message["packages"])
        except Exception as exc:
            error = cut_marked("%s: %s" % (type_name(type(exc)), exc), MESSAGE_BYTES)
        return {"t": "assigned", "n": message["n"], "error": error}

    def _vars(self, message: Dict[str, Any]) -> Dict[str, Any]:
        limit = message.get("max", 200)
        if type(limit) is not int:
            raise ChannelBroken("max is not a number")

        # A library's shape property may be Python code, so it has to be interruptible.
        def work() -> Tuple[List[Dict[str, Any]], int]:
            return listing(self._runner.module.__dict__, limit)

        rows, _ = self._interrupts.guard(work)
        found, total = rows if rows is not None else ([], 0)
        return {"t": "vars", "n": message["n"], "vars": found, "total": total}

    def _clear(self, message: Dict[str, Any]) -> Dict[str, Any]:
        return {"t": "cleared", "n": message["n"], "count": self._runner.clear()}

"""Runner of an eval: from its text to its result frame."""

from __future__ import annotations

import builtins
import os
import sys

from . import SEALED
from .aio import CO_COROUTINE, Awaiting
from .bounds import CHANGED_NAMES, NAME_CHARS, HarnessLimits, plain, type_name
from .cell import Compiler
from .reloading import Reloading
from .render import render
from .trace import ExceptionText, prepare, strip
from .variables import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from .channel import Channel
    from .eval_scope import EvalScope
    from .interrupts import Interrupts
    from .lazy_import import LazyImporter
    from .rich import RichValues
    from .sources import Sources
    from .streams import UserStreams

__builtins__ = SEALED

EXIT_HINT = "sys.exit() ends the eval, not the session"
_exit_code = SystemExit.__dict__["code"].__get__


class Runner:
    """Runs evals in one namespace that lives as long as the session."""

    def __init__(
        self,
        channel: Channel,
        scope: EvalScope,
        streams: UserStreams,
        interrupts: Interrupts,
        sources: Sources,
        late: LazyImporter,
    ) -> None:
        self.limits = HarnessLimits()
        self._channel = channel
        self._scope = scope
        self._streams = streams
        self._interrupts = interrupts
        self._sources = sources
        self._reloading = Reloading(late, interrupts, sources)
        self._awaiting = Awaiting(interrupts)
        self._compiler = Compiler()
        self._getpid = os.getpid
        self._exit = os._exit
        self._pid = os.getpid()
        self._rich: Optional[RichValues] = None
        # A separate module, so that pickle finds user functions here under their names.
        self.module = type(sys)("__main__")
        self.module.__dict__["__builtins__"] = builtins
        self._initial = dict(self.module.__dict__)
        sys.modules["__main__"] = self.module
        self._namespace = self.module.__dict__  # namespace of the running eval

    def run(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Run an eval frame and return its result frame, exactly once, in the process that was asked."""
        number, silent = message["n"], bool(message.get("silent"))
        answer = _answer(number)
        module = self.module if message.get("module") is None else sys.modules.get(message["module"])
        if type(module) is not type(self.module):
            text = "Cannot resolve module: %s" % plain(str(message["module"])[:NAME_CHARS])
            answer.update(outcome="error", ex={"type": "ModuleNotFoundError", "message": text}, traceback=text + "\n")
            return answer
        namespace = self._namespace = module.__dict__
        before = {name: id(value) for name, value in list(namespace.items())}
        self._interrupts.install()
        self._interrupts.expect(lambda: self._channel.interrupted(number))
        self._streams.restore()
        self._scope.begin(number, bool(message.get("stdin")))
        self._reloading.begin(message)
        mime = message.get("mime")
        rich = self._load_rich() if mime else None
        work = _EvalBody(
            self, message["code"], message["name"], silent, bool(message.get("history")), answer, rich, mime
        )
        _, exc = self._interrupts.guard(work.run)
        if exc is not None:
            self._raised(exc, answer, silent)
        if self._getpid() != self._pid:
            self._leave_child(exc, answer)
        if rich is not None:
            if exc is not None and not isinstance(
                exc, KeyboardInterrupt
            ):  # there may be no time left after an interrupt
                self._interrupts.guard(rich.after_error)
            rich.end(answer)
        self._end()
        answer["changed"] = self._changed(namespace, before)
        self._namespace = self.module.__dict__
        return answer

    def _load_rich(self) -> Optional[RichValues]:
        """Return the rich forms, loaded on first use; None if they cannot be loaded."""
        if self._rich is None:
            try:
                from .rich import RichValues
            except Exception:  # damaged standard library: return text only
                return None
            self._rich = RichValues(self.limits)
        return self._rich

    def warm(self) -> None:
        """Use what every eval uses, so that the next one does not pay for pages shared with a copy."""
        namespace = self._namespace = self.module.__dict__
        before = {name: id(value) for name, value in list(namespace.items())}
        answer = _answer(0)
        self._streams.restore()
        self._scope.begin(0, False)
        self._reloading.begin({})
        self._interrupts.guard(_EvalBody(self, "0", "<checkpoint>", False, False, answer, None, None).run)
        self._scope.end()
        self._streams.flush()
        answer["changed"] = self._changed(namespace, before)
        self._channel.warm(answer)

    def loop_fds(self) -> Tuple[int, ...]:
        """Return descriptors of the event loop, which gets others in a process started from a copy."""
        return self._awaiting.fds()

    def revive(self) -> None:
        """Continue in a process started from a copy."""
        self._pid = self._getpid()
        self._awaiting.revive()

    def failed(self, number: int, exc: BaseException) -> Dict[str, Any]:
        """Return the result frame for a failure of the harness itself."""
        if self._getpid() != self._pid:
            self._exit(1)
        answer = _answer(number)
        name = type_name(type(exc))
        answer.update(outcome="error", ex={"type": name, "message": "in the harness"}, traceback=name + "\n")
        self._end()
        return answer

    def clear(self) -> int:
        """Delete every name the user bound and return their number (without underscore names)."""
        namespace = self.module.__dict__
        count = len(names(namespace))
        self._interrupts.guard(self._clear)
        return count

    def _clear(self) -> None:
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            sys.__dict__.pop(name, None)
        for name in ("_", "__", "___"):
            builtins.__dict__.pop(name, None)
        namespace = self.module.__dict__
        previous = dict(namespace)  # destructors run when this is cleared, with an intact namespace
        namespace.clear()
        namespace.update(self._initial)
        previous.clear()

    def check_interrupt(self) -> None:
        """Raise KeyboardInterrupt if this eval was interrupted before it began."""
        self._interrupts.check()

    def execute(self, code: str, name: str) -> Any:
        """Run the text and return the last expression's value, or None."""
        return self._reloading.run(self._namespace, name, lambda name: self._execute(code, name))

    def _execute(self, code: str, name: str) -> Any:
        self._sources.add(name, code)
        codes = self._compiler.compile(code, name)
        namespace = self._namespace
        for each in codes:
            if each.co_flags & CO_COROUTINE:
                return self._awaiting.run(codes, namespace)
        value = None
        for each in codes:
            value = eval(each, namespace)
        return value

    def _raised(self, exc: BaseException, answer: Dict[str, Any], silent: bool) -> None:
        answer.update({"outcome": "error", "value": None, "type": None, "value-dropped": 0, "repr-error": None})
        kind = type(exc)
        if issubclass(kind, SystemExit):
            answer["hint"] = EXIT_HINT
            code = _exit_code(exc)
            if code is None or (type(code) in (int, bool) and code == 0):
                answer["outcome"] = "ok"
                if not silent:
                    answer.update(value="None", type="NoneType")
                return
        elif issubclass(kind, KeyboardInterrupt):
            answer["outcome"] = "interrupted"
        reporting = _ExceptionReport(exc, self.limits, self._interrupts)
        self._interrupts.guard(reporting.run)  # str(exc) and the like are user code and may hang
        report = reporting.report
        if report is None:
            answer["ex"] = {"type": type_name(kind), "message": ""}
            answer["traceback"] = type_name(kind) + "\n"
        else:
            answer["ex"] = {"type": report.type, "message": report.message}
            answer["stacktrace"], answer["traceback"] = report.stacktrace, report.traceback
        if not issubclass(kind, SystemExit):  # for pdb.pm(), as in interactive Python
            sys.last_type, sys.last_value, sys.last_traceback = kind, exc, exc.__traceback__
            sys.__dict__["last_exc"] = exc

    def _end(self) -> None:
        for stream in self._streams.foreign():
            self._interrupts.guard(lambda stream=stream: stream.flush())  # type: ignore[misc]
        self._scope.end()
        self._streams.flush()

    @staticmethod
    def _changed(namespace: Dict[str, Any], before: Dict[str, int]) -> List[str]:
        missing = before.get
        changed = [
            name
            for name, value in list(namespace.items())
            if missing(name) != id(value) and type(name) is str and name[:1] != "_"
        ]
        changed.sort()
        return [plain(name[:NAME_CHARS]) for name in changed[:CHANGED_NAMES]]

    def _leave_child(self, exc: Optional[BaseException], answer: Dict[str, Any]) -> None:
        """Exit a fork that returned from user code and has nobody to reply to."""
        status = 0
        if exc is not None:
            code = _exit_code(exc) if isinstance(exc, SystemExit) else 1
            status = 0 if code is None else code & 0xFF if type(code) is int else 1
            try:
                if not isinstance(exc, SystemExit):
                    sys.stderr.write(answer["traceback"] or "")
            except BaseException:
                pass
        self._end()
        self._exit(status)


def _answer(number: int) -> Dict[str, Any]:
    return {
        "t": "result",
        "n": number,
        "outcome": "ok",
        "value": None,
        "type": None,
        "value-dropped": 0,
        "repr-error": None,
        "changed": [],
        "ex": None,
        "stacktrace": [],
        "traceback": None,
        "hint": None,
    }


class _EvalBody:
    """Interruptible part of an eval: the code, then its value's repr and other forms."""

    def __init__(
        self,
        runner: Runner,
        code: str,
        name: str,
        silent: bool,
        history: bool,
        answer: Dict[str, Any],
        rich: Optional[RichValues],
        mime: Any,
    ) -> None:
        self._runner = runner
        self._what: Tuple[str, str] = (code, name)
        self._silent = silent
        self._history = history
        self._answer = answer
        self._rich = rich
        self._mime = mime

    def run(self) -> None:
        self._runner.check_interrupt()
        rich = self._rich
        if rich is not None:
            rich.begin(self._mime)
        value = self._runner.execute(*self._what)
        if self._history and value is not None:
            kept = builtins.__dict__
            kept["___"], kept["__"], kept["_"] = kept.get("__"), kept.get("_"), value
        if not self._silent:
            answer = self._answer
            answer["type"] = type_name(type(value))
            try:
                shown = value if rich is None else rich.text(value)
                answer["value"], answer["value-dropped"] = render(shown, self._runner.limits.value_bytes)
            except KeyboardInterrupt:
                raise
            except BaseException as exc:
                answer["repr-error"] = type_name(type(exc))
        if rich is not None:
            rich.show(None if self._silent else value)


class _ExceptionReport:
    """Report of an exception, created with interrupts enabled."""

    def __init__(self, exc: BaseException, limits: HarnessLimits, interrupts: Interrupts) -> None:
        self._exc = exc
        self._interrupts = interrupts
        self._limits = limits
        self.report: Optional[ExceptionText] = None

    def run(self) -> None:
        self._interrupts.uninterrupted(prepare)
        strip(self._exc)
        self.report = ExceptionText(self._exc, self._limits)

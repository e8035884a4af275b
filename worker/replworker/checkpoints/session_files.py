"""Files of a session's directory at its checkpoints: kept, brought back and compared by the session's interpreter.

The interpreter does all of this inside the sandbox, with the session's rights: the worker opens none of these files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from replwire.deadlines import Deadlines
from replwire.limits import Limits
from replworker.interpreter import Interpreter, InterpreterBroken
from replworker.runtimes import frames
from replworker.runtimes.file_frames import CompareFilesFrame, FilesFrame, KeepFilesFrame, RestoreFilesFrame

KEEP_S = 60.0  # for the contents of a large directory to be kept
_RESTORE_S = 60.0
_PATCH_CHARS = 200_000
UNCHANGED = "files stay as the interpreter left them: a rollback to the checkpoint brings them back"


class SessionFiles:
    """Files of one session. `is_on` says whether its checkpoints keep them, and `off` why not."""

    def __init__(self, interpreter: Interpreter, timers: Deadlines) -> None:
        self._interpreter = interpreter
        self._timers = timers
        self._directory: str | None = None
        self._notes: dict[int, list[str]] = {}
        self.is_on = False
        self.off = "a branch keeps no files: it shares the directory of its source"

    def assign(self, directory: str | None, *, wanted: bool) -> None:
        """Note the session's directory, and whether its files are to be kept."""
        self._directory = directory
        self.is_on = wanted and directory is not None and self._interpreter.supports("keep-files")
        self.off = "the session's checkpoints keep no files: open it with --files (`checkpoint-files`)"

    def notes_of(self, number: int) -> list[str]:
        """Return what a checkpoint lacks, in sentences."""
        return self._notes.get(number, [])

    def keep(self, number: int, live: Iterable[int], limits: Limits) -> None:
        """Have the files kept for a checkpoint, before it is taken."""
        assert self._directory is not None
        numbers = sorted({*live, number})
        self._notes = {each: notes for each, notes in self._notes.items() if each in numbers}

        def on_reply(event: frames.FrameEvent) -> None:
            assert isinstance(event, FilesFrame)
            self._notes[number] = event.notes if event.error is None else [f"files were not kept: {event.error}"]

        most = limits.max_checkpoint_file_bytes
        frame = KeepFilesFrame(self._interpreter.next_number(), self._directory, most, number, numbers)
        self._interpreter.request(frame, on_reply)

    def restore(self, number: int, then: Callable[[list[str]], None]) -> None:
        """Have the files of a checkpoint brought back; `then` gets what is not restored, in sentences."""

        def give_up(_: float) -> None:
            raise InterpreterBroken(f"the files of checkpoint {number} were not restored within {_RESTORE_S:g} s")

        deadline = self._timers.call_at(time.monotonic() + _RESTORE_S, give_up)

        def on_reply(event: frames.FrameEvent) -> None:
            assert isinstance(event, FilesFrame)
            self._timers.cancel(deadline)
            failed = [] if event.error is None else [f"files were not restored: {event.error}"]
            then([*self.notes_of(number), *failed, *event.notes])

        self._interpreter.request(RestoreFilesFrame(self._interpreter.next_number(), number), on_reply)

    def compare(self, number: int, then: Callable[[FilesFrame], None]) -> None:
        """Have the files compared with those of a checkpoint."""

        def on_reply(event: frames.FrameEvent) -> None:
            assert isinstance(event, FilesFrame)
            then(event)

        frame = CompareFilesFrame(self._interpreter.next_number(), number, _PATCH_CHARS)
        self._interpreter.request(frame, on_reply)

"""Watches the directories of keys and tokens, so that a withdrawn key takes effect at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from replbroker.file_watch import FileWatch
from replbroker.loop_parts import Register, Unregister

_log = logging.getLogger(__name__)


class KeyWatch:
    """Watch on key directories; without inotify a withdrawn key takes effect at the holder's next request."""

    def __init__(self, directories: Sequence[Path], on_change: Callable[[], None]) -> None:
        self._directories = directories
        self._on_change = on_change
        self._files: FileWatch | None = None
        try:
            self._files = FileWatch()
        except OSError as error:
            _log.warning("withdrawn keys end pending requests within seconds, not at once: %s", error.strerror)

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Register the descriptor of the watch."""
        if self._files is not None:
            self._add_directories(self._files)
            register(self._files.fd, self._handle_change)

    def _handle_change(self) -> None:
        assert self._files is not None, "registered only with a watch"
        self._files.take_changes()
        self._add_directories(self._files)
        self._on_change()

    def _add_directories(self, files: FileWatch) -> None:
        for directory in self._directories:
            files.add(directory)

    def close(self) -> None:
        """Stop watching."""
        if self._files is not None:
            self._files.close()

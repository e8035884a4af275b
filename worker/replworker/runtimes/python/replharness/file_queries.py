"""Queries about the files of the session's directory: keep them for a checkpoint, bring them back, compare them."""

from __future__ import annotations

import os

from . import SEALED
from .bounds import MESSAGE_BYTES, cut_marked, type_name
from .channel import ChannelBroken
from .file_changes import compare
from .file_restore import restore
from .file_versions import FileVersions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Message = Dict[str, Any]

__builtins__ = SEALED

_MAX_CHANGES = 1000


class FileQueries:
    """Answers with what could not be done, never with an exception."""

    def __init__(self) -> None:
        self._versions: Optional[FileVersions] = None

    def answer(self, message: Message) -> Message:
        """Answer a query."""
        answer: Message = {"t": "files", "n": message["n"]}
        if type(message.get("number")) is not int:
            raise ChannelBroken("number is not an integer")
        try:
            answer.update(self._answer(message, message["number"]))
        except (OSError, MemoryError, KeyError, RecursionError) as exc:
            why = "the session's interpreter does not know the files of that checkpoint"
            text = why if type(exc) is KeyError else getattr(exc, "strerror", None) or type_name(type(exc))
            answer["error"] = cut_marked(str(text), MESSAGE_BYTES)
        return answer

    def _answer(self, message: Message, number: int) -> Message:
        if message["op"] == "keep-files":
            return {"notes": self._keep(message, number)}
        if self._versions is None:
            raise KeyError(number)
        if message["op"] == "restore-files":
            return {"notes": restore(self._versions, number)}
        changes, patch, truncated = compare(self._versions, number, message["max"])
        return {
            "changes": changes[:_MAX_CHANGES],
            "patch": patch,
            "truncated": truncated or len(changes) > _MAX_CHANGES,
        }

    def _keep(self, message: Message, number: int) -> List[str]:
        root, most, live = message.get("root"), message.get("max"), message.get("live")
        if type(root) is not str or type(most) is not int or type(live) is not list:
            raise ChannelBroken("keep-files without root, max or live")
        name = os.fsencode(root)
        if self._versions is None or self._versions.root != name:
            self._versions = FileVersions(name, most)
        return self._versions.keep(number, frozenset(live))

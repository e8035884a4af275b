"""Client operations that move files, shared by both clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replctl.client.base import BaseClient, ReplyT, ResultT
from replwire.identifiers import DEFAULT_SESSION

if TYPE_CHECKING:
    from replctl.client.files import LocalPath, OnProgress


class FileOperations(BaseClient[ReplyT, ResultT]):
    """Operations that move files. Each raises ReplError if the broker refuses, and OSError for the local file."""

    def put_file(
        self,
        source: LocalPath | bytes,
        file: str,
        session: str = DEFAULT_SESSION,
        on_progress: OnProgress | None = None,
    ) -> ReplyT:
        """Write a file in a session, inside its sandbox; a transfer that was cut off goes on where it ended.

        Args:
            source: A local file, or the content.
            file: Path in the session; a relative one counts from its working directory.
            session: Name or id of the session.
            on_progress: Called with the bytes moved so far and those of the whole file.
        """
        from replctl.client import files

        return self._perform(files.put_file(source, {"session": session, "file": file}, on_progress))

    def get_file(
        self,
        file: str,
        target: LocalPath | None = None,
        session: str = DEFAULT_SESSION,
        on_progress: OnProgress | None = None,
    ) -> ReplyT:
        """Read a file of a session, as its own code could; a transfer that was cut off goes on where it ended.

        Args:
            file: Path in the session; a relative one counts from its working directory.
            target: A local file to write; None: the reply's `data` has the content.
            session: Name or id of the session.
            on_progress: Called with the bytes moved so far and those of the whole file.
        """
        from replctl.client import files

        return self._perform(files.get_file({"session": session, "file": file}, target, on_progress))

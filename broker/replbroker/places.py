"""What of a broker lies on the file system, and how each is made anew: see own_places."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from replbroker.doors import unix_door
from replbroker.endpoints import Held, private_folder
from replbroker.launch.scratch import Scratch
from replbroker.session_list import SessionListFile
from replwire.private_directories import make_private_directory


class ScratchPlace:
    """The folder where its own parts meet. Workers that are connected stay so."""

    def __init__(self, scratch: Scratch, socket: str, rebind: Callable[[], object], renew: Callable[[], None]) -> None:
        self._scratch = scratch
        self._socket = socket
        self._rebind = rebind
        self._renew = renew
        self.directory = str(scratch.path)

    def mend(self) -> str | None:
        """The folder, the socket that workers come to, and the fork server, whose own is there too."""
        if self._scratch.is_there() and os.path.exists(self._socket):
            return None
        if not self._scratch.is_there():
            self._scratch.renew()
        self._rebind()
        self._renew()
        return f"{self.directory} was gone and is there again; sessions go on"


class EndpointPlace:
    """The socket file of an ipc endpoint, and its lock."""

    def __init__(self, held: Held, rebind: Callable[[], object]) -> None:
        assert held.path is not None
        self._held = held
        self._path = held.path
        self._rebind = rebind
        self.directory = str(held.path.parent)

    def mend(self) -> str | None:
        """Connections go on; new ones find it again."""
        assert self._held.lock is not None
        lost = not self._held.lock.is_ours()
        if lost:
            private_folder(self._path.parent)
            self._held.lock.renew()
        if not self._path.exists():
            self._rebind()
            lost = True
        return f"{self._path} was gone and is there again; sessions and connections go on" if lost else None


class LinesPlace:
    """The socket file of line clients. Their connections go on."""

    def __init__(self, path: Path, listen: Callable[[socket.socket], None]) -> None:
        self._path = path
        self._listen = listen
        self.directory = str(path.parent)

    def mend(self) -> str | None:
        """What is there by now, whosoever it is, is let be."""
        if os.path.lexists(self._path):
            return None
        self._listen(unix_door(str(self._path)).socket)
        return f"{self._path} was gone and is there again; connections go on"


class StatePlace:
    """The state folder, with the list of sessions."""

    def __init__(self, folder: Path, session_list: SessionListFile) -> None:
        self._folder = folder
        self._session_list = session_list
        self._inode = self._seen()
        self.directory = str(folder)

    def mend(self) -> str | None:
        """Files that were in it are lost, but for those that the broker writes anew."""
        if self._session_list.is_ours():
            return None
        gone = self._inode != self._seen()
        make_private_directory(self._folder)
        if self._folder.stat().st_uid == os.geteuid():
            self._folder.chmod(0o700)  # whoever was first to need it may have made it as any other
        self._session_list.renew()
        self._inode = self._seen()
        if not gone:
            return f"{self._folder}: the lock of its list of sessions was gone and is there again"
        return f"{self._folder} was gone and is there again; keys, transcripts and the audit that lay there are lost"

    def _seen(self) -> int:
        try:
            return self._folder.stat().st_ino
        except OSError:
            return 0

"""What of a broker lies on the file system, and how each is made anew: see own_places."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from replbroker.endpoints import BrokerEndpoint, ensure_private_dir
from replbroker.launch.private_temp_dir import PrivateTempDir
from replbroker.listeners import listen_unix
from replbroker.session_list import SessionListFile
from replwire.private_directories import make_private_directory


class MonitoredPrivateDir:
    """The folder where its own parts meet. Workers that are connected stay so."""

    def __init__(
        self,
        private_dir: PrivateTempDir,
        socket: str,
        rebind: Callable[[], object],
        restart_fork_server: Callable[[], None],
    ) -> None:
        self._private_dir = private_dir
        self._socket = socket
        self._rebind = rebind
        self._restart_fork_server = restart_fork_server
        self.directory = str(private_dir.path)

    def repair(self) -> str | None:
        """The folder, the socket that workers come to, and the fork server, whose own is there too."""
        if self._private_dir.exists() and os.path.exists(self._socket):
            return None
        if not self._private_dir.exists():
            self._private_dir.recreate()
        self._rebind()
        self._restart_fork_server()
        return f"{self.directory} was gone and is there again; sessions go on"


class MonitoredEndpoint:
    """The socket file of an ipc endpoint, and its lock."""

    def __init__(self, endpoint: BrokerEndpoint, rebind: Callable[[], object]) -> None:
        assert endpoint.path is not None
        self._endpoint = endpoint
        self._path = endpoint.path
        self._rebind = rebind
        self.directory = str(endpoint.path.parent)

    def repair(self) -> str | None:
        """Connections go on; new ones find it again."""
        assert self._endpoint.lock is not None
        lost = not self._endpoint.lock.is_held()
        if lost:
            ensure_private_dir(self._path.parent)
            self._endpoint.lock.reacquire()
        if not self._path.exists():
            self._rebind()
            lost = True
        return f"{self._path} was gone and is there again; sessions and connections go on" if lost else None


class MonitoredLineSocket:
    """The socket file of line clients. Their connections go on."""

    def __init__(self, path: Path, listen: Callable[[socket.socket], None]) -> None:
        self._path = path
        self._listen = listen
        self.directory = str(path.parent)

    def repair(self) -> str | None:
        """What is there by now, whosoever it is, is let be."""
        if os.path.lexists(self._path):
            return None
        self._listen(listen_unix(str(self._path)).socket)
        return f"{self._path} was gone and is there again; connections go on"


class MonitoredStateDir:
    """The state folder, with the list of sessions."""

    def __init__(self, state_dir: Path, session_list: SessionListFile) -> None:
        self._state_dir = state_dir
        self._session_list = session_list
        self._inode = self._current_inode()
        self.directory = str(state_dir)

    def repair(self) -> str | None:
        """Files that were in it are lost, but for those that the broker writes anew."""
        if self._session_list.is_locked():
            return None
        gone = self._inode != self._current_inode()
        make_private_directory(self._state_dir)
        if self._state_dir.stat().st_uid == os.geteuid():
            self._state_dir.chmod(0o700)  # whoever was first to need it may have made it as any other
        self._session_list.recreate()
        self._inode = self._current_inode()
        if not gone:
            return f"{self._state_dir}: the lock of its list of sessions was gone and is there again"
        return f"{self._state_dir} was gone and is there again; keys, transcripts and the audit that lay there are lost"

    def _current_inode(self) -> int:
        try:
            return self._state_dir.stat().st_ino
        except OSError:
            return 0

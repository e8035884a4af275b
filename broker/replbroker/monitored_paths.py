"""The broker's directories and sockets, and how each is recreated: see path_monitor."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from replbroker.endpoints import BrokerEndpoint, ensure_private_dir
from replbroker.journal import Journal
from replbroker.launch.private_temp_dir import PrivateTempDir
from replbroker.listeners import listen_unix
from replwire.private_directories import make_private_directory


class MonitoredPrivateDir:
    """Directory of the sockets between the broker's own parts.

    Args:
        private_dir: The directory.
        socket: Path of the socket that workers connect to.
        rebind: Binds that socket again.
        restart_fork_server: Has the fork server replaced, whose socket is there too.
    """

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
        """Recreate the directory, the workers' socket and the fork server; connected workers stay connected."""
        if self._private_dir.exists() and os.path.exists(self._socket):
            return None
        if not self._private_dir.exists():
            self._private_dir.recreate()
        self._rebind()
        self._restart_fork_server()
        return f"{self.directory} had been deleted and was recreated; sessions continue"


class MonitoredEndpoint:
    """Socket file of an ipc endpoint, and its lock.

    Args:
        endpoint: The endpoint.
        rebind: Binds the socket file again.
    """

    def __init__(self, endpoint: BrokerEndpoint, rebind: Callable[[], object]) -> None:
        assert endpoint.path is not None
        self._endpoint = endpoint
        self._path = endpoint.path
        self._rebind = rebind
        self.directory = str(endpoint.path.parent)

    def repair(self) -> str | None:
        """Recreate lock and socket file, so that new connections find the broker; open ones go on."""
        assert self._endpoint.lock is not None
        is_missing = not self._endpoint.lock.is_held()
        if is_missing:
            ensure_private_dir(self._path.parent)
            self._endpoint.lock.reacquire()
        if not self._path.exists():
            self._rebind()
            is_missing = True
        if not is_missing:
            return None
        return f"{self._path} had been deleted and was recreated; sessions and connections continue"


class MonitoredLineSocket:
    """Socket file of line clients.

    Args:
        path: The socket file.
        listen: Accepts clients at a bound socket.
    """

    def __init__(self, path: Path, listen: Callable[[socket.socket], None]) -> None:
        self._path = path
        self._listen = listen
        self.directory = str(path.parent)

    def repair(self) -> str | None:
        """Recreate the socket file, unless another file has taken its place; open connections go on."""
        if os.path.lexists(self._path):
            return None
        self._listen(listen_unix(str(self._path)).socket)
        return f"{self._path} had been deleted and was recreated; connections continue"


class MonitoredStateDir:
    """State directory with the list of sessions."""

    def __init__(self, state_dir: Path, journal: Journal) -> None:
        self._state_dir = state_dir
        self._journal = journal
        self._inode = self._current_inode()
        self.directory = str(state_dir)

    def repair(self) -> str | None:
        """Recreate the directory and the list of sessions; other files that were in it are lost."""
        if self._journal.is_locked():
            return None
        was_deleted = self._inode != self._current_inode()
        make_private_directory(self._state_dir)
        if self._state_dir.stat().st_uid == os.geteuid():
            self._state_dir.chmod(0o700)  # another program may have created it with the usual mode
        self._journal.recreate()
        self._inode = self._current_inode()
        if not was_deleted:
            return f"{self._state_dir}: the lock of its list of sessions had been deleted and was recreated"
        lost = "keys, transcripts and the audit that were in it are lost"
        return f"{self._state_dir} had been deleted and was recreated; {lost}"

    def _current_inode(self) -> int:
        try:
            return self._state_dir.stat().st_ino
        except OSError:
            return 0

"""The session list file: the epoch of every name and which sessions are open, for the next broker at the endpoint.

One line of JSON a change, appended when it happens; the last line of a name counts. A line is written before any
client can be told of the change: some hundred bytes when a session is opened, loses its worker or is closed, none for
an eval. A broker that is killed leaves a whole file. The file is rewritten at each start, and when it has grown long.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from replbroker.core.effects import SavedSessions, SessionRecord
from replbroker.endpoints import acquire_endpoint_lock

_VERSION = 1
_MAX_BYTES = 64 << 20  # no broker writes a longer file
_MAX_LINES = 5000  # appended before the file is rewritten
_MAX_APPENDED_BYTES = 16 << 20  # project names may be long, and a thousand remembered sessions have to fit as well
_MAX_EPOCH = 2**31  # no broker reaches it; epochs counted on from here still fit the wire


class _SessionListHeader(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    pid: int
    floor: int


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_SessionListHeader).decode
_decode_record = msgspec.json.Decoder(SessionRecord).decode


class CorruptSessionList(Exception):
    """The file exists, and cannot be read as a session list."""


def read_session_list(path: Path) -> tuple[int, SavedSessions]:
    """Read a session list file.

    Returns:
        The pid of the broker that wrote the file, and the saved sessions.

    Raises:
        OSError: The file cannot be read.
        CorruptSessionList: It is not a session list of this user.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_size > _MAX_BYTES:
            raise CorruptSessionList("not a file of this user, or too long")
        data = file.read(_MAX_BYTES)
    header, *lines = data.split(b"\n")
    if lines[-1:] != [b""]:
        raise CorruptSessionList("its end is missing")
    try:
        first = _decode_header(header)
        records = [_decode_record(line) for line in lines[:-1]]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptSessionList(str(error)) from None
    if first.version != _VERSION:
        raise CorruptSessionList(f"of version {first.version}")
    if not all(0 <= epoch < _MAX_EPOCH for epoch in (first.floor, *(record.epoch for record in records))):
        raise CorruptSessionList("an epoch out of bounds")
    latest = {(record.owner, record.name or record.id, record.scope): record for record in records}
    return first.pid, SavedSessions(first.floor, list(latest.values()))


class SessionListFile:
    """The session list of one endpoint. A failed write costs the list, never a session.

    Args:
        state_dir: The broker's state directory.
        endpoint: Address of the endpoint.
        unix_time: The time now, in seconds.
        timeout_s: Seconds to wait for a broker there that is about to end.

    Raises:
        StartError: A broker at this endpoint is alive, even if its socket has vanished.
    """

    def __init__(self, state_dir: str, endpoint: str, unix_time: float, timeout_s: float = 0.0) -> None:
        name = hashlib.blake2b(endpoint.encode(), digest_size=6).hexdigest()
        self._path = Path(state_dir) / f"sessions-{name}.ndjson"
        self._lock = acquire_endpoint_lock(f"{self._path}.lock", timeout_s, endpoint)
        self._unix_time = unix_time
        self._current_records: Callable[[], SavedSessions] = lambda: SavedSessions(0, [])
        self._fd = -1
        self._lines = self._appended_bytes = 0

    def read_previous(self) -> tuple[SavedSessions, str | None]:
        """Read what the previous broker saved.

        Where the epochs are lost, they are taken to be lower than the minutes since 1970: no name gets a worker a
        minute for all that time, and a later loss finds a higher number.

        Returns:
            The saved sessions, and what is wrong with the file, if anything is.
        """
        try:
            return read_session_list(self._path)[1], None
        except FileNotFoundError:
            return SavedSessions(0, []), None
        except (OSError, CorruptSessionList) as error:
            return SavedSessions(int(self._unix_time / 60), []), f"{self._path}: {error}"

    def start(self, current_records: Callable[[], SavedSessions]) -> str | None:
        """Write the file for the first time.

        Args:
            current_records: Returns every record that counts at the moment.

        Returns:
            Why the file cannot be written, or None.
        """
        self._current_records = current_records
        return self._rewrite()

    def append(self, record: SessionRecord) -> str | None:
        """Append a record, which `current_records` already includes; return why it cannot be written, or None."""
        if self._fd < 0 or self._lines >= _MAX_LINES or self._appended_bytes >= _MAX_APPENDED_BYTES:
            return self._rewrite()
        line = _encode(record) + b"\n"
        self._lines += 1
        self._appended_bytes += len(line)
        try:
            if os.write(self._fd, line) == len(line):
                return None
            reason = "cut short"
        except OSError as error:
            reason = error.strerror or str(error)
        self._close_file()  # the last line may be incomplete: the next change rewrites the file
        return f"{self._path}: {reason}"

    def is_locked(self) -> bool:
        """Return whether the lock that keeps other brokers from this endpoint still exists."""
        return self._lock.is_held()

    def recreate(self) -> None:
        """Write lock and file again after their directory was recreated.

        Raises:
            OSError: The lock cannot be created.
            AlreadyLocked: Another broker has the endpoint by now.
        """
        self._lock.reacquire()
        self._rewrite()

    def _rewrite(self) -> str | None:
        self._close_file()
        saved, temporary = self._current_records(), self._path.with_suffix(".new")
        header = _encode(_SessionListHeader(_VERSION, os.getpid(), saved.floor))
        data = b"\n".join([header, *map(_encode, saved.records), b""])
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            temporary.unlink(missing_ok=True)
            fd = os.open(temporary, flags, 0o600)
            try:
                written = os.write(fd, data)
                os.fsync(fd)
                if written < len(data):
                    raise OSError("cut short")
                temporary.replace(self._path)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            return f"{self._path}: {error.strerror or error}"
        self._fd, self._lines, self._appended_bytes = fd, 0, 0
        return None

    def close(self) -> None:
        """Close the file, which stays for the next broker, and release the lock."""
        self._close_file()
        self._lock.close()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

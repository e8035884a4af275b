"""The session list file: the epoch of every name and which sessions are open, for the broker that comes next.

One line of JSON a change, appended when it happens; the last of a name counts. It is written before a client can be
told of it: one write of some hundred bytes when a session is opened, loses its worker or is closed, none for an eval.
A broker that is killed leaves a whole file. Each start writes the file anew, and so does a long life.
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
_MAX_BYTES = 64 << 20  # no file of ours is as long
_MAX_LINES = 5000  # appended before the file is written anew
_MAX_APPENDED_BYTES = (
    16 << 20
)  # bytes: names of projects may be long, and what is remembered of a thousand has to fit as well
_MAX_EPOCH = 2**31  # none of ours is as high; what comes after fits the wire


class _SessionListHeader(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    pid: int
    floor: int


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_SessionListHeader).decode
_decode_record = msgspec.json.Decoder(SessionRecord).decode


class CorruptSessionList(Exception):
    """The file is there, and cannot be read as one of ours."""


def read_session_list(path: Path) -> tuple[int, SavedSessions]:
    """The pid of the broker that wrote a file, and what that saved. Raises OSError, or ListDamaged."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_size > _MAX_BYTES:
            raise CorruptSessionList("not a file of this user's, or too long")
        data = file.read(_MAX_BYTES)
    head, *lines = data.split(b"\n")
    if lines[-1:] != [b""]:
        raise CorruptSessionList("its end is missing")
    try:
        first = _decode_header(head)
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
    """One file an endpoint. What cannot be written costs the list, never a session."""

    def __init__(self, state_dir: str, endpoint: str, unix_time: float, timeout_s: float = 0.0) -> None:
        """Raises StartError when a broker at this endpoint lives, whatever has become of its socket."""
        name = hashlib.blake2b(endpoint.encode(), digest_size=6).hexdigest()
        self._path = Path(state_dir) / f"sessions-{name}.ndjson"
        self._lock = acquire_endpoint_lock(f"{self._path}.lock", timeout_s, endpoint)
        self._unix_time = unix_time
        self._current_records: Callable[[], SavedSessions] = lambda: SavedSessions(0, [])
        self._fd = -1
        self._lines = self._appended_bytes = 0

    def read_previous(self) -> tuple[SavedSessions, str | None]:
        """What a broker before this one saved, and what is wrong with that, if anything is.

        Epochs that are not known are taken to be lower than the minutes since 1970: no name gets a worker a minute for
        all that time, and a later damage finds a higher number.
        """
        try:
            return read_session_list(self._path)[1], None
        except FileNotFoundError:
            return SavedSessions(0, []), None
        except (OSError, CorruptSessionList) as error:
            return SavedSessions(int(self._unix_time / 60), []), f"{self._path}: {error}"

    def start(self, saved: Callable[[], SavedSessions]) -> str | None:
        """Write what `saved` gives, all that counts at any moment; why it could not be written, or None."""
        self._current_records = saved
        return self._rewrite()

    def append(self, record: SessionRecord) -> str | None:
        """Add one record, which `saved` has by now; why that could not be done, or None."""
        if self._fd < 0 or self._lines >= _MAX_LINES or self._appended_bytes >= _MAX_APPENDED_BYTES:
            return self._rewrite()
        line = _encode(record) + b"\n"
        self._lines += 1
        self._appended_bytes += len(line)
        try:
            if os.write(self._fd, line) == len(line):
                return None
            trouble = "cut short"
        except OSError as error:
            trouble = error.strerror or str(error)
        self._close_file()  # its last line may be a half one: the next change writes it anew
        return f"{self._path}: {trouble}"

    def is_locked(self) -> bool:
        """Whether what keeps another broker from this endpoint is still there."""
        return self._lock.is_held()

    def recreate(self) -> None:
        """The folder was made anew. Raises OSError, and Locked when another broker has the endpoint by now."""
        self._lock.reacquire()
        self._rewrite()

    def _rewrite(self) -> str | None:
        self._close_file()
        saved, scratch = self._current_records(), self._path.with_suffix(".new")
        head = _encode(_SessionListHeader(_VERSION, os.getpid(), saved.floor))
        data = b"\n".join([head, *map(_encode, saved.records), b""])
        try:
            scratch.unlink(missing_ok=True)
            fd = os.open(
                scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            try:
                written = os.write(fd, data)
                os.fsync(fd)
                if written < len(data):
                    raise OSError("cut short")
                scratch.replace(self._path)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            return f"{self._path}: {error.strerror or error}"
        self._fd, self._lines, self._appended_bytes = fd, 0, 0
        return None

    def close(self) -> None:
        """The end of the broker. The file stays, for the next one."""
        self._close_file()
        self._lock.close()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

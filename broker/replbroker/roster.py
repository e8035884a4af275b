"""The list of live sessions on disk, so that a broker that was killed leaves word of what went with it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from replbroker.endpoints import locked


class Kept(msgspec.Struct):
    """What the file holds."""

    pid: int
    sessions: list[str]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Roster:
    """One file an endpoint. A full disk costs the list, never a session: `save` tells, and goes on."""

    def __init__(self, state_dir: str, endpoint: str, patience_s: float = 0.0) -> None:
        """Raises StartError when a broker at this endpoint lives, whatever has become of its socket."""
        name = hashlib.blake2b(endpoint.encode(), digest_size=6).hexdigest()
        self._path = Path(state_dir) / f"roster-{name}.json"
        self._lock = locked(f"{self._path}.lock", patience_s, endpoint)
        self._saved: list[str] = []

    def previous(self) -> list[str]:
        """Sessions of a broker at this endpoint that never said goodbye."""
        return self._kept().sessions

    def _kept(self) -> Kept:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Kept)
        except (OSError, msgspec.MsgspecError):
            return Kept(0, [])

    def save(self, sessions: list[str]) -> str | None:
        """Write the list; why it could not be written, or None."""
        self._saved = sessions
        scratch = self._path.with_suffix(".new")
        try:
            with open(scratch, "wb", opener=_private) as file:
                file.write(msgspec.json.encode(Kept(os.getpid(), sessions)))
            scratch.replace(self._path)
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        return None

    def is_ours(self) -> bool:
        """Whether what keeps another broker from this endpoint is still there."""
        return self._lock.is_ours()

    def renew(self) -> None:
        """The folder was made anew. Raises OSError, and Locked when another broker has the endpoint by now."""
        self._lock.renew()
        self.save(self._saved)

    def remove(self) -> None:
        """A clean end: nothing was lost that nobody was told about. A list that another broker keeps by now stays."""
        ours = self._kept().pid in (0, os.getpid())
        self._lock.close()
        if not ours:
            return
        for path in (self._path, self._path.with_suffix(".new")):
            path.unlink(missing_ok=True)

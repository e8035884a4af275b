"""The journal: what the broker alone knows, in a file of one endpoint, for the next broker there.

The records of a call are appended by one write before its effects are carried out, so a broker that is killed leaves
what it has told anybody. Nothing is synced to the disk but a file that was written anew: after the end of the machine
there is no session to be found again. The file is written anew at each start, and when half of it was appended.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from replbroker.core.records import KeyHistory, Record, SavedState, WorkerRecord
from replbroker.endpoints import StartError, acquire_endpoint_lock
from replbroker.journal_lines import (
    VERSION,
    CorruptJournal,
    JournalHeader,
    NewerJournal,
    encode_line,
    read_journal,
)
from replbroker.launch.worker_handle import boot_id

_MIN_APPENDED_BYTES = 16 << 20  # before the file is written anew


class Journal:
    """The journal of one endpoint. A failed write costs what it was to save, never a live session.

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
        self.path = Path(state_dir) / f"sessions-{name}.ndjson"
        self._lock = acquire_endpoint_lock(f"{self.path}.lock", timeout_s, endpoint)
        self._unix_time = unix_time
        self._header = JournalHeader(VERSION, os.getpid(), 0, 1, boot=boot_id())
        self._export: Callable[[], tuple[int, list[Record]]] = lambda: (0, [])
        self._export_keys: Callable[[], KeyHistory] = KeyHistory
        self._workers: dict[int, WorkerRecord] = {}
        self._fd = -1
        self._base_bytes = self._appended_bytes = 0

    def read_previous(self) -> tuple[SavedState, str | None]:
        """Read what the previous broker saved.

        Where epochs are lost, they are taken to be lower than the minutes since 1970: no name gets a worker a minute
        for all that time, and a later loss finds a higher number.

        Returns:
            What it saved, and what is wrong with the file, if anything is.

        Raises:
            StartError: A newer version has written it, whose sessions this one would lose.
        """
        damage = None
        try:
            saved, damaged = read_journal(self.path)
            if damaged:
                damage = f"{self.path}: {damaged} damaged lines are dropped"
                saved = saved._replace(floor=max(saved.floor, int(self._unix_time / 60)), keys=KeyHistory())
            elif not self.path.stat().st_mode & stat.S_IWUSR:  # see `_mark_incomplete`
                saved = saved._replace(keys=KeyHistory())
        except FileNotFoundError:
            saved = SavedState(0, [])
        except NewerJournal as newer:
            hint = "start the newer one, or move the file away, which loses its sessions"
            raise StartError(f"a newer replctl has left its sessions here: {newer}; {hint}") from None
        except (OSError, CorruptJournal) as error:
            saved, damage = SavedState(int(self._unix_time / 60), []), f"{self.path}: {error}"
        saved = saved._replace(machine_restarted=saved.boot not in ("", self._header.boot))
        self._header.generation, self._header.last_worker = saved.generation + 1, saved.last_worker
        return saved, damage

    def start(
        self,
        export: Callable[[], tuple[int, list[Record]]],
        workers: Iterable[WorkerRecord] = (),
        export_keys: Callable[[], KeyHistory] = KeyHistory,
    ) -> str | None:
        """Write the file for the first time.

        Args:
            export: Returns the floor of epochs, and every record of the core that counts at the moment.
            workers: Workers of the previous broker that are alive.
            export_keys: Returns which idempotency keys are among the records.

        Returns:
            Why the file cannot be written, or None.
        """
        self._export, self._export_keys = export, export_keys
        self._workers = {each.worker: each for each in workers}
        return self._rewrite()

    def append(self, records: Iterable[Record]) -> str | None:
        """Append records, which `export` already includes; return why they cannot be written, or None."""
        if self._fd < 0 or self._appended_bytes >= max(_MIN_APPENDED_BYTES, self._base_bytes):
            return self._rewrite()
        data = b"".join([encode_line(record) for record in records])
        self._appended_bytes += len(data)
        try:
            if os.write(self._fd, data) == len(data):
                return None
            reason = "cut short"
        except OSError as error:
            reason = error.strerror or str(error)
        self._close_file()  # the last line may be incomplete: the next change writes the file anew
        self._mark_incomplete()
        return f"{self.path}: {reason}"

    # --- what the core does not know ---

    def set_private_dir(self, path: str) -> None:
        """Save with the next rewriting where the workers' socket is."""
        self._header.private_dir = path

    def set_worker(self, record: WorkerRecord) -> str | None:
        """Save how a worker is found again; return as `append` does."""
        self._workers[record.worker] = record
        self._header.last_worker = max(self._header.last_worker, record.worker)
        return self.append([record])

    def leave_worker(self, worker: int) -> str | None:
        """Save that a worker's session has left a process that serves others; return as `append` does."""
        record = self._workers.get(worker)
        if record is None:
            return None
        if not record.handle:
            return self.remove_workers([worker])
        return self.set_worker(WorkerRecord(worker, "", record.handle))

    def served_by(self, process: int) -> list[int]:
        """Return the numbers of the workers that a process serves or has begun with."""
        return [each.worker for each in self._workers.values() if each.process_number == process]

    def remove_workers(self, workers: Iterable[int]) -> str | None:
        """Save that workers have ended; return as `append` does."""
        ended = [WorkerRecord(each) for each in workers if self._workers.pop(each, None) is not None]
        return self.append(ended) if ended else None

    # --- the file ---

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
        self._header.floor, records = self._export()
        self._header.keys = self._export_keys()
        lines = [encode_line(each) for each in (self._header, *records, *self._workers.values())]
        data, temporary = b"".join(lines), self.path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            temporary.unlink(missing_ok=True)
            fd = os.open(temporary, flags, 0o600)
            try:
                written = os.write(fd, data)
                os.fsync(fd)
                if written < len(data):
                    raise OSError("cut short")
                temporary.replace(self.path)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            self._mark_incomplete()
            return f"{self.path}: {error.strerror or error}"
        self._fd, self._base_bytes, self._appended_bytes = fd, len(data), 0
        return None

    def _mark_incomplete(self) -> None:
        """Tell the next broker that evals may be missing: by the file's mode, which a full disk lets one change."""
        with suppress(OSError):
            self.path.chmod(stat.S_IRUSR)

    def close(self) -> None:
        """Close the file, which stays for the next broker, and release the lock."""
        self._close_file()
        self._lock.close()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

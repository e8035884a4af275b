"""The operation `diff`: what has changed in the session's directory since a checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec

from replwire.ops import Diff
from replwire.replies import FileChange
from replworker.checkpoints.session_files import SessionFiles
from replworker.checkpoints.taker import CheckpointKeeper
from replworker.reply_sender import ReplySender
from replworker.runtimes.file_frames import FilesFrame
from replworker.session_streams import SessionStreams

_decode_diff = msgspec.json.Decoder(Diff).decode


class FileRequests:
    """Answers requests about the files of one session's checkpoints."""

    def __init__(
        self, taker: CheckpointKeeper, files: SessionFiles, streams: SessionStreams, replies: ReplySender
    ) -> None:
        self._taker = taker
        self._files = files
        self._streams = streams
        self._replies = replies

    def handle_diff(self, route: int, body: bytes) -> None:
        """Compare the files with those of a checkpoint, by default of the newest one before the last eval."""
        request, tree = _decode_diff(body), self._taker.tree

        def refuse(code: str, err: str, **more: Any) -> None:
            self._replies.send_error(route, request.id, code, f"diff: {err}", epoch=self._replies.epoch, **more)

        if not self._files.is_on:
            refuse("not-supported", self._files.off)
            return
        if self._streams.evals.running is not None:
            refuse("busy", "the session is running an eval", retry_after_ms=1000)
            return
        wanted = request.checkpoint
        if wanted is None:
            before = tree.find_undo()[0]
            wanted = before.number if before is not None else tree.base or 0
        found = tree.find(wanted)
        if found is None or not self._taker.is_complete(found.number):
            refuse(
                "checkpoint-not-found", f"the session has no checkpoint {wanted}", hint="`ls-checkpoints` lists them"
            )
            return

        def answer(event: FilesFrame) -> None:
            if event.error is not None:
                refuse("checkpoint-not-found", event.error)
                return
            self._replies.send_done(
                route,
                request.id,
                checkpoint=found.number,
                checkpoint_name=found.name,
                file_changes=[FileChange(path, change) for path, change in event.changes],
                patch=event.patch or None,
                truncated=event.truncated or None,
            )

        self._files.compare(found.number, answer)

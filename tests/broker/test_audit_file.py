"""The audit file on a disk that is full for a while."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import msgspec
import pytest

from replbroker.core.effects import Audit
from replbroker.sinks.audit_file import AuditFile

AUDIT = Audit(b"p", "uid:1", 1.0, "r1", "eval", "ä" * 20, "s", "ok", None, 0.5)


def test_after_half_a_line_the_next_one_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.ndjson"
    audit = AuditFile(path, 1_000_000, lambda: 0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (70, hard))  # what a full disk does to a write, without filling one
    try:
        audit.write(AUDIT, "zmq:1")
        audit.flush(2.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    audit.write(AUDIT, "zmq:2")
    audit.close()
    assert (audit.lost_lines, caplog.messages) == (1, ["the audit cannot be written: short write"])
    half, whole = path.read_bytes().splitlines()
    assert len(half) == 70
    assert json.loads(whole)["client"] == "zmq:2"


def test_a_flood_of_refusals_is_counted_and_what_was_done_is_told_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.ndjson"
    audit = AuditFile(path, 1_000_000, lambda: 0.0)
    for number in range(1000):
        when = 1.0 + number / 500
        refused_now = msgspec.structs.replace(AUDIT, when=when, outcome="rate-limited", request_id=f"r{number}")
        audit.write(refused_now, "zmq:1")
        audit.flush(when)
    for _ in range(50):
        audit.write(AUDIT, "zmq:2")
    audit.close()
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    refused = [row for row in rows if row["outcome"] == "rate-limited"]
    assert (len(rows) - len(refused), len(refused) < 30) == (50, True)
    assert sum(row.get("repeated", 1) for row in refused) == 1000


def test_a_record_that_stands_for_many_is_added_up_as_that(tmp_path: Path) -> None:
    path = tmp_path / "audit.ndjson"
    audit = AuditFile(path, 1_000_000, lambda: 0.0)
    for _ in range(20):
        audit.write(msgspec.structs.replace(AUDIT, outcome="rate-limited", repeated=100), "zmq:1")
    audit.close()
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [row["repeated"] for row in rows] == [100] * 10 + [1000]

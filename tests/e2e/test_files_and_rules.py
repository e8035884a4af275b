"""Files that may be loaded, rules for agents, plan mode, history and the audit, over the real wire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import BrokerProcess, LineWire, Wire, wait_until


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    directory = Path(f"/tmp/rpl-lib-{os.getpid()}")
    directory.mkdir()
    yield directory
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    directory.rmdir()


@pytest.fixture
def loading(start: Callable[..., BrokerProcess], library: Path) -> Iterator[Wire]:
    with start(f'session.load-paths=["{library}"]', "limits.max-file-bytes=2000").wire() as wire:
        yield wire


def test_a_file_below_an_allowed_directory_runs_and_is_named_in_its_traceback(loading: Wire, library: Path) -> None:
    file = library / "mod.py"
    file.write_text("print('loaded')\ndef f():\n    return 1 / 0\n\n7\n")
    assert loading.run("1").value == "1"
    answer = loading.ask("load-file", file=str(file), session="s")
    assert (answer.out, answer.value, answer["changed"]) == ("loaded\n", "7", ["f"])
    raised = loading.run("f()")
    assert raised["stacktrace"][-1]["file"] == str(file)
    assert raised["stacktrace"][-1]["line"] == 3
    file.write_text("print(6)\n1 +\n")
    broken = loading.ask("load-file", file=str(file), session="s")
    assert broken["ex"]["type"] == "SyntaxError"
    assert loading.ask("history", session="s")["count"] == 2


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("/etc/passwd", "path-not-allowed"),
        ("LIB/../../etc/passwd", "path-not-allowed"),
        ("LIB/link", "path-not-allowed"),
        ("LIB/up/passwd", "path-not-allowed"),
        ("/etc/no-such-file", "path-not-allowed"),
        ("LIB-sibling/x.py", "path-not-allowed"),
        ("LIB/missing.py", "file-not-found"),
        ("LIB/long.py", "message-too-large"),
        ("LIB/bytes.py", "invalid-request"),
        ("LIB/pipe", "invalid-request"),
        ("LIB", "invalid-request"),
        ("LIB/\0", "invalid-request"),
    ],
)
def test_what_may_not_be_loaded_is_refused_without_a_path(loading: Wire, library: Path, name: str, word: str) -> None:
    for link, target in (("link", "/etc/passwd"), ("up", "/etc")):
        if not (library / link).is_symlink():
            (library / link).symlink_to(target)
    (library / "long.py").write_text("#" * 3000)
    (library / "bytes.py").write_bytes(b"x = '\xff'")
    if not (library / "pipe").exists():
        os.mkfifo(library / "pipe")
    loading.run("1")
    answer = loading.ask("load-file", file=name.replace("LIB", str(library)), session="s")
    assert answer.status == ["done", "error", word]
    assert str(library) not in json.dumps(answer.messages)
    assert "/etc" not in json.dumps(answer.messages)
    assert loading.run("2").value == "2"


@pytest.mark.parametrize(
    "place", ["/proc/self/root/etc/passwd", "/proc/self/../self/fd/0", "/dev/fd/0", "\0", "/a\0b", "/" + "x" * 5000, ""]
)
def test_what_is_no_path_or_leads_through_the_kernels_links_is_not_loaded(loading: Wire, place: str) -> None:
    loading.run("x = 1")
    for op in ("load-file", "reload-file"):
        answer = loading.ask(op, file=place, session="s")
        assert answer.status == ["done", "error", "invalid-request"], answer.messages
        assert answer["err"].startswith("file: ")
    assert loading.run("x").value == "1"


@pytest.mark.parametrize(
    "project",
    [
        "/proc/1/root/srv",
        "/proc/self/cwd",
        "/srv/../proc/1/root",
        "/dev/fd/3",
        "/a\0b",
        "relative",
        "",
        "/" + "x" * 5000,
        "/" + "é" * 2100,
    ],
)
def test_a_project_that_is_no_path_or_leads_through_the_kernels_links_is_refused(wire: Wire, project: str) -> None:
    before = len(wire.ask("ls-sessions")["sessions"])
    for op, fields in (
        ("eval", {"code": "1", "if_missing": "create"}),
        ("new-session", {"name": "default"}),
        ("info", {}),
    ):
        session = {} if op == "new-session" else {"session": "default"}
        answer = wire.ask(op, project=project, **fields, **session)
        assert answer.status == ["done", "error", "invalid-request"], answer.messages
        assert answer["err"].startswith("project: ")
    assert len(wire.ask("ls-sessions")["sessions"]) == before


def test_without_an_allow_list_no_file_is_loaded(wire: Wire) -> None:
    answer = wire.ask("load-file", file="/etc/hostname")
    assert answer.status == ["done", "error", "path-not-allowed"]
    assert "explicit allowlist" in answer["err"]
    assert answer["ephemeral"] is True
    assert wire.ask("reload-file", file="/etc/hostname").status == ["done", "error", "invalid-request"]


def test_the_rules_of_the_config_bind_an_agent(start: Callable[..., BrokerProcess]) -> None:
    rules = '[[agents]]\nname = "ada"\nallowed-runtimes = ["bash"]\nmax-output-bytes = 100\n[[agents]]\nname = "bob"\nenabled = false\n'
    broker = start(config=rules)
    with broker.wire() as wire:
        assert wire.ask("ping", agent="bob").status == ["done", "error", "forbidden"]
        assert wire.run("1", session="a", agent="ada").status == ["done", "error", "runtime-not-allowed"]
        assert wire.run("1", session="a", agent="carl").value == "1"


def test_plan_mode_refuses_changes_and_answers_questions(wire: Wire) -> None:
    wire.run("x = 1")
    assert wire.run("x = 2", mode="plan").status == ["done", "error", "plan-mode"]
    wire.ask("set-mode", session="s", to="plan", reason="review")
    refused = wire.run("x = 3")
    assert refused.status == ["done", "error", "plan-mode"]
    assert (refused["entered-reason"], refused["entered-at"][:2]) == ("review", "20")
    names = [each["name"] for each in wire.ask("info", session="s")["info"]["variables"]]
    assert names == ["x"]
    wire.ask("set-mode", session="s", to="normal")
    assert wire.run("x").value == "1"


def test_history_lasts_across_resets(wire: Wire) -> None:
    first = wire.run("a = 1")["epoch"]
    wire.run("secret", store_history=False)
    wire.ask("reset", session="s")
    wire.run("b = 2")
    reply = wire.ask("history", session="s")["history"]
    assert [(each["code"], each["epoch"], each["status"]) for each in reply] == [
        ("a = 1", first, ["done"]),
        ("b = 2", first + 1, ["done"]),
    ]


def test_every_request_is_in_the_audit_with_its_client_and_outcome(start: Callable[..., BrokerProcess]) -> None:
    broker = start("broker.tcp=127.0.0.1:0", "limits.rate-limit-per-min=4")
    with broker.wire() as wire:
        wire.run("1 / 0", agent="ada")
        wire.ask("load-file", file="/etc/passwd", session="s")
        wire.ask("close", session="nobody")
        wire.ask("ping")
        assert wire.ask("ping").status == ["done", "error", "rate-limited"]
    line = LineWire(broker.listening["tcp"])
    line.raw(b"nonsense\n")
    assert line.receive()["status"][-1] == "malformed-request"
    line.close()
    wait_until(lambda: len(records(broker)) == 6, "the audit is written")
    assert [(each["op"], each["outcome"]) for each in records(broker)] == [
        ("eval", "error"),
        ("load-file", "path-not-allowed"),
        ("close", "session-not-found"),
        ("ping", "pong"),
        (None, "rate-limited"),
        (None, "malformed-request"),  # neither was read: limits come first
    ]
    first, last = records(broker)[0], records(broker)[-1]
    assert (first["agent"], first["session"], first["client"][:4]) == ("ada", "s", "zmq:")
    assert first["latency-ms"] > 0
    assert last["client"].startswith("tcp:127.0.0.1:")
    result = subprocess.run(
        [sys.executable, "-m", "replctl", "audit", "--outcome", "rate-limited", "--json"],
        env=broker.environ,
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert [json.loads(text)["outcome"] for text in result.stdout.splitlines()] == ["rate-limited"]
    assert os.stat(broker.directory / "audit.ndjson").st_mode & 0o777 == 0o600


def test_a_damaged_line_of_the_audit_is_skipped(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.ask("ping")
    broker.stop()
    audit = broker.directory / "audit.ndjson"
    audit.write_bytes('{"agent":"ä'.encode()[:-1] + b'"}\n' + audit.read_bytes())
    result = subprocess.run(
        [sys.executable, "-m", "replctl", "audit", "--json"],
        env=broker.environ,
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert [json.loads(line)["op"] for line in result.stdout.splitlines()] == ["ping"]


def test_the_audit_is_rotated_and_never_grows_beyond_two_files(start: Callable[..., BrokerProcess]) -> None:
    broker = start("broker.audit-bytes=4096", "limits.rate-limit-per-min=0")
    with broker.wire() as wire:
        for name in ("audit.ndjson", "audit.ndjson.1"):
            for _ in range(200):
                wire.ask("ping")
            wait_until((broker.directory / name).exists, name)
    broker.stop()
    sizes = [os.stat(broker.directory / name).st_size for name in ("audit.ndjson", "audit.ndjson.1")]
    assert max(sizes) <= 4096 + 64 * 1024
    assert {json.loads(line)["op"] for line in (broker.directory / "audit.ndjson.1").read_text().splitlines()} == {
        "ping"
    }


def records(broker: BrokerProcess) -> list[dict[str, Any]]:
    path = broker.directory / "audit.ndjson"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

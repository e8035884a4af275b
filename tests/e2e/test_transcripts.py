"""Transcripts of sessions: readable after the broker ends, is killed or has a full disk; they never delay an eval."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kit import BrokerProcess, processes_with, wait_until
from replbroker.sinks.jsonl_backend import JsonlBackend
from replbroker.sinks.sqlite_backend import SqliteBackend
from replbroker.sinks.transcript_backend import TranscriptBackend
from replwire import events

KINDS = ("jsonl", "sqlite")


def _backend(broker: BrokerProcess, kind: str) -> TranscriptBackend:
    return (JsonlBackend if kind == "jsonl" else SqliteBackend)(broker.directory / "transcripts", 1 << 40)


def _cli(broker: BrokerProcess, *args: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "replctl", *args], env=broker.environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def _entries(broker: BrokerProcess, kind: str, name: str) -> list[dict[str, Any]]:
    backend = _backend(broker, kind)
    try:
        return [entry for head in backend.find(name) for entry in backend.load(head.session, strict=True)]
    finally:
        backend.close_all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_session_did_is_found_when_it_and_its_broker_are_gone(
    start: Callable[..., BrokerProcess], kind: str
) -> None:
    broker = start(f"transcript.backend={kind}")
    with broker.wire() as wire:
        wire.run("x = 'needle'\nprint('in the haystack')\nx", "mine", agent="ada")
        wire.run("1/0", "mine")
        wire.ask("close", session="mine")
    assert broker.stop() == 0
    entries = _entries(broker, kind, "mine")
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[-1]["type"] == "session/closed"
    for entry in entries:
        events.decode(json.dumps(entry).encode())
    assert "haystack" in _cli(broker, "history", "mine", "--search", "HAYSTACK")
    found = json.loads(_cli(broker, "history", "--search", "zerodivision", "--json"))
    assert [each["code"] for each in found["found"]] == ["1/0"]
    _cli(broker, "history", "--search", "not there", code=4)
    modes = {path.stat().st_mode & 0o777 for path in (broker.directory / "transcripts").iterdir()}
    assert modes == {0o600}
    assert not processes_with(str(broker.directory))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_is_killed_in_the_middle_leaves_what_can_be_read(
    start: Callable[..., BrokerProcess], kind: str
) -> None:
    broker = start(f"transcript.backend={kind}", "limits.rate-limit-per-min=0")
    with broker.wire() as wire:
        for number in range(200):
            wire.run(f"{number}", "s")

        def stored_count() -> int:
            return sum(entry["type"] == "eval/finished" for entry in _entries(broker, kind, "s"))

        wait_until(lambda: stored_count() > 100, "a hundred ends in the transcript")
        for number in range(100):
            wire.send("eval", session="s", code=f"{number}")
        broker.kill()
    before = stored_count()
    assert before > 100
    directory = broker.directory / "transcripts"
    if kind == "jsonl":  # what a torn write leaves
        path = next(path for path in directory.glob("*.jsonl") if path.name != "broker.jsonl")
        whole = path.read_bytes()
        path.write_bytes(whole + b'{"type":"eval/fin')
        backend = JsonlBackend(directory, 1 << 40)
        assert sum(entry["type"] == "eval/finished" for entry in backend.load(path.stem)) == before
        backend.append(path.stem, [b'{"type":"x","seq":9}'])  # goes on, on a line of its own
        assert [*backend.load(path.stem)][-1] == {"type": "x", "seq": 9}
        backend.close_all()
    text = _cli(broker, "export", "s", "--format", "py")
    assert text.count("# %%") >= before


def test_a_full_disk_loses_entries_and_nothing_else(start: Callable[..., BrokerProcess]) -> None:
    broker = start("broker.audit=false", max_file_bytes=20_000)
    with broker.wire() as wire:
        for number in range(60):
            assert wire.run(f"'{'x' * 500}'; {number}", "s").value == str(number)

        def has_losses() -> bool:
            return bool(wire.ask("introspect", name="transcripts")["snapshots"]["transcripts"]["lost"])

        wait_until(has_losses, "entries that are counted as lost")
        wire.run("1", "s")
        wait_until(lambda: "transcripts cannot be written" in broker.log_text(), "a line in the log")
    assert broker.log_text().count("transcripts cannot be written") == 1
    for line in (broker.directory / "transcripts").glob("*.jsonl"):
        assert line.read_bytes().endswith(b"\n")  # no half line stays
    assert _entries(broker, "jsonl", "s")


def test_a_directory_that_cannot_be_written_is_told_once_and_evals_go_on(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    blocked = broker.directory / "transcripts"
    broker.stop()
    for path in blocked.iterdir():
        path.unlink()
    blocked.rmdir()
    blocked.write_text("a file is in the way")
    broker.start()
    with broker.wire() as wire:
        assert wire.run("6*7").value == "42"
        wait_until(
            lambda: wire.ask("ping") and "transcripts cannot be written" in broker.log_text(), "a line in the log"
        )
        assert wire.run("6*7").value == "42"


def test_off_is_off(start: Callable[..., BrokerProcess]) -> None:
    broker = start("transcript.backend=off")
    with broker.wire() as wire:
        wire.run("1")
    assert broker.stop() == 0
    assert not (broker.directory / "transcripts").exists()


def test_throw_away_evals_are_in_no_transcript(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("'thrown away'", None)
    assert broker.stop() == 0
    assert [path.name for path in (broker.directory / "transcripts").iterdir()] == ["broker.jsonl"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_that_does_the_same_reports_nothing_and_one_that_drifts_says_what(
    start: Callable[..., BrokerProcess], kind: str, tmp_path: Path
) -> None:
    broker = start(f"transcript.backend={kind}")
    with broker.wire() as wire:
        wire.run("x = 20", "first")
        wire.run("print('twice'); x + 1", "first")
        wire.run("object()", "first")  # an address
        wire.ask("reset", session="first")
        wire.run("x", "first")  # was an error, and is one again: the reset is part of it
    exported = tmp_path / "first.jsonl"

    def export() -> bool:
        _cli(broker, "export", "first", "--format", "jsonl", "-o", str(exported))
        return exported.read_text().count("eval/finished") == 4

    wait_until(export, "the whole transcript")
    report = json.loads(
        _cli(broker, "replay", str(exported), "--into", "again", "--json", "--endpoint", broker.endpoint)
    )
    assert (report["ran"], report["drifted"], report["skipped"]) == (4, [], [])
    broken = exported.read_text().replace('"value":"21"', '"value":"22"').replace("twice\\n", "once\\n", 1)
    assert broken != exported.read_text()
    exported.write_text(broken)
    args = ("replay", str(exported), "--into", "more", "--json", "--endpoint", broker.endpoint)
    report = json.loads(_cli(broker, *args, code=1))
    assert [(each["eval-id"], each["what"]) for each in report["drifted"]] == [(2, ["value", "out"])]
    assert "-22" in report["drifted"][0]["diff"]


def test_a_notebook_has_a_cell_for_each_eval(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("print('out'); 42", "nb")
        wire.run("1/0", "nb")
        wire.ask("reset", session="nb")
    assert broker.stop() == 0
    book = json.loads(_cli(broker, "export", "nb", "--format", "ipynb"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"]) == 4
    kinds = [[output["output_type"] for output in cell.get("outputs", [])] for cell in book["cells"]]
    assert kinds == [[], ["stream", "execute_result"], ["error"], []]
    assert "restores no variables" in "".join(book["cells"][0]["source"])
    nbformat.validate(nbformat.from_dict(book))
    assert "42" in _cli(broker, "export", "nb", "--format", "md")
    _cli(broker, "export", "nobody", code=4)


def test_a_script_of_a_session_can_be_read_by_python_whatever_the_session_was_given(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start()
    with broker.wire() as wire:
        for code in (
            "from __future__ import annotations",
            "x = 1",
            "%timeit x",
            "await __import__('asyncio').sleep(0)",
            "if x:",
            "'d'\nx",
            "return 5",
            "from __future__ import division",
            "raise ValueError('a\\0b')",
        ):
            wire.run(code, "odd")
    assert broker.stop() == 0
    text = _cli(broker, "export", "odd", "--format", "py")
    assert len(ast.parse(text).body) == 6
    compile(text, "odd.py", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for line in ("# %timeit x", "# if x:", "# return 5", "# from __future__ import division"):
        assert line in text


PICTURE = """class P:
    def _repr_html_(self): return '<b>P</b>'
print('```\\nno end')
P()"""


def test_what_an_export_does_not_have_is_said_in_it(start: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = start("limits.event-text-bytes=1024", "transcript.max-session-bytes=20000")
    with broker.wire() as wire:
        for number in range(40):
            wire.run(f"echo {number} {'x' * 300}", "long", runtime="bash")
        wire.run("seq 10000", "long")
        wire.run(PICTURE, "rich", mime=["text/html"])
    assert broker.stop() == 0
    book = json.loads(_cli(broker, "export", "long"))
    nbformat.validate(nbformat.from_dict(book))
    shown = "".join("".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "markdown")
    assert "events missing here" in shown
    assert "41: output truncated" in shown
    assert "events missing here" in _cli(broker, "export", "long", "--format", "py")
    page = _cli(broker, "export", "rich", "--format", "md")
    assert "text/html" in page
    assert "\n````text\n```\nno end\n" in page
    broker.start()
    lines = tmp_path / "long.jsonl"
    lines.write_text(_cli(broker, "export", "long", "--format", "jsonl"))
    report = json.loads(_cli(broker, "replay", str(lines), "--into", "more", "--json", "--endpoint", broker.endpoint))
    assert report["missing"] > 0
    assert report["drifted"] == []  # it ran in bash, though no event tells the runtime any more


def test_a_replay_compares_values_also_where_output_was_cut(start: Callable[..., BrokerProcess]) -> None:
    broker = start("limits.event-text-bytes=1024")
    with broker.wire() as wire:
        wire.run("print('x' * 5000); object().__hash__()", "s")
        wire.ask("close", session="s")
    wait_until(lambda: "closed" in _cli(broker, "export", "s", "--format", "jsonl"), "the whole transcript")
    report = json.loads(_cli(broker, "replay", "s", "--into", "t", "--json", "--endpoint", broker.endpoint, code=1))
    assert [each["what"] for each in report["drifted"]] == [["value"]]


@pytest.mark.parametrize("args", [("history", "--search", "x"), ("export", "s"), ("replay", "s", "--into", "t")])
def test_transcripts_that_cannot_be_read_are_told_in_a_line(args: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "transcripts").mkdir()
    (tmp_path / "transcripts/transcripts.db").write_text("no database")
    env = {**os.environ, "REPLCTL_STATE_DIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "replctl", *args, *(["--no-start"] if args[0] != "export" else [])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "Error: cannot read transcripts: transcripts.db: file is not a database\n"


def test_a_replay_needs_a_transcript_and_a_session_of_its_runtime(
    start: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("1", "py")
        wire.run("echo hi", "sh", runtime="bash")
        wire.run("def f(:", "py")
        wire.ask("close", session="py")
        wire.ask("close", session="sh")
    wait_until(
        lambda: _cli(broker, "export", "sh", "--format", "jsonl").count("session/closed"), "the whole transcript"
    )
    wait_until(
        lambda: _cli(broker, "export", "py", "--format", "jsonl").count("session/closed"), "the whole transcript"
    )
    to = ("--endpoint", broker.endpoint)
    assert "none differed" in _cli(broker, "replay", "sh", "--into", "again", *to)  # a session of bash
    assert "none differed" in _cli(broker, "replay", "py", "--into", "more", *to)  # errors name another one
    assert "differ" in _cli(broker, "replay", "py", "--into", "exact", "--exact", *to, code=1)
    _cli(broker, "replay", "sh", "--into", "more", *to, code=2)
    other = tmp_path / "book.ipynb"
    other.write_text(_cli(broker, "export", "py"))
    _cli(broker, "replay", str(other), "--into", "more", *to, code=2)
    _cli(broker, "replay", "nobody", "--into", "more", *to, code=4)


def _tail(broker: BrokerProcess, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "replctl", "tail", *args, "--endpoint", broker.endpoint]
    return subprocess.Popen(command, env=broker.environ, stdout=subprocess.PIPE, text=True)


def test_tail_follows_a_session_and_ends_with_it(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.ask("new-session", name="t")
        process = _tail(broker, "t", "--output", "--since", "0")
        assert process.stdout is not None
        assert "session/created" in process.stdout.readline()
        wire.run("print('seen live')", "t")
        wire.ask("close", session="t")
        rest, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "seen live\n" in rest
        assert "eval/finished 1 ok" in rest
        assert "\x1b" not in rest  # no terminal, no colours
        assert "session/closed" in rest
    assert os.path.isdir(broker.directory)


def test_tail_ends_when_its_reader_does_though_nothing_happens(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.ask("new-session", name="t")
        process = _tail(broker, "t", "--since", "0")
        assert process.stdout is not None
        assert "session/created" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 141


def test_tail_names_sessions_whose_opening_it_was_not_to_show(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        process = _tail(broker, "--types", "eval/finished")
        assert process.stdout is not None
        wait_until(lambda: wire.ask("introspect", name="subscriptions")["snapshots"]["subscriptions"]["total"], "tail")
        wire.run("42", "new")
        assert " new eval/finished 1 ok " in process.stdout.readline()
        assert broker.stop() == 0
        assert process.communicate(timeout=20)[0] == ""

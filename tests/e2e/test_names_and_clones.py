"""Completion, lookup, bindings, stacks, clones and module evals, of python sessions over the real wire."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import BrokerProcess, Wire, wait_until


def test_completions_are_names_attributes_keys_and_paths(wire: Wire) -> None:
    wire.run("alpha_one = {'key one': 1}\nclass Thing:\n    def method(self): ...\nthing = Thing()")

    def texts(code: str) -> list[str]:
        answer = wire.ask("complete", session="s", code=code, pos=len(code.encode()))
        assert all(isinstance(each["text"], str) and isinstance(each["type"], str) for each in answer["completions"])
        return [each["text"] for each in answer["completions"]]

    assert "alpha_one" in texts("alp")
    assert "print" in texts("pri")
    assert any(text.endswith("method") for text in texts("thing.me"))
    assert any("key one" in text for text in texts("alpha_one['key"))
    assert any("hosts" in text for text in texts("open('/etc/host"))
    assert texts("é_unknown") == []
    for pos in (-1, 99):
        assert wire.ask("complete", session="s", code="pri", pos=pos)["completions"] == []


def test_completion_runs_no_property_of_the_users(wire: Wire) -> None:
    wire.run(
        "class Trap:\n    @property\n    def boom(self): print('ran'); return 1\n    def __getattr__(self, name): print('ran')\nt = Trap()"
    )
    wire.ask("complete", session="s", code="t.boom.", pos=7)
    wire.ask("lookup", session="s", symbol="t.boom.real")
    assert wire.run("1").out == ""
    assert wire.ask("read", session="s", eval_id=0).out == ""


def test_names_can_be_asked_without_a_session_and_leave_none(wire: Wire) -> None:
    answer = wire.ask("complete", code="pri", pos=3)
    assert {"text": "print", "type": "function"} in answer["completions"]
    assert wire.ask("lookup", symbol="print")["found"] is True
    assert wire.ask("ls-sessions")["sessions"] == []


def test_lookup_tells_what_a_name_means_and_evaluates_nothing(wire: Wire) -> None:
    wire.run("def area(width: int, height: int = 2) -> int:\n    'How much.'\n    return width * height\nimport json")
    found = wire.ask("lookup", session="s", symbol="area")
    assert (found["found"], found["type"], found["doc"], found["line"]) == (True, "function", "How much.", 1)
    assert "width" in found["signature"]
    assert wire.ask("lookup", session="s", symbol="json.dumps")["found"] is True
    assert wire.ask("lookup", session="s", symbol="dumps", module="json")["found"] is True
    for symbol in ("nothing", "area()", "1+1", "__import__('os').system('true')", ""):
        assert wire.ask("lookup", session="s", symbol=symbol)["found"] is False


def test_bindings_are_sorted_and_without_imports(wire: Wire) -> None:
    wire.run("import json\nx = 42\ns = 'hi'\ndef f(): ...\n_private = 1")
    reply = wire.ask("ls-bindings", session="s")
    assert [(each["name"], each["type"]) for each in reply["bindings"]] == [
        ("f", "function"),
        ("s", "str"),
        ("x", "int"),
    ]
    assert (reply["count"], reply["ns"]) == (3, "__main__")


def test_a_session_that_runs_an_eval_is_busy_for_questions_and_shows_its_stack(wire: Wire) -> None:
    running = wire.send(
        "eval",
        session="s",
        if_missing="create",
        code="def spin():\n    print('in', flush=True)\n    while True: pass\nspin()",
    )
    assert wire.receive()["created"] is True
    assert wire.receive()["out"] == "in\n"
    assert wire.ask("complete", session="s", code="a", pos=1).status == ["done", "error", "busy"]
    stack = wire.ask("stack", session="s")
    assert [frame["func"] for frame in stack["threads"][0]["frames"]] == ["<module>", "spin"]
    assert stack["threads"][0]["frames"][1]["file"] == "<s:1>"
    assert stack["processes"][0]["pid"] > 0
    wire.ask("interrupt", session="s")
    assert wire.answer(running).status == ["done", "interrupted"]
    assert wire.ask("complete", session="s", code="spi", pos=3)["completions"][0]["text"] == "spin"


def test_stacks_that_are_asked_for_at_once_are_all_answered_in_full(wire: Wire) -> None:
    running = wire.send("eval", code="def deep():\n    input()\ndeep()", session="s", if_missing="create")
    wire.until(running, "need-input")
    requests = [wire.send("stack", session="s") for _ in range(8)]
    for request in requests:
        threads = wire.answer(request)["threads"]
        assert "deep" in [frame["func"] for frame in threads[0]["frames"]]
    wire.ask("stdin", session="s", input="\n")
    assert wire.answer(running).status == ["done"]


def test_a_clone_has_copies_and_a_report(wire: Wire) -> None:
    wire.run(
        "import json, threading\nfactor = 3\ndata = {'a': [1]}\nclass Point:\n    def __init__(self, x): self.x = x\n"
        "p = Point(4)\ndef scale(n): return n * factor\nlock = threading.Lock()\nlock.acquire()\ngen = (i for i in range(3))"
    )
    cloned = wire.ask("clone", session="s", name="copy")
    assert cloned.status == ["done"]
    assert {each["name"] for each in cloned["skipped"]} >= {"gen"}
    assert all(each["why"] for each in cloned["skipped"])
    assert len(cloned["new-session"]) == 36
    assert wire.run(
        "data['a'].append(2); factor = 10; scale(2), p.x, isinstance(p, Point), json.dumps(data)", session="copy"
    ).value == ("(20, 4, True, '{\"a\": [1, 2]}')")
    assert wire.run("data, scale(2)").value == "({'a': [1]}, 6)"
    assert wire.run("class Point: ...\nisinstance(p, Point)", session="copy").value == "False"


def test_a_clone_of_what_is_too_large_says_so_and_opens_nothing(start: Callable[..., BrokerProcess]) -> None:
    broker = start("limits.max-snapshot-bytes=100000")
    with broker.wire() as wire:
        wire.run("big = bytes(1_000_000)")
        refused = wire.ask("clone", session="s", name="copy")
        assert refused.status == ["done", "error", "clone-failed"]
        assert [each["name"] for each in wire.ask("ls-sessions")["sessions"]] == ["s"]
        wire.run("del big; small = 1")
        assert wire.ask("clone", session="s", name="copy").status == ["done"]
        assert wire.run("small", session="copy").value == "1"
        snapshots = broker.directory / "snapshots"
        wait_until(lambda: os.listdir(snapshots) == [], "the snapshot's file is gone")


def opened(pid: int) -> set[Path]:
    """Files that a process has open."""
    try:
        return {link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()


def test_a_snapshot_that_cannot_be_removed_is_told_and_costs_nothing(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    snapshots = broker.directory / "snapshots"
    with broker.wire() as wire:
        wire.run("import time\nclass Slow:\n    def __reduce__(self): return time.sleep, (1.0,)\nslow, x = Slow(), 42")
        request = wire.send("clone", session="s", name="copy")
        wait_until(lambda: wire.ask("jobs", session="s")["jobs"][-1]["status"], "its names are written down")
        (file,) = snapshots.iterdir()
        wait_until(lambda: any(file in opened(pid) for pid in broker.process_tree()), "they are being read")
        file.unlink()
        file.mkdir()
        assert wire.answer(request).status == ["done"]
        assert wire.run("x", session="copy").value == "42"
    assert f"a snapshot could not be deleted: {file}" in broker.log_text()


def test_a_clone_can_be_interrupted_and_timed_out(wire: Wire) -> None:
    wire.run(
        "class Slow:\n    def __reduce__(self):\n        print('copying', flush=True)\n        while True: pass\n"
        "slow = Slow(); kept = 42"
    )
    timed = wire.ask("clone", session="s", name="copy", timeout_ms=300)
    assert (timed.status, timed["state"]) == (["done", "error", "timeout"], "kept")
    assert "cannot be copied" in timed["err"]
    request = wire.send("clone", session="s", name="copy")
    assert wire.receive()["out"] == "copying\n"
    interrupted = wire.ask("interrupt", session="s")["interrupted-id"]
    ended = wire.answer(request)
    assert (ended.status, ended["state"], ended["eval-id"]) == (["done", "interrupted"], "kept", interrupted)
    assert wire.run("kept").value == "42"
    assert [each["name"] for each in wire.ask("ls-sessions")["sessions"]] == ["s"]


def test_a_clone_whose_source_is_killed_leaves_no_file(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    snapshots = broker.directory / "snapshots"
    with broker.wire() as wire:
        wire.run(
            "class Slow:\n    def __reduce__(self):\n        print('copying', flush=True)\n        while True: pass"
        )
        wire.run("slow = Slow()")
        request = wire.send("clone", session="s", name="copy")
        assert wire.receive()["out"] == "copying\n"
        assert len(os.listdir(snapshots)) == 1
        wire.ask("reset", session="s")
        assert wire.answer(request).status == ["done", "error", "session-reset"]
        wait_until(lambda: os.listdir(snapshots) == [], "what the killed worker has left is gone")


@pytest.mark.parametrize("op", ["clone", "clone-session"])
def test_the_old_word_for_clone_works(wire: Wire, op: str) -> None:
    wire.run("x = 5")
    assert wire.ask(op, source="s", name="copy").status == ["done"]
    assert wire.run("x", session="copy").value == "5"


def test_an_eval_can_run_in_an_imported_module(wire: Wire) -> None:
    wire.run("import json\nx = 1")
    answer = wire.run("x = len(dumps([1]))\nx", module="json")
    assert answer.messages[-2] == {"id": answer["id"], "value": "3", "ns": "json"}
    assert wire.run("x, json.x").value == "(1, 3)"
    missing = wire.run("1", module="no.such")
    assert missing.status == ["done", "error"]
    assert "Cannot resolve module" in missing["err"]


def test_a_file_can_be_loaded_again_after_it_was_changed(start: Callable[..., BrokerProcess]) -> None:
    broker = start('session.load-paths=["/DIRECTORY"]')
    file = broker.directory / "mine.py"
    with broker.wire() as wire:
        wire.run("1")
        file.write_text("a = 1\nb = 2\n")
        assert wire.ask("load-file", session="s", file=str(file)).status == ["done"]
        file.write_text("a = 5\n")
        assert wire.ask("reload-file", session="s", file=str(file)).status == ["done"]
        assert wire.run("a, 'b' in globals()").value == "(5, False)"


def test_figures_and_frames_come_in_the_forms_that_were_asked_for(wire: Wire) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n7"
    answer = wire.run(code, mime=["image/png", "text/markdown"])
    images = [message["mime"] for message in answer.messages if "mime" in message and "value" not in message]
    assert [list(image) for image in images] == [["image/png"]]
    assert images[0]["image/png"].startswith("iVBOR")
    assert answer.value == "7"
    eval_id = answer["eval-id"]
    again = wire.ask("read", session="s", eval_id=eval_id)
    assert [m["mime"] for m in again.messages if "mime" in m and "value" not in m] == images
    table = wire.run("import pandas\npandas.DataFrame({'a': [1, 2]})", mime=["text/html"])
    assert any("<table" in message["mime"]["text/html"] for message in table.messages if "mime" in message)
    plain = wire.run("import matplotlib.pyplot as plt\nplt.plot([1])\n8")
    assert not any("mime" in message for message in plain.messages)

"""The parts that need no process: records and their transcripts, what is shown, what is a command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replctl.acp import client_connection, modes, options, render, slash_commands
from replctl.acp import store as session_store
from replctl.acp.modes import Mode
from replctl.client.result import Result


def record(**fields: Any) -> session_store.AcpSessionRecord:
    base: dict[str, Any] = {
        "id": session_store.new_id(),
        "cwd": "/",
        "created": session_store.now(),
        "mode": Mode.AUTO,
        "runtime": "python",
    }
    return session_store.AcpSessionRecord(**base | fields)


def turn(number: int, **fields: Any) -> session_store.StoredTurn:
    return session_store.StoredTurn(turn=str(number), at=session_store.now(), prompt=f"prompt {number}", **fields)


@pytest.fixture
def store(tmp_path: Path) -> session_store.AcpSessionStore:
    return session_store.AcpSessionStore(str(tmp_path / "acp"))


def test_a_record_comes_back_as_it_was_saved(store: session_store.AcpSessionStore) -> None:
    saved = record(mode=Mode.PLAN, session="work", title="a title")
    store.save(saved)
    assert store.get(saved.id) == saved
    assert store.get("acp-other") is None


def test_a_torn_last_line_costs_that_line_alone(store: session_store.AcpSessionStore, tmp_path: Path) -> None:
    saved = record()
    store.save(saved)
    for number in range(3):
        store.append(saved.id, turn(number, stop="end_turn"))
    path = tmp_path / "acp" / f"{saved.id}.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [each.turn for each in store.turns(saved.id)] == ["0", "1"]
    store.append(saved.id, turn(3, stop="end_turn"))
    assert [each.turn for each in store.turns(saved.id)] == ["0", "1", "3"]


@given(garbage=st.binary(max_size=200))
def test_garbage_in_a_transcript_is_left_out(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    store = session_store.AcpSessionStore(str(tmp_path_factory.mktemp("t")))
    saved = record()
    store.save(saved)
    store.append(saved.id, turn(1))
    base = Path(store._record(saved.id))
    with base.with_suffix(".jsonl").open("ab") as file:
        file.write(b"\n" + garbage)
    store.append(saved.id, turn(2, stop="end_turn"))
    assert [each.turn for each in store.turns(saved.id) if each.turn in "12"] == ["1", "2"]


def test_a_turn_that_ended_stands_once_and_one_that_did_not_stands_as_begun(
    store: session_store.AcpSessionStore,
) -> None:
    saved = record()
    store.save(saved)
    store.append(saved.id, turn(1))
    store.append(saved.id, turn(2))
    store.append(saved.id, turn(1, stop="end_turn", messages=["a"]))
    assert [(each.turn, each.stop) for each in store.turns(saved.id)] == [("1", "end_turn"), ("2", None)]


def test_a_transcript_is_bounded_and_keeps_the_newest(store: session_store.AcpSessionStore, tmp_path: Path) -> None:
    saved = record()
    store.save(saved)
    for number in range(100):
        store.append(saved.id, turn(number, stop="end_turn", messages=["x" * session_store.MAX_TEXT]))
    held = sum(each.stat().st_size for each in (tmp_path / "acp").iterdir())
    assert held < 2 * (session_store.MAX_TRANSCRIPT + 2 * session_store.MAX_TEXT)
    turns = store.turns(saved.id)
    assert [each.turn for each in turns] == [str(number) for number in range(100 - len(turns), 100)]
    store.delete(saved.id)
    assert list((tmp_path / "acp").iterdir()) == []


def test_the_longest_unused_records_go_first_and_open_ones_stay(
    store: session_store.AcpSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "MAX_RECORDS", 3)
    made = [record() for _ in range(5)]
    for age, each in enumerate(made):
        store.save(each)
        os.utime(store._record(each.id), (1000 - age, 1000 - age))
    store.prune({made[4].id})
    assert {name for name, _ in store.list_newest()} == {made[0].id, made[1].id, made[2].id, made[4].id}


def test_a_symbolic_link_in_the_place_of_a_transcript_is_not_followed(
    store: session_store.AcpSessionStore, tmp_path: Path
) -> None:
    saved = record()
    store.save(saved)
    (tmp_path / "elsewhere").write_text("")
    os.symlink(tmp_path / "elsewhere", tmp_path / "acp" / f"{saved.id}.jsonl")
    with pytest.raises(OSError, match="symbolic"):
        store.append(saved.id, turn(1))
    assert (tmp_path / "elsewhere").read_text() == ""


@given(st.text(max_size=400), st.integers(20, 200))
def test_bounded_text_keeps_its_ends(text: str, most: int) -> None:
    cut = session_store.truncate_middle(text, most)
    assert (
        cut == text if len(text) <= most else cut.startswith(text[: most // 2]) and cut.endswith(text[-(most // 4) :])
    )


@given(st.lists(st.text(max_size=30_000), max_size=6))
def test_shown_output_is_bounded_and_counts_what_it_leaves_out(pieces: list[str]) -> None:
    shown = render.LiveOutput()
    for piece in pieces:
        shown.add(piece)
    whole, text = "".join(pieces), shown.text()
    if len(whole) <= render.MAX_SHOWN:
        assert text == whole
    else:
        half = render.MAX_SHOWN // 2
        missing = len(whole) - 2 * half
        assert text == f"{whole[:half]}\n…[{missing} characters not shown]…\n{whole[-half:]}"


@given(st.text())
def test_a_fence_is_longer_than_any_in_the_text(text: str) -> None:
    fence, _, rest = render.fenced(text).partition("\n")
    assert set(fence) == {"`"}
    assert rest.endswith(fence)
    assert fence not in text


@pytest.mark.parametrize(
    "text", ["2", "-5", "1.5", "'hello'", "[1, 2]", "{'a': 1}", "ZeroDivisionError: division by zero", "a_b", "é"]
)
def test_plain_values_stand_as_they_are(text: str) -> None:
    assert render.as_markdown(text) == text


@pytest.mark.parametrize(
    "text", ["__x__", "_x", "*a*", "<b>", "a\nb", "1. x", "- x", "# x", "> x", "[a](b)", "a|b", "---", " x", "`a`"]
)
def test_values_that_markdown_would_change_are_fenced(text: str) -> None:
    assert render.as_markdown(text).startswith("```")


def test_a_picture_is_an_image_block_and_the_best_one_wins() -> None:
    result = Result(
        status=["done"], value="<Figure>", mime={"image/jpeg": "anBn", "image/png": "cG5n", "text/html": "<b>"}
    )
    assert render.images(result) == [{"type": "image", "mimeType": "image/png", "data": "cG5n"}]
    assert render.images(Result(mime={"image/png": "x" * (render.MAX_IMAGE + 1)})) == []
    assert render.images(Result(mime={"image/png": 7})) == []
    assert render.images(Result()) == []


def test_notes_are_bounded_with_one_last_line() -> None:
    for many in (255, 256, 257, 400):
        read, write = os.pipe()
        notes = client_connection.DiagnosticsLog(write)
        for number in range(many):
            notes(f"note {number}")
            notes(f"note {number}")
        os.close(write)
        with open(read, encoding="utf-8") as file:
            lines = file.read().splitlines()
        assert len(lines) == min(many, 257)
        assert ("the rest are not shown" in lines[-1]) == (many > 256)


@given(st.text(max_size=60))
def test_a_title_is_one_short_line(text: str) -> None:
    title = render.title(text * 3)
    assert title.strip()
    assert len(title) <= render.TITLE_CHARS
    assert len(title.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "is_command"),
    [
        ("/help", True),
        ("/help\n", True),
        ("/read 3", True),
        ("/nothing", True),
        ("/read\n3", True),
        (" /help", False),
        ("/usr/bin", False),
        ("/re/.test(x)", False),
        ("/", False),
        ("/Help", False),
        ("x = 1", False),
        ("", False),
    ],
)
def test_a_command_is_a_slash_and_a_word(text: str, is_command: bool) -> None:
    assert (slash_commands.SlashCommands().parse(text) is not None) is is_command


def test_every_command_is_told_once() -> None:
    names = [each["name"] for each in slash_commands.SlashCommands().available()]
    assert len(names) == len(set(names)) == len(slash_commands.SLASH_COMMANDS)


def test_narrower_never_widens() -> None:
    for one in Mode:
        for other in Mode:
            assert modes.stricter(one, other) in (one, other)
            assert modes.stricter(Mode.PLAN, other) is Mode.PLAN
            assert modes.stricter(Mode.AUTO, other) is other


def test_each_runtime_has_a_session_of_its_own() -> None:
    mine = record()
    assert options.repl_session_name(mine) == mine.id
    mine.runtime = "other"
    assert options.repl_session_name(mine) == f"{mine.id}-other"
    mine.session = "work"
    assert options.repl_session_name(mine) == "work"

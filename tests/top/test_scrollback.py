"""Output of sessions on its way to a screen: bounded, and without control sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replctl.top.cell_text import Column, Line, TableRow, cut, fold, pad, plain_text, table, width_of
from replctl.top.scrollback import MAX_CHARS, MAX_LINES, Scrollback


def lines(back: Scrollback, width: int = 200) -> list[Line]:
    return list(back.backwards(width))[::-1]


def texts(*pieces: str) -> list[str]:
    back = Scrollback()
    for piece in pieces:
        back.text(piece)
    return [plain_text(line) for line in lines(back)]


@given(st.lists(st.text(st.sampled_from("\x1b\x9b\x9d[];?0123mKhl\x07\\\r\n\b\tab é\u202e"))))
def test_no_control_character_is_ever_left(pieces: list[str]) -> None:
    back = Scrollback()
    for piece in pieces:
        back.text(piece)
    assert all(text.isprintable() for line in lines(back) for text, _ in line)


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("\x1b[2J\x1b[Hgone", ["gone"]),
        ("\x1b]0;title\x07text", ["text"]),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", ["link"]),
        ("\x1b]52;c;aGk=\x07", []),
        ("\x1bPq#0\x1b\\sixel", ["sixel"]),
        ("\x9b31mred", ["red"]),
        ("\x1bc\x1b7\x1b(Bx", ["x"]),
        ("bell\x07", ["bell\\x07"]),
        ("a\u202eb", ["a\\u202eb"]),
        ("a\tb", ["a       b"]),
        ("10%\r20%\r100%\n", ["100%"]),
        ("loading...\r\x1b[Kdone\n", ["done"]),
        ("abc\b\bX", ["aXc"]),
        ("one\ntwo", ["one", "two"]),
        ("\x1b[" + "9" * 5000 + "mx", ["x"]),
    ],
)
def test_sequences_are_taken_out_and_the_text_stays(printed: str, seen: list[str]) -> None:
    assert texts(printed) == seen


@pytest.mark.parametrize("at", range(1, 9))
def test_a_sequence_that_is_cut_between_two_messages_is_still_one(at: int) -> None:
    whole = "a\x1b[1;31mb"
    assert texts(whole[:at], whole[at:]) == ["ab"]


def test_a_sequence_that_never_ends_is_shown_and_not_kept() -> None:
    assert texts("\x1b]0;", "x" * 5000)[0].startswith("\\x1b]0;xxx")


def test_colours_and_faces_are_kept_and_end_with_their_eval() -> None:
    back = Scrollback()
    back.text("\x1b[1;31mbad\x1b[0m fine \x1b[38;5;200mpink\x1b[96m sky")
    back.note("[2] next", "bold cyan")
    back.text("plain")
    assert lines(back) == [
        [("bad", "red bold"), (" fine pink", ""), (" sky", "bright_cyan")],
        [("[2] next", "bold cyan")],
        [("plain", "")],
    ]


def test_the_oldest_lines_go_first() -> None:
    back = Scrollback()
    back.text("".join(f"{number}\n" for number in range(MAX_LINES + 50)))
    assert (len(back), back.dropped_lines) == (MAX_LINES, 50)
    assert plain_text(lines(back)[0]) == "50"
    back.text("x" * (2 * MAX_CHARS))
    assert sum(len(plain_text(line)) for line in lines(back, 10_000)) <= MAX_CHARS + 4000


def test_lines_are_folded_by_cells() -> None:
    assert [plain_text(line) for line in fold([("abcd", ""), ("efg", "red")], 3)] == ["abc", "def", "g"]
    assert [plain_text(line) for line in fold([("表計算", "")], 5)] == ["表計", "算"]


def test_text_is_cut_and_filled_by_cells() -> None:
    assert (width_of("表a"), cut("表計算", 5), pad("表", 4), pad("7", 3, right=True)) == (3, "表計…", "表  ", "  7")


def test_a_table_that_is_too_wide_leaves_out_what_matters_least() -> None:
    columns = (Column("NAME", 4, most=10), Column("MORE", 5, rank=1), Column("N", 3, right=True))
    rows = [TableRow("1", (("longer", ""), ("x", ""), ("1", "")))]
    assert [plain_text(line) for line in table(columns, rows, 30)] == ["NAME   MORE    N", "longer x       1"]
    assert [plain_text(line) for line in table(columns, rows, 9)] == ["NAME    N", "long…   1"]

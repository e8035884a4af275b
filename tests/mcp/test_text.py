"""Text for a model: never over its budget, always valid, and what is missing is counted."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from replctl.tools.text_budget import clean, fold, split_budget

LINES = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=700), max_size=60)
ANY = st.one_of(st.text(max_size=3000), LINES.map("\n".join), st.integers(0, 20_000).map(lambda n: "x" * n))


@given(ANY, st.integers(0, 3000), st.integers(1, 800))
def test_a_folded_text_keeps_its_budget_and_its_count(text: str, budget: int, line: int) -> None:
    folded = fold(text, budget, line, "; and more")
    assert len(folded.text) <= max(budget, 0)
    assert folded.kept_chars + folded.cut_chars == len(text)
    assert folded.kept_chars >= 0
    assert folded.cut_chars >= 0
    assert folded.text.encode().decode() == folded.text
    assert folded.cut_chars or folded.text == text


@given(ANY, st.integers(300, 3000), st.integers(40, 800))
def test_the_begin_and_the_end_are_kept_and_the_marks_add_up(text: str, budget: int, line: int) -> None:
    assume("…[" not in text)  # none of our marks in it, so that ours can be counted
    folded = fold(text, budget, line)
    head = min(folded.intact_head, 20, line * 2 // 3 - 10)
    assert folded.text[: max(0, head)] == text[: max(0, head)]
    marked = sum(int(n) for n in re.findall(r"…\[\+(\d+)\]…", folded.text))
    marked += sum(int(n) for n in re.findall(r"…\[(\d+) characters? in \d+ lines? left out\]…", folded.text))
    assert marked == folded.cut_chars


def test_the_last_line_of_a_long_output_is_there() -> None:
    text = "\n".join(f"line {n}" for n in range(100_000)) + "\nBUILD FAILED"
    folded = fold(text, 4000, 500, "; read it")
    assert folded.text.startswith("line 0\nline 1\n")
    assert folded.text.endswith("\nBUILD FAILED")
    assert "lines left out; read it]…" in folded.text
    assert len(folded.text) > 3000


def test_one_huge_line_is_cut_inside() -> None:
    folded = fold("a" * 119_000 + "END", 4000, 500)
    assert re.fullmatch(r"a+…\[\+\d+\]…a+END", folded.text)
    assert len(folded.text) == 500


@pytest.mark.parametrize(
    ("raw", "shown", "folded"),
    [
        ("\x1b[31mred\x1b[0m text", "red text", 0),
        ("\x1b]0;title\x07after", "after", 0),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link", 0),
        ("10%\r50%\r100%\ndone", "100%\ndone", 2),
        ("10%\r\n20%\r\r\n", "10%\n20%\n", 0),
        ("\r", "", 0),
        ("wait|\b/\b-\b", "wait", 0),
        ("\b\b", "", 0),
        ("tab\tstays\x00\x07", "tab\tstays", 0),
    ],
)
def test_terminal_control_is_resolved(raw: str, shown: str, folded: int) -> None:
    assert clean(raw) == (shown, folded)


@given(st.text(st.sampled_from("ab\r\n\b\x1b[0m1;]\x07\x9b"), max_size=200))
def test_clean_text_has_no_control_characters_left(text: str) -> None:
    cleaned = clean(text).text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", cleaned)
    assert clean(cleaned).text == cleaned


@given(st.lists(st.integers(0, 10_000), max_size=5), st.integers(0, 10_000))
def test_shares_never_exceed_the_budget_nor_what_there_is(sizes: list[int], budget: int) -> None:
    parts = split_budget(sizes, budget)
    assert sum(parts) <= budget or not sizes
    assert all(part <= size for part, size in zip(parts, sizes, strict=True))
    assert sum(parts) == min(budget, sum(sizes)) or not sizes


def test_a_short_value_leaves_its_room_to_the_output() -> None:
    assert split_budget([2, 9000], 4000) == [2, 3998]

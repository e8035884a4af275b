"""Parts of `attach` without a terminal: what is no code, pictures as escapes, evals of others as lines."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replctl.commands.attach_magics import FileToEdit, NameQuestion, ShellCommand, TimedCode, parse_magic
from replctl.commands.attach_others import describe_eval
from replctl.commands.terminal_images import encode_iterm, encode_kitty, find_encoder

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40


@pytest.mark.parametrize(
    ("block", "magic"),
    [
        ("a.b?", NameQuestion("a.b", False)),
        ("a??", NameQuestion("a", True)),
        ("?a", NameQuestion("a", False)),
        ("%time f(1)", TimedCode("f(1)")),
        ("%load a b.py", FileToEdit("a b.py")),
        ("!ls -l", ShellCommand("ls -l")),
        ("a", None),
        ("a ? b", None),
        ("%time", None),
        ("x = 1 # why?", None),
        ("!", None),
        ("a = '?'", None),
    ],
)
def test_what_is_no_code_is_recognised(block: str, magic: object) -> None:
    assert parse_magic(block, "python") == magic
    assert parse_magic(block, "bash") is None


def test_an_exclamation_mark_is_code_in_node() -> None:
    assert parse_magic("!ok", "node") is None


@given(st.text(alphabet="ab.?%! timeload\n", max_size=30), st.sampled_from(["python", "node", "bash"]))
def test_any_block_is_one_or_the_other(block: str, runtime: str) -> None:
    magic = parse_magic(block, runtime)
    assert magic is None or block.strip()[0] in "?%!" or block.strip().endswith("?")


@pytest.mark.parametrize(
    ("environ", "encoder"),
    [
        ({"TERM": "xterm-kitty"}, encode_kitty),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, encode_kitty),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, encode_iterm),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, encode_iterm),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/t"}, None),
        ({"TERM": "xterm-256color"}, None),
        ({}, None),
    ],
)
def test_a_terminal_that_shows_pictures_is_known_by_its_environment(environ: dict[str, str], encoder: object) -> None:
    assert find_encoder(environ) is encoder


def test_kittys_escapes_carry_the_whole_picture() -> None:
    text = encode_kitty("image/png", PNG)
    assert text is not None
    parts = text.removesuffix("\x1b\\").split("\x1b\\")
    assert parts[0].startswith("\x1b_Ga=T,f=100,m=1;")
    assert [part.partition(";")[0][-3:] for part in parts] == ["m=1"] * (len(parts) - 1) + ["m=0"]
    assert max(len(part.partition(";")[2]) for part in parts) == 4096
    assert base64.b64decode("".join(part.partition(";")[2] for part in parts)) == PNG
    assert encode_kitty("image/jpeg", PNG) is None


def test_iterms_escape_carries_the_whole_picture() -> None:
    text = encode_iterm("image/png", PNG)
    assert text is not None
    head, _, data = text.removesuffix("\x07").partition(":")
    assert (head, base64.b64decode(data)) == (f"\x1b]1337;File=inline=1;size={len(PNG)}", PNG)
    assert encode_iterm("image/svg+xml", PNG) is None


def test_an_eval_of_somebody_else_is_described_in_few_lines() -> None:
    begun: dict[str, Any] = {"agent": "ada", "code": "x\n" * 30}
    lines = describe_eval(3, begun, {"status": "ok", "value": "42", "out": "hello\n"}).splitlines()
    assert (lines[0], len(lines), lines[-3:]) == ("[ada, eval 3] x", 23, ["… 10 more lines", "hello", "42"])
    assert describe_eval(4, {}, {"status": "interrupted"}) == "[another client, eval 4] \ninterrupted"
    assert describe_eval(5, {"code": "1/0"}, {"status": "error", "error": "E: no"}).endswith("1/0\nE: no")

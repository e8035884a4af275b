"""Tracebacks for a model: the user's frames, the last library frame, and how many are not shown."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from replctl.tools.trace_text import fold_traceback

NODE = """TypeError: fetch failed
    at async <n:2>:1:1 {
  [cause]: Error: getaddrinfo EAI_AGAIN example.com
      at GetAddrInfoReqWrap.onlookupall (node:dns:122:26)
      at other (node:dns:1:1) {
"""


def trace_of(body: Callable[[], object]) -> str:
    with pytest.raises((ArithmeticError, ValueError, OSError)) as raised:
        body()
    return "".join(traceback.format_exception(raised.type, raised.value, raised.tb.tb_next))


def parse_json() -> None:
    import json

    json.loads("{bad")


def open_nothing() -> None:
    import urllib.request

    urllib.request.urlopen("http://127.0.0.1:1", timeout=5)


def test_library_frames_are_counted_and_the_last_one_stays() -> None:
    whole = trace_of(parse_json)
    folded = fold_traceback(whole)
    lines = folded.text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[2] == '    json.loads("{bad")'
    assert lines[3] == "  … 2 library frames"
    assert lines[4].startswith('  File "json/decoder.py", line ')
    assert lines[-1].startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert folded.left_out == 2
    assert len(folded.text) < len(whole) * 0.6


def test_of_an_error_that_led_to_another_only_its_text_stays() -> None:
    folded = fold_traceback(trace_of(open_nothing))
    first, _, second = folded.text.partition("During handling of the above exception")
    assert "ConnectionRefusedError: " in first
    assert "File " not in first
    assert second.count("File ") == 2
    assert folded.left_out > 5


def test_the_users_own_frames_are_all_there() -> None:
    text = trace_of(lambda: 1 / 0)
    folded = fold_traceback(text)
    assert folded.left_out == 0
    assert [line for line in text.splitlines() if set(line.strip()) - set("~^")] == folded.text.splitlines()


def test_frames_of_nodes_own_modules_are_counted() -> None:
    folded = fold_traceback(NODE)
    assert "at async <n:2>:1:1" in folded.text
    assert "node:dns:122" not in folded.text
    assert "… " in folded.text


@pytest.mark.parametrize(
    "text", ["", "KeyError: 1", 'a\n  File "x", line 1, in f\n', '  File "/usr/lib/python3.11/a.py", line 1']
)
def test_any_text_may_be_folded(text: str) -> None:
    assert fold_traceback(text).left_out == 0 or len(fold_traceback(text).text) <= len(text) + 30

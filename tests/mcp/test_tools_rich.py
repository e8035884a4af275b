"""Rich results of tools: pictures, tables, the best form of a value, and files for the rest."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from kit import BrokerProcess
from replctl.tools import Tools, toolset
from replctl.tools.base import ToolResult

PLOT = "import matplotlib.pyplot as plt\n"


@pytest.fixture(scope="module")
def tools(broker: BrokerProcess) -> Iterator[Tools]:
    with toolset(endpoint=broker.endpoint, agent="rich") as tools:
        yield tools


def show(tools: Tools, code: str) -> ToolResult:
    answer = tools.call("eval", {"code": code, "session": "rich"})
    assert not answer.error, answer.text
    return answer


def size(answer: ToolResult, at: int = 0) -> tuple[int, int]:
    return Image.open(io.BytesIO(base64.b64decode(answer.images[at].data))).size


def test_a_figure_comes_as_a_picture_without_being_asked_for(tools: Tools) -> None:
    answer = show(tools, PLOT + "line = plt.plot([1, 2, 3])")
    assert [image.mime for image in answer.images] == ["image/png"]
    assert min(size(answer)) > 300


def test_figures_over_the_number_are_files_that_the_answer_names(tools: Tools) -> None:
    answer = show(tools, PLOT + "for n in range(10):\n    plt.figure(); plt.plot([n, 1])")
    assert len(answer.images) == 8
    assert len(answer.structured["files"]) == 2
    assert all(f"bytes in {path}]" in answer.text for path in answer.structured["files"])
    read = f"[open(path, 'rb').read()[:4] for path in {answer.structured['files']!r}]"
    assert show(tools, read).structured["value"] == r"[b'\x89PNG', b'\x89PNG']"


def test_an_image_over_the_size_is_shown_smaller_and_kept_whole(tools: Tools) -> None:
    code = "import os\nfrom PIL import Image\nImage.frombytes('RGB', (900, 900), os.urandom(900 * 900 * 3))"
    answer = show(tools, code)
    assert size(answer) < (900, 900)
    assert len(answer.images[0].data) <= 1_000_000
    (path,) = answer.structured["files"]
    assert f"image of 900x900 shown as {size(answer)[0]}x{size(answer)[1]}; the whole of" in answer.text
    with Image.open(Path(path)) as whole:  # this broker has no sandbox
        assert whole.size == (900, 900)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_is_a_compact_table(tools: Tools, library: str) -> None:
    answer = show(tools, f"import {library}\n{library}.DataFrame({{'a': range(1000), 'b': 'word'}})")
    lines = answer.structured["value"].splitlines()
    assert ["a", "b"] in [line.split() for line in lines[:2]]
    assert [line.split()[-2:] for line in lines if line.endswith(" 999  word")] == [["999", "word"]]
    assert len(lines) < 20
    assert any(size in answer.text for size in ("[1000 rows x 2 columns]", "shape: (1_000, 2)"))


@pytest.mark.parametrize(
    ("bundle", "value", "mime"),
    [
        ({"text/markdown": "**m**", "text/plain": "p"}, "**m**", []),
        ({"text/plain": "p", "text/html": "<p>"}, "p", []),
        ({"text/html": "<p>"}, "<Thing>", []),
        ({"image/png": base64.b64encode(b"\x89PNG").decode(), "text/plain": "p"}, "<Thing>", ["image/png"]),
    ],
)
def test_a_value_comes_in_its_best_form(tools: Tools, bundle: dict[str, str], value: str, mime: list[str]) -> None:
    methods = f"    def _repr_mimebundle_(self, include=None, exclude=None): return {bundle!r}\n"
    answer = show(tools, f"class Thing:\n{methods}    def __repr__(self): return '<Thing>'\nThing()")
    assert (answer.structured["value"], [image.mime for image in answer.images]) == (value, mime)


def test_html_and_png_methods_are_used_where_they_help(tools: Tools) -> None:
    code = "class P:\n    def _repr_html_(self): return '<b>'\n    def _repr_png_(self): return b'\\x89PNG'\nP()"
    assert [image.mime for image in show(tools, code).images] == ["image/png"]

"""The python harness: figures, images and data frames of the real libraries."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

FILE = "application/vnd.replctl.file"
ANY = ("image/*", "text/markdown")
PLOT = "import matplotlib.pyplot as plt\n"


def _image(bundle: dict[str, str], mime: str = "image/png") -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(bundle[mime])))


def _saved_image(bundle: dict[str, str]) -> Image.Image:
    return Image.open(io.BytesIO(Path(bundle[FILE]).read_bytes()))


def _limits(harness: Any, directory: Path, env: dict[str, str] | None = None, **limits: int) -> None:
    wanted = {name.replace("_", "-"): value for name, value in limits.items()}
    harness.send(op="assign", n=0, cwd=None, env={"TMPDIR": str(directory), **(env or {})}, limits=wanted)
    assert harness.frame()["error"] is None


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """matplotlib's cache: its list of fonts takes a second to make."""
    return tmp_path_factory.mktemp("matplotlib")


@pytest.fixture
def drawing(harness: Any, tmp_path: Path, fonts: Path) -> Any:
    """A harness whose directories are the test's, with a display that nobody may open."""
    _limits(harness, tmp_path, {"DISPLAY": ":99", "MPLCONFIGDIR": str(fonts)})
    return harness


def test_a_figure_comes_without_being_asked_for_and_is_closed(drawing: Any) -> None:
    answer = drawing.eval(PLOT + "line = plt.plot([1, 2, 3])", mime=ANY)
    assert (answer["value"], answer.get("mime")) == ("None", None)
    assert [sorted(bundle) for bundle in answer["images"]] == [["image/png"]]
    assert min(_image(answer["images"][0]).size) > 300
    assert drawing.value("plt.get_fignums(), plt.get_backend()", mime=ANY) == "([], 'agg')"
    assert drawing.hang_up() == 0
    assert bytes(drawing.stderr) == b""


def test_each_show_is_a_figure_and_nothing_is_said_of_displays(drawing: Any) -> None:
    code = "for n in range(3):\n    plt.plot([n])\n    plt.show()\n    assert not plt.get_fignums()\nplt.plot([1])"
    answer = drawing.eval(PLOT + code, mime=ANY)
    assert (answer["outcome"], len(answer["images"])) == ("ok", 4)
    # Once more, now that pyplot is there before the eval begins; by the figure's own method; under a chosen agg.
    assert len(drawing.eval(code, mime=ANY)["images"]) == 4
    assert len(drawing.eval("figure = plt.figure(); plt.plot([1]); figure.show()", mime=ANY)["images"]) == 1
    chosen = drawing.eval("import matplotlib; matplotlib.use('Agg'); plt.switch_backend('agg')\n" + code, mime=ANY)
    assert len(chosen["images"]) == 4
    assert "images" not in drawing.eval("plt.plot([1]); plt.show()")
    assert drawing.value("plt.get_fignums()") == "[1]"
    assert drawing.hang_up() == 0
    assert bytes(drawing.stderr) == b""


def test_a_figure_that_is_the_value_comes_once(drawing: Any) -> None:
    for code in ("plt.plot([1])\nplt.gcf()", "plt.plot([1]); figure = plt.gcf(); plt.show()\nfigure"):
        answer = drawing.eval(PLOT + code, mime=ANY)
        assert list(answer["mime"]) == ["image/png"]
        assert "images" not in answer
        assert drawing.value("plt.get_fignums()") == "[]"
    again = drawing.eval(
        "figure.axes[0].set_title('changed')\nfigure", mime=["text/html", "image/svg+xml", "image/png"]
    )
    assert list(again["mime"]) == ["image/svg+xml"]
    assert again["mime"]["image/svg+xml"].startswith("<?xml")
    assert list(drawing.eval("figure", mime=["image/jpeg"])["mime"]) == ["image/jpeg"]
    assert "mime" not in drawing.eval("figure", mime=["text/html"])


def test_only_what_this_eval_drew_is_shown(drawing: Any) -> None:
    drawing.eval(PLOT + "old = plt.figure(1); plt.plot([1])\nother = plt.figure(2); plt.plot([1])")
    assert "images" not in drawing.eval("1 + 1", mime=ANY)
    assert "images" not in drawing.eval("empty = plt.figure(3)", mime=ANY)
    assert len(drawing.eval("old.axes[0].set_title('now')", mime=ANY)["images"]) == 1
    assert drawing.value("plt.get_fignums()", mime=ANY) == "[2, 3]"
    assert len(drawing.eval("plt.plot([3])", mime=ANY)["images"]) == 1
    assert drawing.value("plt.get_fignums()", mime=["text/html"]) == "[2]"


def test_an_eval_that_fails_shows_what_it_drew_before(drawing: Any) -> None:
    answer = drawing.eval(PLOT + "plt.plot([1])\n1 / 0", mime=ANY)
    assert (answer["outcome"], len(answer["images"])) == ("error", 1)
    answer = drawing.eval("plt.plot([1])\nraise SystemExit", mime=ANY)
    assert (answer["outcome"], len(answer["images"])) == ("ok", 1)


def test_a_figure_that_cannot_be_drawn_is_a_line_and_stays_open(drawing: Any) -> None:
    answer = drawing.eval(PLOT + "plt.plot([1]); plt.title(r'$\\frac{$'); plt.show(); 7", mime=ANY)
    assert (answer["outcome"], answer["value"], answer.get("images")) == ("ok", "7", None)
    assert "images" not in drawing.eval("1", mime=ANY)
    assert len(drawing.eval("plt.title('mended'); None", mime=ANY)["images"]) == 1
    assert drawing.hang_up() == 0
    lines = bytes(drawing.stderr).decode().splitlines()
    assert lines
    assert all(line.startswith("a figure could not be rendered: ValueError: ") for line in lines)


def test_a_warning_while_drawing_names_no_file_of_ours(drawing: Any) -> None:
    assert len(drawing.eval(PLOT + "plt.plot([1]); plt.title('\\ue123')", mime=ANY)["images"]) == 1
    assert drawing.hang_up() == 0
    assert bytes(drawing.stderr).startswith(b"<figure>:1: UserWarning: Glyph 57635")


def test_drawing_can_be_interrupted(drawing: Any) -> None:
    drawing.eval(
        PLOT + "from matplotlib.lines import Line2D\nclass Slow(Line2D):\n"
        "    def draw(self, renderer):\n        print('drawing')\n        while True: pass"
    )
    drawing.start_eval("plt.gca().add_line(Slow([0, 1], [0, 1])); None", mime=ANY)
    drawing.until(lambda: b"drawing" in drawing.stdout)
    drawing.interrupt()
    answer = drawing.result()
    assert (answer["outcome"], answer.get("images")) == ("interrupted", None)
    assert "replharness" not in answer["traceback"]
    drawing.eval("plt.close('all')")
    assert len(drawing.eval("plt.plot([1])", mime=ANY)["images"]) == 1


def test_surplus_figures_are_files_and_the_rest_is_counted(drawing: Any, tmp_path: Path) -> None:
    _limits(drawing, tmp_path, images=2)
    answer = drawing.eval(
        PLOT + "for n in range(55):\n    plt.figure(figsize=(1, 1)).text(0, 0, 'x'); plt.show()", mime=ANY
    )
    bundles = answer["images"]
    assert [sorted(bundle) for bundle in bundles] == [["image/png"]] * 2 + [[FILE, "text/plain"]] * 50
    assert answer["images-dropped"] == 3
    assert all(_saved_image(bundle).format == "PNG" for bundle in bundles[2:])
    assert len(list((tmp_path / "replctl-images").iterdir())) == 50
    assert "images-dropped" not in drawing.eval("1", mime=ANY)


def test_an_image_over_the_bound_is_made_smaller_and_kept_whole(drawing: Any, tmp_path: Path) -> None:
    _limits(drawing, tmp_path, image_bytes=20_000)
    drawing.eval("import numpy, matplotlib.pyplot as plt\nfrom PIL import Image\nimport io")
    drawing.eval("noise = numpy.random.default_rng(1).integers(0, 255, (300, 400, 3), 'uint8')")
    drawing.eval("whole = Image.fromarray(noise)")
    drawing.eval(
        "class Bytes:\n    def _repr_jpeg_(self):\n        b = io.BytesIO(); whole.save(b, 'JPEG'); return b.getvalue()"
    )
    for code, mime, size in (("whole", "image/png", (400, 300)), ("Bytes()", "image/jpeg", (400, 300))):
        bundle = drawing.eval(code, mime=[mime])["mime"]
        assert _saved_image(bundle).size == size
        small = _image(bundle, mime)
        assert f"image of 400x300 shown as {small.width}x{small.height}; the whole" in bundle["text/plain"]
        assert bundle["text/plain"].endswith(bundle[FILE])
        assert len(bundle[mime]) <= 20_000
    bundle = drawing.eval("plt.imshow(noise); None", mime=ANY)["images"][0]
    assert len(bundle["image/png"]) <= 20_000
    assert _saved_image(bundle).width > _image(bundle).width
    _limits(drawing, tmp_path, image_bytes=1_000_000)
    bundle = drawing.eval("Image.new('L', (6000, 5000))", mime=["image/png"])["mime"]
    assert _image(bundle).size == (3000, 2500)
    assert bundle["text/plain"] == "image of 6000x5000 shown as 3000x2500; image/png of 30000000 pixels not kept"


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16"]
)
def test_an_image_of_any_mode_comes_as_png(drawing: Any, tmp_path: Path, mode: str) -> None:
    answer = drawing.eval(f"from PIL import Image\nImage.new({mode!r}, (30, 20))", mime=ANY)
    assert _image(answer["mime"]).size == (30, 20)
    assert "PIL" in answer["value"]
    _limits(drawing, tmp_path, image_bytes=200)
    bundle = drawing.eval(
        f"Image.effect_noise((60, 40), 99).convert('L').convert({mode!r})"
        if mode not in ("LAB", "I;16", "PA", "HSV", "YCbCr", "RGBX", "LA")
        else "Image.effect_noise((60, 40), 99)",
        mime=ANY,
    )["mime"]
    assert FILE in bundle
    assert drawing.hang_up() == 0
    assert bytes(drawing.stderr) == b""


def test_pandas_comes_as_a_compact_table(drawing: Any) -> None:
    drawing.eval("import pandas\ndf = pandas.DataFrame({f'c{n}': range(100) for n in range(30)})")
    lines = drawing.eval("df", mime=["text/html"])["value"].splitlines()
    assert (len(lines), lines[-1]) == (1 + 5 + 1 + 5 + 2, "[100 rows x 30 columns]")
    assert lines[0].split() == [*(f"c{n}" for n in range(6)), "...", *(f"c{n}" for n in range(24, 30))]
    html = drawing.eval("df", mime=["text/html", "text/markdown"])["mime"]
    assert list(html) == ["text/html"]
    assert html["text/html"].count("<tr") == 1 + 5 + 1 + 5
    assert len(drawing.eval("df")["value"].splitlines()) == 1 + 10 + 1 + 2
    drawing.eval("pandas.set_option('display.max_rows', 200)")
    assert len(drawing.eval("df", mime=["text/html"])["value"].splitlines()) == 1 + 100 + 2
    assert drawing.value("pandas.get_option('display.show_dimensions')") == "'truncate'"


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (
            "pandas.DataFrame({'a': [1234567.891, 2.5], 'b': [771832.59, 1e-9]})",
            ["            a         b", "0 1234567.891 771832.59", "1         2.5     1e-09"],
        ),
        ("pandas.DataFrame({'a': [1.5, 2.25]})", ["      a", "0  1.50", "1  2.25"]),
        ("pandas.Series([1 / 3], name='s')", ["0    0.333333", "Name: s, dtype: float64", "[floats are rounded here]"]),
        (
            "pandas.DataFrame({'x': [1]}, index=pandas.Index(['k'], name='key')).rename_axis(columns='top')",
            ["top  x", "key   ", "k    1"],
        ),
        ("pandas.DataFrame({'v': [float('nan'), float('inf')]})", ["     v", "0  NaN", "1  inf"]),
        ("pandas.DataFrame()", ["Empty DataFrame", "Columns: []", "Index: []"]),
        (
            "polars.DataFrame({'a': [1234567.8912345, None], 'b': ['x', 'y']})",
            [
                "shape: (2, 2)",
                "               a  b",
                "             f64  str",
                " 1234567.8912345  x",
                "            null  y",
            ],
        ),
    ],
)
def test_a_table_shows_exact_numbers_and_names_or_says_that_it_rounds(
    drawing: Any, code: str, lines: list[str]
) -> None:
    drawing.eval("import pandas, polars")
    assert drawing.eval(code, mime=["image/png"])["value"].splitlines() == lines


def test_a_wide_polars_frame_keeps_its_ends_and_the_users_options(drawing: Any) -> None:
    drawing.eval("import polars")
    wide = drawing.eval("polars.DataFrame({f'c{n}': range(50) for n in range(14)})", mime=["image/png"])
    lines = wide["value"].splitlines()
    assert lines[1].split() == [*(f"c{n}" for n in range(6)), "…", *(f"c{n}" for n in range(8, 14))]
    assert (lines[0], len(lines)) == ("shape: (50, 14)", 1 + 2 + 5 + 1 + 5)
    assert "┌" in drawing.eval("polars.DataFrame({'a': [1]})")["value"]
    drawing.eval("polars.Config.set_tbl_formatting('ASCII_FULL')")
    assert "+" in drawing.eval("polars.DataFrame({'a': [1]})", mime=["image/png"])["value"]
    html = drawing.eval("polars.DataFrame({'a': [1]})", mime=["text/html"])["mime"]["text/html"]
    assert "shape: (1, 1)" in html


def test_an_array_is_its_text(drawing: Any) -> None:
    answer = drawing.eval("import numpy\nnumpy.arange(3)", mime=(*ANY, "text/html"))
    assert (answer["value"], answer.get("mime")) == ("array([0, 1, 2])", None)


def test_a_session_draws_without_a_display_unless_it_is_told_otherwise(harness: Any) -> None:
    assert harness.value("import os\nos.environ['MPLBACKEND']") == "'agg'"
    harness.send(op="assign", n=0, cwd=None, env={"MPLBACKEND": "svg"}, limits={})
    assert harness.frame()["error"] is None
    assert harness.value("os.environ['MPLBACKEND']") == "'svg'"

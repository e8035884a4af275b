"""Pictures of an eval as files, through the installed command and a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replctl.client.result import Result
from replctl.commands.images import save_images

if TYPE_CHECKING:
    from conftest import Shell

_PNG = b"\x89PNG\r\n\x1a\n"


def test_a_picture_becomes_a_file(live: Shell, tmp_path: Path) -> None:
    code = "class Picture:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nPicture()"
    ran = live.run("eval", "-s", "pictures", code, "--save-images", f"{tmp_path}/new")
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (0, f"replctl: saved {tmp_path}/new/eval-1-1.png")
    assert (tmp_path / "new/eval-1-1.png").read_bytes() == _PNG
    ran = live.run("eval", "-s", "pictures", "1", "--save-images", f"{tmp_path}/new")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")
    (tmp_path / "file").touch()
    assert live.run("eval", "-s", "pictures", "1", "--save-images", f"{tmp_path}/file").returncode == 2


def test_a_rich_form_is_asked_for(live: Shell) -> None:
    code = "class Page:\n    def _repr_html_(self): return '<b>1</b>'\nPage()"
    ran = live.run("eval", "-s", "forms", code, "--mime", "image/png", "--mime", "text/html", "--json")
    assert json.loads(ran.stdout)["mime"]["text/html"] == "<b>1</b>"


@pytest.mark.parametrize("taken", [False, True])
def test_no_file_is_overwritten(tmp_path: Path, taken: bool) -> None:
    if taken:
        (tmp_path / "eval-3-1.svg").write_text("mine")
    images = [{"image/svg+xml": "<svg/>", "text/plain": "a figure"}, {"image/png": "iVBORw0KGgo="}]
    paths = list(save_images(Result(eval_id=3, images=images), str(tmp_path)))
    first = 1 + taken
    assert paths == [f"{tmp_path}/eval-3-{first}.svg", f"{tmp_path}/eval-3-{first + 1}.png"]
    assert (Path(paths[0]).read_text(), Path(paths[1]).read_bytes()) == ("<svg/>", _PNG)

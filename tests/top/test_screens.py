"""The screen, letter by letter: a model that is always the same, drawn in a small and in a large terminal.

REPLCTL_WRITE_SCREENS=1 writes the files anew; look at them before they are committed.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from replctl.top.app import TopApp
from top_kit import fixed_model, text_of

SCREENS = Path(__file__).parent / "screens"
SIZES = ((80, 24), (120, 40))
KEYS = {
    "first": (),
    "output": ("down", "2"),
    "jobs": ("3", "j"),
    "agents": ("4",),
    "help": ("?",),
    "close": ("j", "c"),
    "filter": ("/", "a", "d", "a"),
    "by_cpu": ("s", "s", "s"),
}


async def _screen(size: tuple[int, int], keys: tuple[str, ...]) -> str:
    app = TopApp(fixed_model())
    app.now = lambda: 90.0
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.draw()
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        app.draw()
        await pilot.pause()
        return text_of(app)


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_screen_is_as_it_was_looked_at(size: tuple[int, int], name: str) -> None:
    shown = asyncio.run(_screen(size, KEYS[name]))
    file = SCREENS / f"{name}-{size[0]}x{size[1]}.txt"
    if os.environ.get("REPLCTL_WRITE_SCREENS"):
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")
    assert len(shown.splitlines()) == size[1]


def test_every_screen_file_belongs_to_a_test() -> None:
    wanted = {f"{name}-{width}x{height}.txt" for name in KEYS for width, height in SIZES}
    assert {file.name for file in SCREENS.iterdir()} == wanted

"""Contributions of extensions to the screen: words, boxes, keys, another screen; none can break it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ext_kit import config_entry, write_extension
from kit import TIMEOUT_S, BrokerProcess, wait_until
from replctl.client.aio import AsyncClient
from replctl.top.app import TopApp
from replctl.top.model import TopModel
from replctl.top.screen_extensions import ScreenExtensions
from replwire.ext.contracts import Contribution, Control, Panel, StatusItem
from replwire.ext.registry import ExtensionRegistry, Registration
from top_kit import fixed_model, text_of, wait_for_text

Start = Callable[..., BrokerProcess]


def _parts(*some: Contribution) -> ScreenExtensions:
    def load(on_error: Callable[[Registration, BaseException], None]) -> ExtensionRegistry:
        registry = ExtensionRegistry(on_error)
        for each in some:
            registry.register("demo", each)
        return registry

    return ScreenExtensions(load)


def _count(shown: Any) -> str:
    return f"{len(shown['sessions'])} sessions"


SHOWN: dict[str, Any] = {"sessions": [1, 2]}


def test_words_stand_in_their_order_and_those_that_say_nothing_do_not() -> None:
    parts = _parts(
        StatusItem(name="b", order=2, render=lambda _: "last"),
        StatusItem(name="c", render=lambda _: None),
        StatusItem(name="a", order=1, render=_count),
    )
    assert [text for text, _ in parts.statuses(SHOWN) if text.strip()] == [" 2 sessions  ", " last  "]
    assert parts.warning == ""


@pytest.mark.parametrize(
    ("render", "why"),
    [(lambda *_: 1 // 0, "ZeroDivisionError"), (lambda *_: 42, "TypeError: returned int instead of text")],
)
def test_one_that_fails_is_left_out_and_told_and_the_others_are_there(render: Any, why: str) -> None:
    parts = _parts(StatusItem(name="bad", render=render), StatusItem(name="good", render=_count))
    assert [text for text, _ in parts.statuses(SHOWN) if text.strip()] == [" 2 sessions  "]
    assert parts.warning.startswith("extension demo/bad: ")
    assert why in parts.warning
    parts = _parts(Panel(name="bad", title="T", height=2, render=render))
    ((record, panel),) = parts.panels()
    assert parts.lines(record, panel, SHOWN, 20) == [[("failed", "bold red")]]


def test_a_box_is_as_high_as_it_said_and_harmless_to_a_terminal() -> None:
    text = "\x1b[31mred\x1b[2J\nsecond line that is long\nthird"
    parts = _parts(Panel(name="box", title="T", height=2, render=lambda _, width: text * (width > 0)))
    ((record, panel),) = parts.panels()
    lines = parts.lines(record, panel, SHOWN, 12)
    assert len(lines) == 2
    assert all("\x1b" not in line[0][0] and len(line[0][0]) <= 12 for line in lines)


def test_a_key_of_the_screen_stays_its_own() -> None:
    parts = _parts(
        Control(name="mine", key="q", run=lambda *_: ""), Control(name="other", key="x", run=lambda *_: "", summary="X")
    )
    assert "the key q is reserved" in parts.warning
    assert parts.keys() == [("x", "X")]


async def _draw(parts: ScreenExtensions, size: tuple[int, int], *keys: str) -> str:
    app = TopApp(fixed_model(), parts=parts)
    app.now = lambda: 90.0
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
        app.draw()
        await pilot.pause()
        app.draw()
        await pilot.pause()
        return text_of(app)


def test_words_boxes_and_keys_are_on_the_screen() -> None:
    parts = _parts(
        StatusItem(name="count", render=_count),
        Panel(
            name="owners",
            title="Owners",
            height=3,
            render=lambda shown, _: "\n".join(each["name"] for each in shown["agents"]),
        ),
        Control(name="hello", key="x", summary="say hello", run=lambda *_: "hello"),
    )
    shown = asyncio.run(_draw(parts, (120, 40)))
    assert "5 sessions" in shown
    assert "Owners" in shown
    rows = shown.splitlines()
    box = next(number for number, row in enumerate(rows) if "Owners" in row)
    assert [row.strip() for row in rows[box + 1 : box + 4]] == ["ada", "grace", "linus"]
    assert "say hello" in asyncio.run(_draw(parts, (120, 40), "?"))


def test_in_a_low_terminal_there_are_no_boxes() -> None:
    parts = _parts(Panel(name="owners", title="Owners", height=3, render=lambda *_: "x"))
    assert "Owners" not in asyncio.run(_draw(parts, (80, 24)))


def test_a_key_does_something_at_a_real_broker(start: Start) -> None:
    broker = start()

    def grow(client: Any, session: str | None) -> str:
        return f"{session}: x is {client.eval('x = x + 1; x', session or '').value}"

    def leave(*_: Any) -> str:
        raise KeyboardInterrupt

    parts = _parts(
        Control(name="grow", key="x", run=grow),
        Control(name="fails", key="X", run=lambda *_: 1 // 0),
        Control(name="leaves", key=",", run=leave),
        Control(name="at", key="@", run=lambda *_: "at once"),
        Control(name="refused", key="Y", run=lambda client, _: client.reset("not-there")),
    )

    async def run() -> None:
        app = TopApp(TopModel(broker.endpoint), lambda: AsyncClient(broker.endpoint, start=False), 0.5, parts=parts)
        async with app.run_test(size=(120, 40)) as pilot:
            async with AsyncClient(broker.endpoint, start=False) as client:
                await client.eval("x = 41", "work")
            await wait_for_text(pilot, "Output of work")  # it is the chosen one
            await pilot.press("x")
            await wait_for_text(pilot, "work: x is 42")
            await pilot.press("X")
            await wait_for_text(pilot, "extension demo/fails: ZeroDivisionError")
            await pilot.press("Y")
            await wait_for_text(pilot, "Session not found: not-there")
            await pilot.press(",")
            await wait_for_text(pilot, "extension demo/leaves: KeyboardInterrupt")
            await pilot.press("@")
            await wait_for_text(pilot, "at once")
            await pilot.press("q")

    asyncio.run(run())


def test_a_key_that_does_not_come_back_keeps_nobody_from_quitting(broker: BrokerProcess) -> None:
    begun, release, ended = threading.Event(), threading.Event(), []

    def hang(*_: Any) -> str:
        begun.set()
        ended.append(release.wait(TIMEOUT_S))
        return ""

    async def run() -> None:
        app = TopApp(TopModel(broker.endpoint), parts=_parts(Control(name="hangs", key="x", run=hang)))
        async with app.run_test() as pilot:
            await pilot.press("x")
            await wait_for_text(pilot, lambda _: begun.is_set())
            await pilot.press("q")

    asyncio.run(run())
    assert ended == []
    release.set()
    wait_until(lambda: ended == [True], "its thread has ended")


PRESENTER = """
@hookimpl
def replctl_register(register, settings):
    def show(client):
        print("sessions:", len(client.sessions()))
        return 3
    register(Screen(name="plain", run=show))
    register(Screen(name="broken", run=lambda client: 1 // 0))
"""


def test_another_screen_is_chosen_by_its_name(start: Start, tmp_path: Path) -> None:
    broker = start(config=config_entry(path=write_extension(tmp_path, "screens", PRESENTER)))
    environ = {**broker.environ, "REPLCTL_CONFIG": str(broker.directory / "config.toml")}

    def top(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "replctl", "top", "--endpoint", broker.endpoint, "--screen", name]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    shown = top("plain")
    assert (shown.returncode, shown.stdout) == (3, "sessions: 0\n")
    broken = top("broken")
    assert (broken.returncode, "Traceback" in broken.stderr) == (2, False)
    assert "extension screen broken: ZeroDivisionError" in broken.stderr
    missing = top("fancy")
    assert missing.returncode == 2
    assert "no extension has a screen fancy" in missing.stderr

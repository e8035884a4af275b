"""Files through the tools: put, fetched as text or image, viewed and edited, against a real broker."""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import BrokerProcess
from mcp_kit import HELLO, finish, receive, send_request, start_raw
from replctl.tools import Tools, ToolSettings, toolset

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def there() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="rpl-files-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def tools(broker: BrokerProcess, there: Path) -> Iterator[Tools]:
    settings = ToolSettings(cwd=str(there), image_bytes=1_000_000)
    with toolset("full", endpoint=broker.endpoint, settings=settings) as tools:
        yield tools
        tools.call("sessions", {"action": "close", "session": "files"})


def call(tools: Tools, name: str, **arguments: object) -> str:
    """The text of a call in session `files`."""
    return tools.call(name, {"session": "files", **arguments}).text


def test_text_is_put_and_fetched(tools: Tools, there: Path) -> None:
    put = call(tools, "sessions", action="put", path="a.txt", text="grün\n")
    assert put.splitlines()[0] == f"wrote 6 bytes to {there}/a.txt"
    assert (there / "a.txt").read_text() == "grün\n"
    assert call(tools, "sessions", action="get", path="a.txt") == "grün\n"
    assert call(tools, "eval", code="open('a.txt').read()") == "'grün\\n'"


def test_an_image_is_fetched_as_one(tools: Tools, there: Path) -> None:
    call(tools, "eval", code="1")
    (there / "plot.png").write_bytes(PNG)
    result = tools.call("sessions", {"action": "get", "session": "files", "path": "plot.png"})
    assert result.text == f"{there}/plot.png: {len(PNG)} bytes, image/png"
    assert [(each.mime, base64.b64decode(each.data)) for each in result.images] == [("image/png", PNG)]


def test_what_is_neither_text_nor_a_small_image_is_told_with_its_size(tools: Tools, there: Path) -> None:
    call(tools, "eval", code="1")
    (there / "data.bin").write_bytes(bytes(1000))
    assert call(tools, "sessions", action="get", path="data.bin").endswith("1000 bytes, not text: read it with code")
    (there / "huge.png").write_bytes(PNG + bytes(1_000_000))
    huge = tools.call("sessions", {"action": "get", "session": "files", "path": "huge.png"})
    assert huge.text.endswith(", image/png: read it with code")
    assert huge.images == []


def test_long_text_is_shown_by_its_ends(tools: Tools, there: Path) -> None:
    call(tools, "eval", code="1")
    (there / "log").write_text("\n".join(f"line {number}" for number in range(100_000)))
    text = call(tools, "sessions", action="get", path="log")
    assert text.startswith("line 0\n")
    assert "read it with code" in text
    assert len(text) < 1200
    assert "[the first 750000 of 1088889 bytes]" in text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"action": "get"}, "get takes `path`"),
        ({"action": "put", "path": "a"}, "put takes `path`, and put `text`"),
        ({"action": "get", "path": "a", "text": "x"}, "get takes `path`"),
        ({"action": "get", "path": "missing"}, "file not found: missing"),
        ({"action": "get", "path": "/dev/zero"}, "not a regular file"),
    ],
)
def test_a_refusal_says_why(tools: Tools, arguments: dict[str, str], why: str) -> None:
    call(tools, "eval", code="1")
    result = tools.call("sessions", {"session": "files", **arguments})
    assert result.error
    assert why in result.text


# --- view and edit ---


def test_a_file_is_viewed_with_line_numbers(tools: Tools, there: Path) -> None:
    call(tools, "eval", code="1")
    (there / "m.py").write_text("def f():\n    return 1\n\nf()\n")
    assert call(tools, "view", path="m.py") == "1\tdef f():\n2\t    return 1\n3\t\n4\tf()"
    assert call(tools, "view", path="m.py", line=2, lines=1) == "2\t    return 1\n[lines 2 to 2 of 4]"
    assert call(tools, "view", path="m.py", line=9) == "[4 lines]"
    (there / "long").write_text("x" * 100 + "\n" + "y\n" * 5000)
    shown = call(tools, "view", path="long", lines=5000)
    assert len(shown) <= 4100
    assert shown.endswith("of 5001]")
    assert call(tools, "view", path=".").startswith(". is a directory") or "directory" in call(tools, "view", path=".")
    (there / "empty").write_text("")
    assert call(tools, "view", path="empty") == "[the file is empty]"


def test_an_edit_replaces_text_that_is_there_once(tools: Tools, there: Path) -> None:
    call(tools, "eval", code="1")
    (there / "m.py").write_text("a = 1\nb = 1\n")
    assert call(tools, "edit", path="m.py", old="b = 1", new="b = 2") == f"edited {there}/m.py at line 2"
    assert (there / "m.py").read_text() == "a = 1\nb = 2\n"
    for old, why in ((" = ", "is in the file 2 times"), ("c", "is not in the file")):
        result = tools.call("edit", {"session": "files", "path": "m.py", "old": old, "new": ""})
        assert result.error
        assert why in result.text
    assert (there / "m.py").read_text() == "a = 1\nb = 2\n"
    (there / "data.bin").write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in call(tools, "edit", path="data.bin", old="a", new="b")


def test_an_mcp_client_gets_an_image_as_an_image(broker: BrokerProcess, there: Path) -> None:
    process = start_raw(broker)
    send_request(process, "initialize", 1, **HELLO)
    receive(process)
    for number, (name, arguments) in enumerate(
        [
            ("sessions", {"action": "new", "session": "files", "cwd": str(there)}),
            ("sessions", {"action": "get", "session": "files", "path": "plot.png"}),
        ],
        2,
    ):
        (there / "plot.png").write_bytes(PNG)
        send_request(process, "tools/call", number, name=name, arguments=arguments)
        while (answer := receive(process)).get("id") != number:
            pass
    finish(process)
    kinds = [(each["type"], each.get("mimeType")) for each in answer["result"]["content"]]
    assert kinds == [("text", None), ("image", "image/png")]

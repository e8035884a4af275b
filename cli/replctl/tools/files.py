"""Tools on files of a session: fetched as text or as an image, written; viewed in lines and edited in the full set."""

from __future__ import annotations

import base64
from collections.abc import Generator
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from replctl.tools.base import (
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolImage,
    ToolRequest,
    ToolResponse,
    ToolResult,
    bad_arguments,
    request,
)
from replctl.tools.steps import with_session
from replctl.tools.text_budget import clean, fold
from replwire.identifiers import DEFAULT_SESSION
from replwire.limits import MIB
from replwire.quantities import count_of

MAX_TEXT_BYTES = MIB  # of a file that is viewed or edited
_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))

Positive = Annotated[int, Meta(ge=1)]


class FetchedFile(NamedTuple):
    """Content of a file as far as it was fetched, its size, and its path in the session."""

    data: bytes
    size: int
    path: str


class ViewArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `view`."""

    path: str
    line: Annotated[Positive, Meta(description="first line")] = 1
    lines: Annotated[Positive, Meta(description="as many as fit 4000 characters")] = 200
    session: str = DEFAULT_SESSION


class EditArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `edit`."""

    path: str
    old: Annotated[str, Meta(min_length=1, description="text that is in the file exactly once")]
    new: str
    session: str = DEFAULT_SESSION


def get(session: str, path: str, at: ToolContext) -> ToolCall:
    """Fetch a file: an image as such, text within the budget."""
    most = at.settings.image_bytes * 3 // 4  # base64
    file = yield from _fetch(session, path, most)
    facts = {"status": "ok", "session": session, "file": file.path, "bytes": file.size}
    label = f"{file.path}: {count_of(file.size, 'byte')}"
    mime = next((mime for magic, mime in _IMAGES if file.data.startswith(magic)), None)
    if mime is not None and file.size <= most:
        image = ToolImage(mime, base64.b64encode(file.data).decode())
        return ToolResult(text=f"{label}, {mime}", structured=facts, images=[image])
    text = _decode(file)
    if text is None:
        return ToolResult(text=f"{label}, {mime or 'not text'}: read it with code", structured=facts)
    whole = clean(text).text
    budget = at.settings.budget if len(whole) <= at.settings.budget else at.settings.flood
    shown = fold(whole, budget, at.settings.line, "; read it with code").text
    if file.size > len(file.data):
        shown += f"\n[the first {len(file.data)} of {file.size} bytes]"
    return ToolResult(text=shown, structured=facts)


def put(session: str, path: str, text: str, at: ToolContext) -> ToolCall:
    """Write a text file; a missing session is opened."""
    return (yield from with_session(session, at.settings, lambda: _put(session, path, text)))


def _put(session: str, path: str, text: str) -> ToolCall:
    reply = yield from request("put-file", session=session, file=path, data=text.encode("utf-8", "surrogatepass"))
    facts = {"status": "ok", "session": session, "file": reply["file"], "bytes": reply["bytes"]}
    return ToolResult(text=f"wrote {count_of(reply['bytes'], 'byte')} to {reply['file']}", structured=facts)


def view(a: ViewArgs, at: ToolContext) -> ToolCall:
    """Show lines of a text file with their numbers."""
    file = yield from _fetch(a.session, a.path, MAX_TEXT_BYTES)
    text = _decode(file)
    if text is None:
        return (yield from bad_arguments(f"{file.path} is not UTF-8 text ({count_of(file.size, 'byte')})"))
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    shown: list[str] = []
    room, number = at.settings.budget, a.line
    for each in lines[a.line - 1 : a.line - 1 + a.lines]:
        row = f"{number}\t{clean(each).text}"
        if shown and len(row) + 1 > room:
            break
        shown.append(fold(row, at.settings.line, at.settings.line).text)
        room -= len(shown[-1]) + 1
        number += 1
    total = f"{len(lines)}+" if file.size > len(file.data) else str(len(lines))
    if a.line > 1 or number <= len(lines) or file.size > len(file.data):
        shown.append(f"[lines {a.line} to {number - 1} of {total}]" if number > a.line else f"[{total} lines]")
    facts = {"status": "ok", "session": a.session, "file": file.path}
    return ToolResult(text="\n".join(shown) or "[the file is empty]", structured=facts)


def edit(a: EditArgs, at: ToolContext) -> ToolCall:  # noqa: ARG001
    """Replace text that a file has exactly once."""
    file = yield from _fetch(a.session, a.path, MAX_TEXT_BYTES)
    text = None if file.size > len(file.data) else _decode(file)
    if text is None:
        return (yield from bad_arguments(f"{file.path} is not UTF-8 text of at most {MAX_TEXT_BYTES} bytes: use code"))
    count = text.count(a.old)
    if count != 1:
        found = "is not in the file" if count == 0 else f"is in the file {count} times: give more of its surroundings"
        return (yield from bad_arguments(f"`old` {found}; nothing has changed"))
    line = text[: text.index(a.old)].count("\n") + 1
    data = text.replace(a.old, a.new).encode()
    yield from request("put-file", session=a.session, file=file.path, data=data)
    facts = {"status": "ok", "session": a.session, "file": file.path}
    return ToolResult(text=f"edited {file.path} at line {line}", structured=facts)


def _fetch(session: str, path: str, most: int) -> Generator[ToolRequest, ToolResponse, FetchedFile]:
    """Fetch a file, at most `most` bytes of it."""
    data = bytearray()
    while True:
        fields: dict[str, Any] = {"session": session, "file": path, "max_bytes": max(1, most - len(data))}
        reply = yield from request("get-file", **fields, offset=len(data) or None)
        data += base64.b64decode(reply["data"])
        if len(data) >= min(most, reply["bytes"]) or not reply["data"]:
            return FetchedFile(bytes(data), reply["bytes"], reply["file"])


def _decode(file: FetchedFile) -> str | None:
    """Return the text of a file; a character that the fetched part cuts in two is left out."""
    cut = 0 if file.size == len(file.data) else 3
    for less in range(cut + 1):
        try:
            text = file.data[: len(file.data) - less].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


_OUTPUT = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}

TOOLS = (
    ToolDefinition(
        name="view",
        title="View a text file",
        args=ViewArgs,
        run=view,
        read_only=True,
        output=_OUTPUT,
        text="Show lines of a text file of the session, with their numbers.",
    ),
    ToolDefinition(
        name="edit",
        title="Edit a text file",
        args=EditArgs,
        run=edit,
        output=_OUTPUT,
        text="Replace text in a file of the session: `old`, which it has exactly once, by `new`. A new file: "
        'sessions(action="put").',
    ),
)

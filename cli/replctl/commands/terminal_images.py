"""Pictures in the terminal itself, for terminals with kitty's or iTerm2's protocol; elsewhere they become files.

Sources: https://sw.kovidgoyal.net/kitty/graphics-protocol/ and https://iterm2.com/documentation-images.html.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from replctl.client.result import Result
from replctl.commands.images import save_images
from replctl.commands.output import CommandOutput
from replwire.paths import state_dir
from replwire.private_directories import make_private_directory

MAX_FILES = 100  # pictures kept in the state directory
_CHUNK = 4096  # characters of base64 in one of kitty's escapes
_PNG = b"\x89PNG\r\n\x1a\n"
_MAGIC = {"image/png": _PNG, "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8"}
_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_ITERM_PROGRAMS = ("iTerm.app", "WezTerm", "mintty")

Encoder = Callable[[str, bytes], str | None]


def find_encoder(environ: Mapping[str, str]) -> Encoder | None:
    """Return a function that encodes a picture for this terminal, or None if the terminal is not known to show any.

    Inside tmux and screen, which do not pass the escapes on by default, there is none.
    """
    term = environ.get("TERM", "")
    if "TMUX" in environ or term.startswith(("screen", "tmux")):
        return None
    if environ.get("KITTY_WINDOW_ID") or term in _KITTY_TERMS:
        return encode_kitty
    if environ.get("TERM_PROGRAM") in _ITERM_PROGRAMS or environ.get("LC_TERMINAL") == "iTerm2":
        return encode_iterm
    return None


def encode_kitty(kind: str, data: bytes) -> str | None:
    """Return a PNG as kitty's escapes; None for another kind."""
    if kind != "image/png":
        return None
    text = base64.b64encode(data).decode()
    parts = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    heads = ["a=T,f=100,"] + [""] * (len(parts) - 1)
    return "".join(
        f"\x1b_G{head}m={int(at < len(parts) - 1)};{part}\x1b\\"
        for at, (head, part) in enumerate(zip(heads, parts, strict=True))
    )


def encode_iterm(kind: str, data: bytes) -> str | None:
    """Return a PNG, JPEG or GIF as iTerm2's escape; None for another kind."""
    if kind not in _MAGIC:
        return None
    return f"\x1b]1337;File=inline=1;size={len(data)}:{base64.b64encode(data).decode()}\x07"


def show_images(screen: CommandOutput, result: Result, encode: Encoder | None) -> None:
    """Show the pictures of an eval in the terminal, or write them to files and say where they are.

    Args:
        screen: The command's output.
        result: The eval's result.
        encode: The terminal's encoder; None to write files.
    """
    for kind, data in _pictures(result):
        if encode is not None and (text := encode(kind, data)) is not None:
            screen.value(text)
        else:
            _save(screen, Result(eval_id=result.eval_id, images=[{kind: _text(kind, data)}]))


def _pictures(result: Result) -> Iterator[tuple[str, bytes]]:
    """Yield kind and bytes of each picture; whatever is not one by its first bytes is left out."""
    for bundle in (*result.images, result.mime or {}):
        for kind, data in bundle.items():
            if kind == "image/svg+xml":
                yield kind, str(data).encode()
            elif kind in _MAGIC and (raw := _decode(data)).startswith(_MAGIC[kind]):
                yield kind, raw


def _decode(data: Any) -> bytes:
    try:
        return base64.b64decode(str(data))
    except (binascii.Error, ValueError):
        return b""


def _text(kind: str, data: bytes) -> str:
    return data.decode() if kind == "image/svg+xml" else base64.b64encode(data).decode()


def _save(screen: CommandOutput, result: Result) -> None:
    directory = os.path.join(state_dir(os.environ), "images")
    try:
        make_private_directory(directory)
        for path in save_images(result, directory):
            screen.notice(f"picture: {path}")
        _remove_oldest(directory)
    except OSError as error:
        screen.notice(f"the picture cannot be saved in {directory}: {error.strerror}")


def _remove_oldest(directory: str) -> None:
    files = sorted((entry for entry in os.scandir(directory) if entry.is_file()), key=lambda each: each.stat().st_mtime)
    for entry in files[:-MAX_FILES]:
        os.unlink(entry.path)

"""Keeps what an eval shows within its bounds: shrinks images that are too large, and puts the whole ones into files."""

from __future__ import annotations

import os
import stat
import sys
import time
from _io import BytesIO

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

__builtins__ = SEALED

FILE = "application/vnd.replctl.file"
FOLDER = "replctl-images"
FILES = 50
FILES_BYTES = 100_000_000
FILE_BYTES = 25_000_000
SIDE = 16  # pixels that an image keeps at the least when it is made smaller
PIXELS = 25_000_000  # of an image that is encoded whole
_MODULE = type(sys)
_SUFFIX = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/latex": ".tex",
    "application/pdf": ".pdf",
}
_SHRUNK = {"image/png": "PNG", "image/jpeg": "JPEG"}
_PNG_MODES = {"1": "1", "L": "L", "LA": "LA", "La": "LA", "P": "P", "RGB": "RGB", "RGBA": "RGBA", "RGBa": "RGBA"}
_PNG_MODES.update({"PA": "RGBA", "I": "I;16", "I;16": "I;16", "F": "L"})
_BLENDED = {"P": "RGBA", "PA": "RGBA", "La": "LA", "RGBa": "RGBA", "1": "L", "F": "L"}
_BOX = 4  # PIL's Resampling.BOX: the mean of the pixels


class ImageBudget:
    """Makes the bundles of one eval.

    limit: what one form may have, in characters of the frame (base64 for bytes, JSON-escaped for text).
    room: what all of them together may have, so that the frame never becomes too long for the channel.
    """

    def __init__(self, limit: int, room: int) -> None:
        self._limit = limit
        self._room = room
        self._has_written = 0

    def data(self, mime: str, data: bytes) -> Dict[str, str]:
        """The bundle of an encoded image, or of anything else in bytes."""
        size = _base64_length(len(data))
        if size <= self._most():
            return self._take({mime: _base64(data)}, size)
        return self._bundle_with_file(mime, data, len(data), _open(data) if mime in _SHRUNK else None)

    def text(self, mime: str, text: str) -> Dict[str, str]:
        """The bundle of a form that is text: SVG, HTML, Markdown, LaTeX, JSON."""
        size = len(text)
        if size <= self._most():
            size = _escaped_length(text)
            if size <= self._most():
                return self._take({mime: text}, size)
        data = text.encode("utf-8", "backslashreplace") if size <= FILE_BYTES else b""
        return self._bundle_with_file(mime, data, size, None)

    def image(self, image: Any) -> Dict[str, str]:
        """The bundle of a PIL image."""
        if image.width * image.height <= PIXELS:
            data = encode(image)
            size = _base64_length(len(data))
            if size <= self._most():
                return self._take({"image/png": _base64(data)}, size)
            return self._bundle_with_file("image/png", data, len(data), image)
        return self._bundle_with_file("image/png", b"", image.width * image.height, image)

    def file(self, mime: str, data: bytes) -> Dict[str, str]:
        """The bundle of an image that is one too many: where its file is."""
        return self._bundle_with_file(mime, data, len(data), None)

    @property
    def is_full(self) -> bool:
        """Whether this eval has written as many files as the folder holds: one more would push out its own first."""
        return self._has_written >= FILES

    def _most(self) -> int:
        return min(self._limit, self._room)

    def _take(self, bundle: Dict[str, str], size: int) -> Dict[str, str]:
        self._room -= size
        return bundle

    def _bundle_with_file(self, mime: str, data: bytes, size: int, image: Any) -> Dict[str, str]:
        """A bundle of a note, of the file's path when it could be written, and of a small image when there is one."""
        bundle: Dict[str, str] = {}
        notes: List[str] = []
        small = _shrink(image, mime, self._most()) if image is not None else None
        if small is not None:
            smaller, (width, height) = small
            bundle[mime] = _base64(smaller)
            self._room -= len(bundle[mime])
            notes.append("image of %dx%d shown as %dx%d" % (image.width, image.height, width, height))
        path = None
        if data and len(data) <= FILE_BYTES and not self.is_full:
            try:
                path = store_file(data, _SUFFIX.get(mime, ".json" if mime.endswith("json") else ".bin"))
                self._has_written += 1
                bundle[FILE] = path
            except (OSError, ValueError) as exc:
                notes.append("%s not kept: %s" % (mime, exc))
        else:
            notes.append("%s of %d %s not kept" % (mime, size, "bytes" if data or image is None else "pixels"))
        if path is not None:
            notes.append("%s of %d bytes in %s" % ("the whole" if small else mime, len(data), path))
        bundle["text/plain"] = "; ".join(notes)
        return bundle


def encode(image: Any, mime: str = "image/png") -> bytes:
    """A PIL image as PNG, in the nearest mode that PNG has; or as JPEG when that is what it was."""
    mode = _PNG_MODES.get(image.mode, "RGB")
    if mode != image.mode:
        image = image.convert(mode)
    buffer = BytesIO()
    image.save(buffer, _SHRUNK[mime])
    return buffer.getvalue()


def pillow() -> Any:
    """The module PIL.Image when it has been imported already, else None."""
    module = sys.modules.get("PIL.Image")
    return module if type(module) is _MODULE and "Image" in module.__dict__ else None


def store_file(data: bytes, suffix: str) -> str:
    """Write `data` into a new file that only this user can read; its path. The oldest files make room for it."""
    folder = _folder()
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _make_room(handle, len(data))
        name = "%d-%d%s" % (time.time_ns(), os.getpid(), suffix)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=handle)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
        except BaseException:  # a full disk, or an interrupt: nothing by halves
            os.unlink(name, dir_fd=handle)
            raise
        finally:
            os.close(fd)
    finally:
        os.close(handle)
    return os.path.join(folder, name)


def _folder() -> str:
    """Our folder below TMPDIR. Where others may write too, what another user has put there is not taken."""
    parent = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    for name in (FOLDER, "%s-%d" % (FOLDER, os.geteuid())):
        path = os.path.join(parent, name)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
            return path
    raise OSError("no folder of ours in %s" % parent)


def _make_room(handle: int, size: int) -> None:
    """Remove the oldest files until one more of `size` bytes is within both bounds."""
    found: List[Tuple[int, int, str]] = []
    for name in os.listdir(handle):
        entry = os.lstat(name, dir_fd=handle)
        if stat.S_ISREG(entry.st_mode):
            found.append((entry.st_mtime_ns, entry.st_size, name))
    found.sort(reverse=True)
    total = size + sum(entry[1] for entry in found)
    while found and (len(found) >= FILES or total > FILES_BYTES):
        _, freed, name = found.pop()
        total -= freed
        try:
            os.unlink(name, dir_fd=handle)
        except FileNotFoundError:
            pass  # another session that shares the folder was first


def _open(data: bytes) -> Any:
    """The PIL image in `data`, not decoded yet; None without PIL, and for what it does not read."""
    module = pillow()
    if module is None:
        return None
    try:
        image = module.open(BytesIO(data))
        return image if image.width * image.height <= PIXELS * 4 else None
    except Exception:
        return None


def _shrink(image: Any, mime: str, limit: int) -> Optional[Tuple[bytes, Tuple[int, int]]]:
    """The image halved until it has at most `limit` base64 bytes, and its size; None when that leaves nothing."""
    if image.mode in ("I", "I;16"):
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    elif image.mode not in ("L", "LA", "RGB", "RGBA"):
        image = image.convert(_BLENDED.get(image.mode, "RGB"))
    while min(image.width, image.height) >= 2 * SIDE:
        image = image.resize((image.width // 2, image.height // 2), _BOX)
        if image.width * image.height <= PIXELS:
            data = encode(image, mime)
            if _base64_length(len(data)) <= limit:
                return data, (image.width, image.height)
    return None


def _base64_length(size: int) -> int:
    return (size + 2) // 3 * 4


def _base64(data: bytes) -> str:
    from binascii import b2a_base64

    return b2a_base64(data, newline=False).decode("ascii")


def _escaped_length(text: str) -> int:
    """Characters that `text` has in a frame."""
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        return len(text) * 6
    return len(encode_basestring_ascii(text)) - 2  # without the quotes

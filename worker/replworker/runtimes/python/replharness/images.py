"""Size limits of shown images: shrinks large ones and stores the originals in files."""

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
DIRECTORY = "replctl-images"
FILES = 50
FILES_BYTES = 100_000_000
FILE_BYTES = 25_000_000
SIDE = 16  # minimum side in pixels of a shrunk image
PIXELS = 25_000_000  # maximum of an image encoded at full size
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
    """Creates the bundles of one eval within its limits.

    limit: size of one form, in characters of the frame (base64 for bytes, JSON-escaped for text). room: size of all of
    them together, so that the frame fits the channel.
    """

    def __init__(self, limit: int, room: int) -> None:
        self._limit = limit
        self._room = room
        self._has_written = 0

    def data(self, mime: str, data: bytes) -> Dict[str, str]:
        """Return the bundle of an encoded image, or of other bytes."""
        size = _base64_length(len(data))
        if size <= self._most():
            return self._take({mime: _base64(data)}, size)
        return self._bundle_with_file(mime, data, len(data), _open(data) if mime in _SHRUNK else None)

    def text(self, mime: str, text: str) -> Dict[str, str]:
        """Return the bundle of a text form: SVG, HTML, Markdown, LaTeX, JSON."""
        size = len(text)
        if size <= self._most():
            size = _escaped_length(text)
            if size <= self._most():
                return self._take({mime: text}, size)
        data = text.encode("utf-8", "backslashreplace") if size <= FILE_BYTES else b""
        return self._bundle_with_file(mime, data, size, None)

    def image(self, image: Any) -> Dict[str, str]:
        """Return the bundle of a PIL image."""
        if image.width * image.height <= PIXELS:
            data = encode(image)
            size = _base64_length(len(data))
            if size <= self._most():
                return self._take({"image/png": _base64(data)}, size)
            return self._bundle_with_file("image/png", data, len(data), image)
        return self._bundle_with_file("image/png", b"", image.width * image.height, image)

    def file(self, mime: str, data: bytes) -> Dict[str, str]:
        """Return the bundle of a surplus image: the path of its file."""
        return self._bundle_with_file(mime, data, len(data), None)

    @property
    def is_full(self) -> bool:
        """Return whether this eval has filled the directory; one more file would delete its own first one."""
        return self._has_written >= FILES

    def _most(self) -> int:
        return min(self._limit, self._room)

    def _take(self, bundle: Dict[str, str], size: int) -> Dict[str, str]:
        self._room -= size
        return bundle

    def _bundle_with_file(self, mime: str, data: bytes, size: int, image: Any) -> Dict[str, str]:
        """Return a bundle with a note, the file's path if it was written, and a small image if available."""
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
    """Encode a PIL image as PNG in the nearest supported mode, or as JPEG if it was one."""
    mode = _PNG_MODES.get(image.mode, "RGB")
    if mode != image.mode:
        image = image.convert(mode)
    buffer = BytesIO()
    image.save(buffer, _SHRUNK[mime])
    return buffer.getvalue()


def pillow() -> Any:
    """Return the module PIL.Image if it is already imported, else None."""
    module = sys.modules.get("PIL.Image")
    return module if type(module) is _MODULE and "Image" in module.__dict__ else None


def store_file(data: bytes, suffix: str) -> str:
    """Write `data` to a new private file and return its path. Oldest files are deleted for space."""
    directory = _directory()
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _make_room(handle, len(data))
        name = "%d-%d%s" % (time.time_ns(), os.getpid(), suffix)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=handle)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
        except BaseException:  # full disk or interrupt: leave no partial file
            os.unlink(name, dir_fd=handle)
            raise
        finally:
            os.close(fd)
    finally:
        os.close(handle)
    return os.path.join(directory, name)


def _directory() -> str:
    """Return the image directory below TMPDIR; one owned by another user is not used."""
    parent = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    for name in (DIRECTORY, "%s-%d" % (DIRECTORY, os.geteuid())):
        path = os.path.join(parent, name)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
            return path
    raise OSError("cannot use a directory in %s" % parent)


def _make_room(handle: int, size: int) -> None:
    """Delete the oldest files until `size` more bytes fit both limits."""
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
            pass  # another session that shares the directory was first


def _open(data: bytes) -> Any:
    """Return the PIL image in `data`, not decoded yet; None without PIL or for unknown formats."""
    module = pillow()
    if module is None:
        return None
    try:
        image = module.open(BytesIO(data))
        return image if image.width * image.height <= PIXELS * 4 else None
    except Exception:
        return None


def _shrink(image: Any, mime: str, limit: int) -> Optional[Tuple[bytes, Tuple[int, int]]]:
    """Halve the image until it has at most `limit` base64 bytes; return it and its size, or None."""
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
    """Return the length of `text` in a frame."""
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        return len(text) * 6
    return len(encode_basestring_ascii(text)) - 2  # without the quotes

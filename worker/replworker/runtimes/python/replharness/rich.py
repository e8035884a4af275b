"""Rich forms of a value: the best one that the caller can display."""

from __future__ import annotations

import sys

from . import SEALED
from .bounds import MESSAGE_BYTES, cut, plain, type_name
from .figures import MatplotlibFigures, draw, format_of, is_figure
from .images import FILE_BYTES, ImageBudget, pillow
from .json_text import json_text
from .tables import compactly, library, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple

    from .bounds import HarnessLimits

__builtins__ = SEALED

WANTED = 32  # MIME types considered per eval
ROOM = 7 << 20  # characters of a frame of 8 MiB, minus room for other fields
_BUNDLED = 64  # entries considered of a _repr_mimebundle_
_ANY_IMAGE = ("image/png", "image/svg+xml", "image/jpeg")
_METHODS = {
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "image/svg+xml": "_repr_svg_",
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/pdf": "_repr_pdf_",
}
_BUNDLE = "_repr_mimebundle_"
_NAMES = (*_METHODS.values(), _BUNDLE)
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset))
# Read without running metaclass code.
_mro = type.__dict__["__mro__"].__get__
_names = type.__dict__["__dict__"].__get__


class RichValues:
    """Rich forms of one eval after another; created on first use."""

    def __init__(self, limits: HarnessLimits) -> None:
        self._limits = limits
        self._figures = MatplotlibFigures(_warn)
        self._wanted: Tuple[str, ...] = ()
        self._album = ImageBudget(0, 0)
        self._mime: Optional[Dict[str, str]] = None

    def begin(self, wanted: Any) -> None:
        """Begin an eval whose caller can display these MIME types, best first."""
        self._wanted = tuple(mime for mime in wanted[:WANTED] if type(mime) is str) if type(wanted) is list else ()
        self._mime = None
        self._figures.end()  # of an eval that had none
        self._album = ImageBudget(self._limits.image_bytes, self._room())
        forms = [form for form in map(format_of, self._wanted) if form is not None]
        if forms:
            _call_user_code(lambda: self._figures.begin(self._album, forms[0], self._limits.images), "figures")

    def text(self, value: Any) -> Any:
        """Return the object whose repr is shown: the value, or the compact text of a frame."""
        kind = type(value)
        package = None if kind in _PLAIN else library(_mro(kind))
        return value if package is None else _Text(table(value, package))

    def show(self, value: Any) -> None:
        """Find the value's best form, then show open figures."""
        figure = None
        if type(value) not in _PLAIN:
            kinds = _mro(type(value))
            if is_figure(kinds):
                figure = value
                self._mime = _call_user_code(lambda: self._figures.take_shown(figure), "a figure")
            if self._mime is None:
                self._mime = _call_user_code(lambda: self._best(value, kinds), "a rich form")
        _call_user_code(lambda: self._figures.collect(figure, self._mime is not None), "figures")

    def after_error(self) -> None:
        """Show the figures that an eval drew before it failed."""
        _call_user_code(self._figures.collect, "figures")

    def end(self, answer: Dict[str, Any]) -> None:
        """Add the rich forms to the answer, if any."""
        images, dropped = self._figures.end()
        if self._mime is not None and answer["outcome"] == "ok":
            answer["mime"] = self._mime
        if images:
            answer["images"] = images
        if dropped:
            answer["images-dropped"] = dropped
        self._wanted, self._mime = (), None

    def _room(self) -> int:
        limits = self._limits  # 6: a control character in a frame
        return ROOM - 6 * max(limits.value_bytes, limits.trace_bytes) - 2048 * limits.trace_frames

    def _best(self, value: Any, kinds: Tuple[type, ...]) -> Optional[Dict[str, str]]:
        forms = _Forms(value, kinds, self._album)
        if forms.none:
            return None
        of = " of a " + type_name(type(value))
        _call_user_code(forms.load, _BUNDLE + of)
        for wanted in self._wanted:
            for mime in forms.matching(wanted):
                bundle = _call_user_code(lambda: forms.bundle(mime), plain(mime) + of)  # noqa: B023 - called before the next
                if bundle is not None:
                    return bundle  # type: ignore[no-any-return]
        return None


def _call_user_code(body: Callable[[], Any], what: str) -> Any:
    """Return the result of user code; None, and a line on stderr, if it raises. NotImplementedError is silent."""
    try:
        return body()
    except (KeyboardInterrupt, NotImplementedError) as exc:
        if isinstance(exc, KeyboardInterrupt):
            raise
    except BaseException as exc:
        _warn(what + " could not be made", exc)
    return None


class _Text:
    """A text that is its own repr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Forms:
    """Forms of one value. Methods are looked up on its class, like special methods."""

    def __init__(self, value: Any, kinds: Tuple[type, ...], album: ImageBudget) -> None:
        self._value = value
        self._album = album
        self._names = [name for kind in kinds for name in _NAMES if name in _names(kind)]
        self._bundled: Dict[Any, Any] = {}
        self._figure = is_figure(kinds)
        module = pillow()
        self._image = module is not None and any(kind is module.Image for kind in kinds)
        self._table = library(kinds)
        self.none = not (self._names or self._figure or self._image or self._table)

    def load(self) -> None:
        """Request the bundle that the value may provide; raises whatever it raises."""
        method = self._method(_BUNDLE)
        if method is None:
            return
        found = _first(method(include=None, exclude=None))
        if isinstance(found, dict):
            self._bundled = dict(dict.items(found))  # methods of a subclass are ignored
        elif found is not None:
            raise TypeError("neither a dict nor None but %s" % type_name(type(found)))

    def matching(self, wanted: str) -> Tuple[str, ...]:
        """Return the exact types that match a requested one."""
        if wanted != "image/*":
            return (wanted,)
        more = [mime for mime in list(self._bundled)[:_BUNDLED] if type(mime) is str and mime[:6] == "image/"]
        return (*_ANY_IMAGE, *(mime for mime in more if mime not in _ANY_IMAGE))

    def bundle(self, mime: str) -> Optional[Dict[str, str]]:
        """Return the value in a form, or None; raises whatever its methods raise."""
        if self._image and mime == "image/png":
            return self._album.image(self._value)
        data = self._data(mime)
        if data is None:
            return None
        if mime == "application/json" or mime.endswith("+json"):
            return self._album.text(mime, json_text(data, FILE_BYTES))
        if isinstance(data, str):
            text = plain(data)
            if mime[:6] == "image/" and mime != "image/svg+xml":  # base64 already
                from binascii import a2b_base64

                return self._album.data(mime, a2b_base64(text))
            return self._album.text(mime, text) if text else None
        if isinstance(data, (bytes, bytearray, memoryview)):
            raw = memoryview(data).tobytes()
            if mime[:5] == "text/" or mime == "image/svg+xml":
                return self._album.text(mime, raw.decode("utf-8", "backslashreplace"))
            return self._album.data(mime, raw) if raw else None
        raise TypeError("neither text nor bytes but %s" % type_name(type(data)))

    def _data(self, mime: str) -> Any:
        value = self._value
        if self._figure:
            form = format_of(mime)
            return None if form is None else draw(value, form)
        bundled = self._bundled.get(mime)
        method = self._method(_METHODS.get(mime, "")) if bundled is None else None
        if method is None:
            return bundled
        return _first(compactly(method) if self._table == "pandas" else method())

    def _method(self, name: str) -> Any:
        """Return a method of the value's class, or None."""
        return getattr(self._value, name) if name in self._names else None


def _first(found: Any) -> Any:
    """Drop the metadata that may accompany a form."""
    return found[0] if type(found) is tuple and len(found) == 2 else found


def _warn(what: str, exc: BaseException) -> None:
    """Write a line to stderr. Formatting the exception runs user code too."""
    try:
        says = str(exc)
    except KeyboardInterrupt:
        raise
    except BaseException:
        says = ""
    line = cut(" ".join(("%s: %s: %s" % (what, type_name(type(exc)), says)).split()), MESSAGE_BYTES)[0]
    try:
        sys.stderr.write(line + "\n")
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass  # the user has replaced the stream

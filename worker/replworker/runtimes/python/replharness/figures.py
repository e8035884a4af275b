"""Figures of matplotlib, drawn by an eval and shown with its result."""

from __future__ import annotations

import sys
from _io import BytesIO
from _thread import get_ident

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .images import ImageBudget

__builtins__ = SEALED

_MODULE = type(sys)
_PYPLOT = "matplotlib.pyplot"
_FORMATS = {"image/png": "png", "image/svg+xml": "svg", "image/jpeg": "jpeg", "application/pdf": "pdf"}
# matplotlib attributes warnings to its caller, which must not be a file of the harness.
_SAVE = compile("figure.savefig(buffer, format=format, bbox_inches='tight')", "<figure>", "eval", dont_inherit=True)


def pyplot() -> Any:
    """Return matplotlib.pyplot if it is already imported, else None."""
    module = sys.modules.get(_PYPLOT)
    return module if type(module) is _MODULE and "close" in module.__dict__ else None


def is_figure(kinds: Tuple[type, ...]) -> bool:
    """Return whether one of these classes is matplotlib's Figure."""
    module = sys.modules.get("matplotlib.figure")
    return type(module) is _MODULE and any(kind is module.__dict__.get("Figure") for kind in kinds)


def format_of(mime: str) -> Optional[str]:
    """Return the file format of a figure for a MIME type or pattern."""
    return "image/png" if mime == "image/*" else mime if mime in _FORMATS else None


def draw(figure: Any, mime: str) -> bytes:
    """Render the figure in a format; raises whatever matplotlib raises."""
    buffer = BytesIO()
    eval(_SAVE, {"figure": figure, "buffer": buffer, "format": _FORMATS[mime], "__builtins__": SEALED})
    return buffer.getvalue()


class MatplotlibFigures:
    """Collects the figures that evals draw with pyplot.

    `plt.show()` shows and closes the open figures, like a window that the user closes; later plots start a new figure.
    To that end FigureManagerBase.show is replaced when pyplot is imported: the one method that all backends without
    windows leave alone, and that would otherwise warn that nothing can be shown. The backend stays agg, by name too,
    because child processes would inherit another name.
    """

    def __init__(self, warn: Callable[[str, BaseException], None]) -> None:
        self._warn = warn
        self._main = get_ident()
        self._finder = _Finder(self)
        self._forget()

    def _forget(self) -> None:
        self._album: Optional[ImageBudget] = None
        self._mime, self._limit, self._dropped = "", 0, 0
        self._before: Dict[int, Any] = {}
        self._shown: List[Tuple[Any, Dict[str, str]]] = []

    def begin(self, album: ImageBudget, mime: str, limit: int) -> None:
        """Begin an eval that accepts figures as `mime`; `limit` of them as images, the rest as files."""
        self._album, self._mime, self._limit = album, mime, limit
        if pyplot() is None:
            if not any(finder is self._finder for finder in sys.meta_path):
                sys.meta_path.insert(0, self._finder)
            return
        self.install()
        for manager in _managers():
            figure = manager.canvas.figure
            figure.stale = False  # set again by any drawing
            self._before[id(figure)] = figure

    def install(self) -> None:
        """Replace `show` of figures without a window, once per imported matplotlib."""
        base = sys.modules["matplotlib.backend_bases"].__dict__["FigureManagerBase"]
        if getattr(base.show, "collects", None) is self:
            return

        def show(manager: Any) -> None:
            """Show the figure with the result of the eval."""
            if self._album is not None and get_ident() == self._main:
                self._show(manager.canvas.figure)

        show.__dict__["collects"] = self
        base.show = show

    def take_shown(self, figure: Any) -> Optional[Dict[str, str]]:
        """Remove and return the bundle of a figure already shown and unchanged since."""
        for at, (shown, bundle) in enumerate(self._shown):
            if shown is figure and not figure.stale:
                del self._shown[at]
                return bundle
        return None

    def collect(self, value: Any = None, shown: bool = False) -> None:
        """Show and close open figures, except a `value` already shown as the eval's result."""
        if pyplot() is None or self._album is None:
            return
        for manager in _managers():
            figure = manager.canvas.figure
            if figure is value:
                if shown:
                    _close(figure)
            elif figure.stale or id(figure) not in self._before:
                self._show(figure)

    def end(self) -> Tuple[List[Dict[str, str]], int]:
        """Return the bundles shown and the number of further figures, and reset."""
        answer = [bundle for _, bundle in self._shown], self._dropped
        self._forget()
        return answer

    def _show(self, figure: Any) -> None:
        album = self._album
        if album is None or len(figure.get_children()) <= 1:  # only its background: nothing has been drawn yet
            return
        try:
            if len(self._shown) < self._limit:
                self._shown.append((figure, _bundle(album, figure, self._mime)))
            elif not album.is_full:
                self._shown.append((figure, album.file(self._mime, draw(figure, self._mime))))
            else:
                self._dropped += 1
        except KeyboardInterrupt:
            raise
        except BaseException as exc:
            self._warn("a figure could not be rendered", exc)
            return
        _close(figure)
        figure.stale = False  # saving changes the figure's colours temporarily, which counts as a change


class _Finder:
    """Import hook that waits for pyplot; finds nothing itself."""

    def __init__(self, figures: MatplotlibFigures) -> None:
        self._figures = figures

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        if name == _PYPLOT:
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            try:
                import matplotlib.backend_bases  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401

                self._figures.install()
            except Exception:
                pass  # pyplot needs it too and reports the error


def _bundle(album: ImageBudget, figure: Any, mime: str) -> Dict[str, str]:
    data = draw(figure, mime)
    return album.text(mime, data.decode("utf-8")) if mime == "image/svg+xml" else album.data(mime, data)


def _managers() -> List[Any]:
    return list(sys.modules["matplotlib._pylab_helpers"].__dict__["Gcf"].get_all_fig_managers())


def _close(figure: Any) -> None:
    module = pyplot()
    if module is not None:
        module.close(figure)

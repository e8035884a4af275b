"""Data frames of pandas and polars as small tables."""

from __future__ import annotations

import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Tuple

__builtins__ = SEALED

ROWS = 20
COLUMNS = 12
CELL_CHARS = 50
_MODULE = type(sys)
# Option, pandas' default, replacement. User settings take precedence.
_COMPACT = (
    ("display.max_rows", 60, ROWS),
    ("display.min_rows", 10, ROWS),
    ("display.show_dimensions", "truncate", True),
)


def library(kinds: Tuple[type, ...]) -> Optional[str]:
    """Return "pandas" or "polars" if one of these classes is its DataFrame or Series."""
    for package in ("pandas", "polars"):
        module = sys.modules.get(package)
        if type(module) is _MODULE:
            for name in ("DataFrame", "Series"):
                wanted = module.__dict__.get(name)
                if any(kind is wanted for kind in kinds):
                    return package
    return None


def compactly(body: Callable[[], Any]) -> Any:
    """Run `body` with pandas limited to 20 rows and always showing the shape."""
    pandas = sys.modules["pandas"]
    options: List[Any] = []
    for name, default, ours in _COMPACT:
        if pandas.get_option(name) == default:
            options += [name, ours]
    if not options:
        return body()
    with pandas.option_context(*options):
        return body()


def markdown(value: Any, package: str) -> str:
    """Return a Markdown table of at most 20 rows and 12 columns, and a line with the shape."""
    shape = value.shape
    frame = value.to_frame() if len(shape) == 1 else value
    height, width = frame.shape
    names, take = (_pandas if package == "pandas" else _polars)(frame, _ends(width, COLUMNS))
    gap = width > COLUMNS
    lines = [_line(names, gap), _line(["---"] * len(names), gap, "---")]
    if height <= ROWS:
        lines += [_line(row, gap) for row in take(0, height)]
    else:
        half = ROWS // 2
        lines += [_line(row, gap) for row in take(0, half)]
        lines.append(_line(["…"] * len(names), gap))
        lines += [_line(row, gap) for row in take(height - half, height)]
    lines += ["", " × ".join("%d %s" % pair for pair in zip(shape, ("rows", "columns")))]  # noqa: B905 - 3.8
    return "\n".join(lines)


def _ends(size: int, limit: int) -> List[int]:
    if size <= limit:
        return list(range(size))
    return [*range(limit // 2), *range(size - limit // 2, size)]


def _pandas(frame: Any, columns: List[int]) -> Tuple[List[Any], Callable[[int, int], Any]]:
    frame = frame.iloc[:, columns]
    return ["", *frame.columns], lambda start, end: frame.iloc[start:end].itertuples(index=True, name=None)


def _polars(frame: Any, columns: List[int]) -> Tuple[List[Any], Callable[[int, int], Any]]:
    names = frame.columns
    frame = frame.select([names[at] for at in columns])
    return list(frame.columns), lambda start, end: frame.slice(start, end - start).rows()


def _line(cells: Any, gap: bool, mark: str = "…") -> str:
    texts = [_cell(cell) for cell in cells]
    if gap:
        texts.insert(len(texts) - COLUMNS // 2, mark)
    return "| " + " | ".join(texts) + " |"


def _cell(value: Any) -> str:
    text = "%.6g" % value if isinstance(value, float) else str(value)
    if len(text) > CELL_CHARS:
        text = text[: CELL_CHARS - 1] + "…"
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", " ")

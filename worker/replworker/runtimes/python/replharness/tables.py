"""Data frames of pandas and polars in their own text form: few rows, the outer columns, and a note where it rounds."""

from __future__ import annotations

import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, List, Optional, Tuple

__builtins__ = SEALED

ROWS = 20  # more than these are shown as the first and last five
COLUMNS = 12
_LINE = 1000  # characters; wider lines would be folded into blocks of columns
_ENDS = 5
_MODULE = type(sys)
ROUNDED = "[floats are rounded here]"
# Option, pandas' default, replacement. User settings take precedence.
_PANDAS = (
    ("display.max_rows", 60, ROWS),
    ("display.max_columns", 20, COLUMNS),
    ("display.max_columns", 0, COLUMNS),
    ("display.width", 80, _LINE),
)
# Environment variable of the option, argument of polars.Config, value.
_POLARS = (
    ("POLARS_FMT_TABLE_FORMATTING", "tbl_formatting", "NOTHING"),
    ("POLARS_FMT_TABLE_HIDE_COLUMN_SEPARATOR", "tbl_hide_dtype_separator", True),
    ("POLARS_FMT_MAX_COLS", "tbl_cols", COLUMNS),
    ("POLARS_TABLE_WIDTH", "tbl_width_chars", _LINE),
    ("POLARS_FMT_STR_LEN", "fmt_str_lengths", 50),
    ("POLARS_FMT_TABLE_CELL_NUMERIC_ALIGNMENT", "tbl_cell_numeric_alignment", "RIGHT"),
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
    """Run `body` with pandas limited to few rows, and to as many columns as a line shows."""
    pandas = sys.modules["pandas"]
    options: List[Any] = []
    for name, default, ours in _PANDAS:
        if pandas.get_option(name) == default:
            options += [name, ours]
    if not options:
        return body()
    with pandas.option_context(*options):
        return body()


def table(value: Any, package: str) -> str:
    """Return the text of a frame or series as its library prints it, and a line if it shows floats rounded."""
    text: str
    if package == "polars":
        text = _polars(value)
        return text if _is_exact(text, value, package) else text + "\n" + ROUNDED
    text = compactly(lambda: repr(value))
    if _is_exact(text, value, package) or sys.modules["pandas"].get_option("display.float_format") is not None:
        return text  # the user's format is what the user wants
    with sys.modules["pandas"].option_context("display.float_format", "{:.12g}".format):
        longer: str = compactly(lambda: repr(value))
    return longer if _is_exact(longer, value, package) else text + "\n" + ROUNDED


def _is_exact(text: str, value: Any, package: str) -> bool:
    """Return whether each float of the rows and columns shown is in the text as it is."""
    if "." not in text:
        return True
    shown = set()
    for word in text.split():
        try:
            shown.add(float(word.rstrip("…")))
        except ValueError:
            pass
    return all(each in shown for each in _floats(value, package))


def _polars(value: Any) -> str:
    from os import environ

    options = {name: wanted for variable, name, wanted in _POLARS if variable not in environ}
    if sys.modules["polars"].Config.state(if_set=True, env_only=False).get("set_fmt_float") == "mixed":
        options["fmt_float"] = "full"
    with sys.modules["polars"].Config(**options):
        return "\n".join(line.rstrip() for line in repr(value).split("\n"))


def _floats(value: Any, package: str) -> Iterator[float]:
    """Yield the finite floats of the rows and columns shown."""
    frame = value.to_frame() if len(value.shape) == 1 else value
    height, width = frame.shape
    columns = _ends(width, COLUMNS, COLUMNS // 2)
    rows = _ends(height, ROWS if package == "pandas" else 2 * _ENDS, _ENDS)
    if package == "pandas":
        some = frame.iloc[rows, columns].itertuples(index=True, name=None)
    else:
        some = (frame.row(at) for at in rows)
    for row in some:
        for cell in row if package == "pandas" else [row[at] for at in columns]:
            if isinstance(cell, float) and cell - cell == 0:
                yield float(cell)


def _ends(size: int, limit: int, end: int) -> List[int]:
    if size <= limit:
        return list(range(size))
    return [*range(end), *range(size - end, size)]

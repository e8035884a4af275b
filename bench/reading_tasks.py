"""Tasks of an agent: the same text and code for every server, the calls fixed beforehand, and what must be told.

Each step is an abstract call, which `reading_servers` makes in each server's own words. A task is solved if all of its
`facts` stand in its answers; it is told truly if none of its `falsehoods` does.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["run", "loop", "ask", "answer", "search", "stop", "reset"]


class Step(NamedTuple):
    """One call.

    Attributes:
        kind: `run` code to its end; `loop`: code that never ends, left after a second; `ask`: code that calls
            `input()`; `answer` it; `search` the last output; `stop` what runs, or `reset` the session, then run code.
        text: The code, the answer or the text to search.
        session: One of two sessions.
        runtime: Runtime of the code.
    """

    kind: Kind
    text: str = ""
    session: str = "a"
    runtime: str = "python"


class Task(NamedTuple):
    """A task, its calls, and what its answers must and must not say (regular expressions)."""

    name: str
    steps: tuple[Step, ...]
    facts: tuple[str, ...]
    falsehoods: tuple[str, ...] = ()
    pictures: int = 0


def run(text: str, session: str = "a", runtime: str = "python") -> Step:
    """Return a step that runs code to its end."""
    return Step("run", text, session, runtime)


_REGIONS = ("north", "south", "east", "west")
SALES = "\n".join(["day,region,amount", *(f"{n % 30 + 1},{_REGIONS[n % 4]},{n * 3.25}" for n in range(500))])
_FLOOD = "for n in range(50_000):\n    print(n, 'NEEDLE 31415' if n == 25_000 else 'x' * 93)\n"
_LONG = (
    "import time\n"
    "for n in range(4):\n    print('step', n, flush=True)\n    time.sleep(0.6)\n\n"
    "print('sum', sum(range(100)))\n"
)
_MODULE = (
    "from pathlib import Path\n"
    "Path('helper.py').write_text('def rate():\\n    return 1\\n')\n"
    "import helper\nhelper.rate()"
)
_EDIT = (
    "Path('helper.py').write_text('def rate():\\n    return 22\\n')\n"
    "import importlib\nimportlib.reload(helper)\nhelper.rate()"
)
_THREAD = (
    "import threading, time\n"
    "def late():\n    time.sleep(0.4)\n    print('late', 6 * 7, flush=True)\n\n"
    "threading.Thread(target=late).start()"
)
_WIDE = "pd.DataFrame({f'col{n}': range(200) for n in range(60)})"

TASKS = (
    Task("load a table", (run("import pandas as pd\ndf = pd.read_csv('sales.csv')\ndf.shape"),), (r"\(500, 3\)",)),
    Task("explore it", (run("df.groupby('region').amount.agg(['count', 'sum'])"),), ("north", r"101156\.25")),
    Task(
        "exact numbers",
        (run("pd.DataFrame({'price': [1234567.891, 771832.59]}, index=pd.Index(['x', 'y'], name='sku'))"),),
        ("1234567.891", "771832.59", "sku", "price"),
        (r"1\.23457e\+06",),
    ),
    Task("a wrong column", (run("df['amuont'].sum()"),), ("KeyError", "amuont")),
    Task(
        "a plot",
        (run("import matplotlib.pyplot as plt\nplt.plot(df.amount)\nplt.show()"),),
        (),
        pictures=1,
    ),
    Task("a long job", (run(_LONG),), ("sum 4950",)),
    Task("resume", (run("round(df.amount.sum(), 2)"),), (r"405437\.5",)),
    Task("a wrong name", (run("dff.head()"),), ("NameError", "dff")),
    Task("a missing package", (run("import polarz"),), ("ModuleNotFoundError", "polarz")),
    Task("5 MB of output", (run(_FLOOD), Step("search", "NEEDLE")), ("NEEDLE 31415",)),
    Task("a long list", (run("[n ** 2 for n in range(2000)]"),), (r"0,\s*1,\s*4,\s*9,\s*16",)),
    Task("200 lines", (run("for n in range(200): print(n, 'y' * 60)\n"),), (r"(?m)^0 yyy", r"(?m)^199 yyy")),
    Task(
        "a progress bar",
        (run("for n in range(101): print('\\r', n, '%', '#' * (n // 4), end='')\n\nprint()"),),
        ("100 %",),
    ),
    Task("input()", (Step("ask", "name = input('name? ')\nname.upper()"), Step("answer", "ada")), (r"name\?", "ADA")),
    Task("a module that is edited", (run(_MODULE), run(_EDIT)), (r"(?m)^1\b", r"(?m)^22\b")),
    Task("output of a thread", (run(_THREAD), run("import time; time.sleep(0.6)")), ("late 42",)),
    Task(
        "a deep traceback",
        (run("pd.DataFrame({'a': [1]}).merge(pd.DataFrame({'b': [1]}), on='a')"),),
        ("KeyError: 'a'",),
    ),
    Task("a wide frame", (run(_WIDE),), ("col0", "col59", r"\[200 rows x 60 columns\]")),
    Task("unicode", (run("print('żółć 漢字 🙂')\n'naïve'"),), ("żółć 漢字 🙂", "naïve")),
    Task("no memory", (run("bytearray(1 << 40)"),), ("MemoryError",)),
    Task(
        "no network",
        (run("import urllib.request\nurllib.request.urlopen('http://files.invalid/data.csv')"),),
        ("URLError", "name resolution|not known|No address"),
    ),
    Task(
        "a runaway loop",
        (Step("loop", "kept = 5\nwhile True: pass"), Step("stop", "kept * 2")),
        (r"(?m)^10\b",),
    ),
    Task(
        "two sessions",
        (run("who = 'first'", "a"), run("who = 'second'", "b"), run("who", "a"), run("who", "b")),
        ("'first'", "'second'"),
    ),
    Task(
        "bash",
        (run("echo $((6 * 7)); ls /nothing-here; exit 3", "sh", "bash"), run("echo still", "sh", "bash")),
        ("42", "3", "still"),
    ),
    Task("node", (run("[1, 2, 3].map(x => x * x)", "js", "node"),), (r"1, 4, 9",)),
    Task(
        "a crash",
        (run("import ctypes\nctypes.string_at(0)"), run("df.shape")),
        ("(?i)segmentation|SIGSEGV|signal 11|died|exited|crash|lost|session ended", "NameError"),
    ),
    Task("a fresh start", (Step("reset", "6 * 7"),), (r"(?m)^42\b",)),
)


def is_true(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether every pattern is in the text."""
    return all(re.search(pattern, text) for pattern in patterns)

"""The documentation says what the code does: tables are fresh, every word is explained, links and examples hold."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from replctl import Client, ReplError
from replctl.main import COMMANDS
from replwire.faults import FAULTS, STATUSES
from replwire.limits import limit_rows
from replwire.link import FrameKind
from replwire.ops import OPS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "bench").glob("*.md")])
_FENCE = re.compile(r"^```.*?^```$", re.S | re.M)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)
_PRINTS = re.compile(r"# -> (.*)$", re.M)
_MADE_LATER = {
    ROOT / "bench" / "README.md",
    DOCS / "decisions",
}  # written when the bench has run, decision by decision, and with the runtime that they are about
_EXAMPLES = [
    pytest.param(page, code, id=f"{page.stem}-{at}")
    for page in (ROOT / "README.md", DOCS / "python.md", DOCS / "embedding.md")
    for at, code in enumerate(_EXAMPLE.findall(page.read_text(encoding="utf-8")), 1)
]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _section(text: str, head: str) -> str:
    """From a heading to the next one of its rank."""
    return text.split(f"\n## {head}\n")[1].split("\n## ")[0]


def _anchors(page: Path) -> set[str]:
    """Return the anchors of this page, as the usual renderers make them from headings."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_tables_are_fresh(generate: ModuleType) -> None:
    assert [page.name for page in generate.stale_pages()] == [], "run: python -m docs.generate"
    assert generate.unused_blocks() == set()


def test_every_operation_has_its_section() -> None:
    heads = re.findall(r"^### (.*)$", _text("docs/protocol.md"), re.M)
    assert heads == list(OPS)


def test_every_limit_says_what_its_meeting_is_like() -> None:
    result = _section(_text("docs/limits.md"), "What you are told")
    assert [bound.name for bound in limit_rows() if f"`{bound.name}`" not in result] == []


def test_every_fault_says_what_to_do() -> None:
    result = _section(_text("docs/faults.md"), "What to do")
    assert re.findall(r"^\| `([a-z-]+)` \|", result, re.M) == list(FAULTS)
    assert [word for word in STATUSES if f"| `{word}` |" not in _text("docs/faults.md")] == []


def test_every_kind_of_frame_is_explained() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", _text("docs/protocol.md"), re.M) == [kind.name for kind in FrameKind]


def test_every_command_is_in_the_table() -> None:
    results = re.findall(r"^\| `([a-z-]+)[^`]*` \|", _section(_text("docs/cli.md"), "Commands"), re.M)
    assert sorted(results) == sorted(COMMANDS)


def test_the_walk_names_files_and_functions_that_exist() -> None:
    walk = _section(_text("docs/concepts.md"), "One eval, walked through the code")
    sources = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("*/repl*/**/*.py")}
    everything = "\n".join(sources.values())
    for word in re.findall(r"`([^`\s]+)`", walk):
        if word.endswith(".py"):
            assert any(path.as_posix().endswith("/" + word) for path in sources), word
        elif re.fullmatch(r"[A-Z]?[a-z]*(\.?_?[a-z]+)+", word) and ("." in word or "_" in word):
            name = word.rpartition(".")[2]
            assert re.search(rf"\b(def|class) {name}\b|\b{name} = |\b{name}:", everything), word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists() or target in _MADE_LATER, link
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_names_a_place_of_one_machine(page: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:work|root|venv|home|tmp/venv)\b[^\s`]*", page.read_text(encoding="utf-8")) == []


@pytest.fixture
def state_dir() -> Iterator[str]:
    """A state directory with a path that is short enough for a socket; its broker is ended afterwards."""
    directory = tempfile.mkdtemp(prefix="rdoc-", dir="/tmp")
    try:
        yield directory
        try:
            with Client(f"ipc://{directory}/run/broker.sock", start=False) as client:
                client.shutdown()
                assert client.wait_for_shutdown(15)
        except ReplError as error:
            assert error.code == "no-broker", error  # noqa: PT017 - no example has run
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize(("page", "code"), _EXAMPLES)
def test_python_examples_print_what_they_say(page: Path, code: str, state_dir: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("REPLCTL_")}
    parts = [str(ROOT / part) for part in ("wire", "worker", "broker", "cli")]
    env |= {"REPLCTL_STATE_DIR": state_dir, "PYTHONPATH": os.pathsep.join(parts)}
    # The file of the user who runs this must not choose the endpoint.
    env["XDG_CONFIG_HOME"] = state_dir
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=state_dir, capture_output=True, text=True, timeout=90
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == _PRINTS.findall(code), page.name

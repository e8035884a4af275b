"""Links in the pages of docs/ work on the site as well: hooks without MkDocs, which `make site` alone installs."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_to_pages_outside_docs_lead_to_their_place_on_the_site(hooks: ModuleType) -> None:
    assert hooks.rewrite_links("[a](../SECURITY.md#x)", "cli.md") == "[a](project/security-policy.md#x)"
    assert hooks.rewrite_links("[a](docs/limits.md)", "project/changelog.md") == "[a](../limits.md)"
    assert hooks.rewrite_links("[a](../README.md)", "cli.md") == "[a](index.md)"
    assert hooks.rewrite_links("[a](decisions/)", "cli.md") == "[a](decisions/README.md)"


def test_links_to_source_files_become_their_paths(hooks: ModuleType) -> None:
    assert hooks.rewrite_links("[a](../wire/replwire/faults.py)", "faults.md") == "a (`wire/replwire/faults.py`)"
    assert hooks.rewrite_links("[`faults.py`](../wire/replwire/faults.py)", "faults.md") == "`faults.py`"


def test_code_blocks_and_addresses_stay_as_they_are(hooks: ModuleType) -> None:
    for text in ("```\n[a](../SECURITY.md)\n```", "[a](https://example.org/x)", "[a](#x)"):
        assert hooks.rewrite_links(text, "cli.md") == text


def test_every_page_but_decisions_is_in_the_navigation_or_added_by_a_hook(hooks: ModuleType) -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/-]+\.md$", text.partition("\nnav:")[2], re.M))
    assert listed == {page for page in PAGES if not page.startswith("decisions/")} | set(hooks.OUTSIDE.values())


@pytest.mark.parametrize("page", PAGES)
def test_rewritten_links_lead_to_pages_of_the_site(page: str, hooks: ModuleType) -> None:
    site = {*PAGES, *hooks.OUTSIDE.values()}
    text = hooks.rewrite_links((ROOT / "docs" / page).read_text(encoding="utf-8"), page)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for link in re.findall(r"\[[^\]]*\]\(([^)\s#]+)", prose):
        assert "://" in link or posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) in site, link

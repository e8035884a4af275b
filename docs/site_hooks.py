"""MkDocs hooks for the site of docs/: links that also work in the repository, pages from outside docs/, the navigation.

Pages link to each other, to files of the repository and to some pages in its root, as they must to work in the
repository. The site has the pages; a link to any other file becomes the file's path as code.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Pages outside docs/ that are part of the site, with their place there.
OUTSIDE = {
    "SECURITY.md": "project/security-policy.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "bench/README.md": "project/benchmarks.md",
}
_HOME = "README.md"  # the repository's front page; the site's is index.md
_FENCE = re.compile(r"(^```.*?^```$)", re.S | re.M)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_IMAGE_TYPES = (".png", ".svg", ".jpg")


def slug(text: str, separator: str = "-") -> str:
    """Return the anchor of a heading, as repository hosts and tests/project build it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def source_of(page: str) -> str:
    """Return the repository path of a page of the site."""
    return next((source for source, place in OUTSIDE.items() if place == page), f"docs/{page}")


def place_of(source: str) -> str | None:
    """Return the page of the site for a path of the repository, or None if the site does not have it."""
    if source == _HOME:
        return "index.md"
    if source in OUTSIDE:
        return OUTSIDE[source]
    if (ROOT / source).is_dir() and (ROOT / source / "README.md").exists():
        source += "/README.md"
    return source.removeprefix("docs/") if source.startswith("docs/") and source.endswith(".md") else None


def rewrite_links(markdown: str, page: str) -> str:
    """Return the text of a page with its relative links adapted to the site.

    Args:
        markdown: Text of the page as it is in the repository.
        page: Path of the page within the site.
    """
    source = source_of(page)

    def adapt(match: re.Match[str]) -> str:
        text, (path, _, anchor) = match[1], match[2].partition("#")
        if "://" in path or not path or path.endswith(_IMAGE_TYPES):
            return match[0]
        target = os.path.normpath(os.path.join(os.path.dirname(source), path))
        place = place_of(target)
        if place is None:
            return text if target in text.strip("`") or "`" in text else f"{text} (`{target}`)"
        return f"[{text}]({os.path.relpath(place, os.path.dirname(page) or '.')}{'#' if anchor else ''}{anchor})"

    parts = _FENCE.split(markdown)  # every second part is a code block
    return "".join(part if at % 2 else _LINK.sub(adapt, part) for at, part in enumerate(parts))


def on_config(config: Any) -> Any:
    """Set the anchors, and list every decision in the navigation."""
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slug}
    decisions = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    config.nav.append({"Decisions": ["decisions/README.md", *(f"decisions/{name}" for name in decisions)]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside docs/."""
    from mkdocs.structure.files import File

    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt a page's links."""
    return rewrite_links(markdown, page.file.src_uri)

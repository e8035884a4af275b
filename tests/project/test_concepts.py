"""Names on the pages exist: terms in the code, commands with their options, settings, files and identifiers."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from replctl.main import COMMANDS, cli
from replwire.config import list_settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions")]
_TERM = re.compile(r"^\| \*\*(?P<term>[^*]+)\*\* \| `(?P<name>\w+)` \| ", re.M)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCE = re.compile(r"^```(?:console|sh|bash|text)?\n(.*?)^```$", re.S | re.M)
_COMMAND = re.compile(
    r"(?:^|[|;&(]|[$#] |bin/|sudo |=\S* )\s*replctl( (?!shout)[a-z-][^|;&)#`]*)"
)  # `shout` is an extension's example
_SETTING = re.compile(r"(?<![\w./-])(?P<section>[a-z]+)\.(?P<key>[a-z]+(?:-[a-z]+)+)(?![\w/.-]*\()")
_MEMBER = re.compile(r"_?[A-Z][a-z]+(?:[A-Z][a-z]+)+(?:\.\w+)?")
_METHOD = re.compile(r"`(?P<cls>_?[A-Z]\w+)\.(?P<member>\w+)`")
_IN_FILE = re.compile(r"`(?P<file>[\w/]+\.py)` `(?P<name>\w+)(?:\.(?P<member>\w+))?`")

_OF_SYSTEMD = {
    word for path in (ROOT / "deploy").rglob("*.service") for word in re.findall(r"\b[A-Z]\w+", path.read_text("utf-8"))
}


def ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def sources() -> str:
    """Return all code of the packages."""
    return "\n".join(
        path.read_text(encoding="utf-8")
        for package in ("wire", "worker", "broker", "cli")
        for path in sorted((ROOT / package).rglob("*"))
        if path.suffix in (".py", ".mjs", ".sh")
    )


@cache
def definitions() -> dict[str, dict[str, set[str]]]:
    """Return, for each file, its classes with their members, and its functions."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in (each for part in ("wire", "worker", "broker", "cli") for each in (ROOT / part).rglob("*.py")):
        names = found[path.relative_to(ROOT).as_posix()] = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                names[node.name] = {
                    getattr(each, "name", None) or getattr(getattr(each, "target", None), "id", "")
                    for each in node.body
                }
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names[node.name] = set()
    return found


def code_of(page: Path) -> Iterator[str]:
    """Yield the code spans and the lines of shell blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for block in _FENCE.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    yield from _SPAN.findall(re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))


def test_each_term_is_found_in_the_code_by_its_name() -> None:
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    table = text.partition("## Terms")[2].partition("\n## ")[0]
    terms = _TERM.findall(table)
    assert len(terms) == table.count("\n| **") > 30
    assert [name for _, name in terms if not re.search(rf"\b{name}\b", sources())] == []


def _check_command(words: list[str]) -> Iterator[str]:
    """Yield what a command line names that does not exist: a command, a subcommand, an option."""
    command: click.Command = cli
    for at, word in enumerate(words):
        if word.startswith("-") and word.strip("-"):
            option = word.partition("=")[0]
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
            known |= {name for each in cli.params for name in (*each.opts, *each.secondary_opts)}
            if option not in known and not (re.fullmatch(r"-[a-z]\w+", option) and option[:2] in known):
                yield f"{command.name} {option}"
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            if at and words[at - 1].startswith("-"):
                continue  # an option's value
            found = command.get_command(click.Context(command), word)
            if found is None:
                yield f"{command.name} {word}"
                return
            command = found
        if word == "--":
            return


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_each_command_on_a_page_exists_with_its_options(page: Path) -> None:
    unknown = []
    for line in code_of(page):
        for rest in _COMMAND.findall(line):
            try:
                words = shlex.split(rest)
            except ValueError:  # a quotation that goes on in the next line
                words = rest.split()
            unknown += [f"{each}: {line}" for each in _check_command(words)]
    assert unknown == []


def test_each_command_of_the_hints_exists() -> None:
    named = re.findall(r"`replctl ([a-z]+(?:-[a-z]+)*)\b", sources())
    assert sorted({word for word in named if word not in COMMANDS}) == []
    assert len(named) > 10


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_each_setting_on_a_page_exists(page: Path) -> None:
    settings = {f"{section}.{key}" for section, key, _ in list_settings()}
    sections = {each.partition(".")[0] for each in settings}
    named = {match[0] for line in code_of(page) for match in _SETTING.finditer(line) if match["section"] in sections}
    assert sorted(named - settings) == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_each_class_on_a_page_exists(page: Path) -> None:
    names = {span for span in code_of(page) if _MEMBER.fullmatch(span)}
    parts = {part for name in names for part in name.split(".")} - set(dir(builtins)) - _OF_SYSTEMD
    assert sorted(part for part in parts if not re.search(rf"\b{part}\b", sources())) == []


def test_each_step_of_the_walk_is_in_the_file_that_the_page_names() -> None:
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    missing = []
    for step in _IN_FILE.finditer(text):
        files = [names for file, names in definitions().items() if f"/{file}".endswith(f"/{step['file']}")]
        known = [names[step["name"]] for names in files if step["name"] in names]
        members = {name for names in files for cls in names.values() for name in cls}
        if not (any(step["member"] in each for each in known) if step["member"] else known or step["name"] in members):
            missing.append(step[0])
    assert missing == []
    assert len(_IN_FILE.findall(text)) > 30


def test_each_method_on_the_page_of_concepts_is_one_of_its_class() -> None:
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    classes: dict[str, set[str]] = {}
    for names in definitions().values():
        for name, members in names.items():
            classes.setdefault(name, set()).update(members)
    named = {(step["cls"], step["member"]) for step in _METHOD.finditer(text)}
    assert sorted(".".join(each) for each in named if each[1] not in classes.get(each[0], set())) == []
    assert len(named) > 30

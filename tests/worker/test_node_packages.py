"""Installed packages in Node: found by require and import at once, generation by generation, after the project's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def at_project(node: Any, tmp_path: Path) -> Any:
    """A node whose working directory is a project."""
    (tmp_path / "project").mkdir()
    assert node.ask(op="assign", cwd=str(tmp_path / "project"), env={}, limits={})["error"] is None
    return node


def add(directory: Path, name: str, version: str, module: bool = False) -> None:
    """Write a package that says its version."""
    place = directory / "node_modules" / name
    place.mkdir(parents=True)
    table = {"name": name, "version": version, "main": "main.js", **({"type": "module"} if module else {})}
    (place / "package.json").write_text(json.dumps(table))
    (place / "main.js").write_text(
        f"{'export const' if module else 'exports.'}{' ' if module else ''}v = '{version}';\n"
    )


def use(node: Any, directory: Path) -> None:
    assert node.ask(op="packages", path=str(directory), modules=[], file=None)["error"] is None


def test_a_package_is_found_at_once_even_if_it_was_missed_before(at_project: Any, tmp_path: Path) -> None:
    assert "MODULE_NOT_FOUND" in str(at_project.error("require('one')"))
    assert "Cannot find package 'two'" in str(at_project.error("await import('two')"))
    add(tmp_path / "g1", "one", "1.0")
    add(tmp_path / "g1", "two", "1.0", module=True)
    use(at_project, tmp_path / "g1")
    assert at_project.value("require('one').v") == "'1.0'"
    assert at_project.value("(await import('two')).v") == "'1.0'"
    assert at_project.value("import { v } from 'two'; v") == "'1.0'"


def test_the_next_generation_is_imported_and_what_was_required_stays_and_is_told(
    at_project: Any, tmp_path: Path
) -> None:
    for number, version in ((1, "1.0"), (2, "2.0")):
        add(tmp_path / f"g{number}", "one", version)
    use(at_project, tmp_path / "g1")
    assert at_project.value("const before = require('one'); before.v") == "'1.0'"
    use(at_project, tmp_path / "g2")
    assert at_project.value("[before.v, require('one').v, (await import('one')).default.v].join()") == "'1.0,1.0,2.0'"
    assert at_project.ask(op="packages", path=None, modules=["one", "two"], file=None)["imported"] == ["one"]
    assert at_project.value("process.env.NODE_PATH") == repr(str(tmp_path / "g2/node_modules"))


def test_the_projects_own_packages_come_first_and_its_files_find_the_installed_ones(
    at_project: Any, tmp_path: Path
) -> None:
    add(tmp_path / "project", "one", "own")
    add(tmp_path / "g1", "one", "1.0")
    add(tmp_path / "g1", "two", "1.0")
    (tmp_path / "project/part.js").write_text("exports.v = require('two').v")
    use(at_project, tmp_path / "g1")
    assert (
        at_project.value("[require('one').v, (await import('one')).default.v, require('./part.js').v].join()")
        == "'own,own,1.0'"
    )


def test_an_error_inside_a_package_is_told_as_it_is(at_project: Any, tmp_path: Path) -> None:
    add(tmp_path / "g1", "one", "1.0")
    (tmp_path / "g1/node_modules/one/main.js").write_text("throw new Error('inside')")
    use(at_project, tmp_path / "g1")
    assert "inside" in str(at_project.error("require('one')"))
    assert "inside" in str(at_project.error("await import('one')"))
    assert "Cannot find package 'none'" in str(at_project.error("await import('none')"))


def test_the_file_of_a_project_is_read_with_the_sessions_rights(at_project: Any, tmp_path: Path) -> None:
    asked = {"op": "packages", "path": None, "modules": []}
    assert "file" not in at_project.ask(**asked, file="")
    (tmp_path / "project/package.json").write_text('{"dependencies": {"one": "^1"}}')
    answer = at_project.ask(**asked, file="")
    assert (answer["file"], answer["text"]) == ("package.json", '{"dependencies": {"one": "^1"}}')
    assert "ENOENT" in at_project.ask(**asked, file="/nowhere/package.json")["error"]
    (tmp_path / "project/package.json").write_text(" " * (1 << 21))
    assert "is longer than" in at_project.ask(**asked, file="")["error"]

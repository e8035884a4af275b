"""The Claude Code plugin: what it names is there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from replctl import __version__
from replctl.main import cli
from replctl.tools import toolset

PLUGIN = Path(__file__).resolve().parents[2] / "plugin"
PAGES = sorted(PLUGIN.rglob("*.md"))


def test_the_manifest_has_our_version() -> None:
    manifest = json.loads((PLUGIN / ".claude-plugin/plugin.json").read_text())
    assert (manifest["name"], manifest["version"]) == ("replctl", __version__)
    market = json.loads((PLUGIN / ".claude-plugin/marketplace.json").read_text())
    assert [plugin["name"] for plugin in market["plugins"]] == ["replctl"]
    assert (PLUGIN / market["plugins"][0]["source"] / ".claude-plugin/plugin.json").exists()


def test_the_server_can_be_started_as_it_says() -> None:
    server = json.loads((PLUGIN / ".mcp.json").read_text())["mcpServers"]["repl"]
    assert server["command"] == "replctl"
    assert CliRunner().invoke(cli, [*server["args"], "--help"]).exit_code == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_have_a_head_and_name_tools_that_exist(page: Path) -> None:
    head = re.match(r"---\n(.*?)\n---\n", page.read_text(), re.S)
    assert head is not None
    assert "description: " in head[1]
    tools = set(re.findall(r"mcp__plugin_replctl_repl__(\w+)", page.read_text()))
    tools |= set(re.findall(r"`(\w+)\(\w+=", page.read_text()))
    assert tools <= set(toolset().names), tools


def test_there_are_commands_and_a_skill() -> None:
    assert {page.relative_to(PLUGIN).as_posix() for page in PAGES} == {
        "commands/env.md",
        "commands/info.md",
        "commands/reset.md",
        "skills/replctl/SKILL.md",
    }


def test_the_skills_calls_have_arguments_that_are_taken() -> None:
    text = (PLUGIN / "skills/replctl/SKILL.md").read_text()
    schemas = {schema["name"]: schema["input_schema"]["properties"] for schema in toolset().schemas()}
    calls = re.findall(r"`(\w+)\((\w+=[^)]*)\)`", " ".join(text.split()))
    assert len(calls) > 4
    for name, arguments in calls:
        given = {word.split("=")[0] for word in shlex.split(arguments.replace(",", " ")) if "=" in word}
        assert given <= set(schemas[name]), name

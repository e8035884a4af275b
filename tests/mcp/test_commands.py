"""The commands around the server: `tools`, and what `mcp` refuses before it serves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from replctl.commands.mcp import find_runtime_dir
from replctl.main import cli
from replctl.tools import SETS


@pytest.mark.parametrize("set", SETS)
@pytest.mark.parametrize(
    ("form", "key"), [("mcp", "inputSchema"), ("openai", "function"), ("anthropic", "input_schema")]
)
def test_schemas_are_printed_as_json(set: str, form: str, key: str) -> None:
    done = CliRunner().invoke(cli, ["tools", "--format", form, "--set", set], standalone_mode=False)
    assert done.exit_code == 0
    assert all(key in entry for entry in json.loads(done.stdout))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--agent", "not a name"], "agent name may only contain"),
        (["--endpoint", "http://x"], "not an endpoint"),
        (["--tools", "lisp"], "lisp"),
        (["--budget", "3"], "--budget"),
    ],
)
def test_what_cannot_be_served_is_said_at_once(words: list[str], expected: str) -> None:
    done = CliRunner().invoke(cli, ["mcp", *words])
    assert done.exit_code != 0
    assert expected in done.output


def test_the_users_own_socket_is_found_without_its_variable(tmp_path: Path) -> None:
    uid = os.getuid()
    environ: dict[str, str] = {}
    find_runtime_dir(environ, uid, str(tmp_path))
    assert environ == {}
    (tmp_path / str(uid)).mkdir()
    find_runtime_dir(environ, uid, str(tmp_path))
    assert environ == {"XDG_RUNTIME_DIR": str(tmp_path / str(uid))}
    environ["XDG_RUNTIME_DIR"] = "/elsewhere"
    find_runtime_dir(environ, uid, str(tmp_path))
    assert environ == {"XDG_RUNTIME_DIR": "/elsewhere"}

"""Clients' configuration files: one entry comes in, everything else stays, twice is the same as once."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import TIMEOUT_S
from mcp_kit import HELLO, finish, receive, send_request
from replctl import Client
from replctl.mcp.clients import CLIENTS
from replctl.mcp.config_edit import CannotEdit, into_json, into_toml

ENTRY = {"command": "/bin/replctl", "args": ["mcp"], "startup_timeout_sec": 20}
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), NAMES),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
)
CODEX = """\
# my settings
model = "x"   # the good one

[mcp_servers.other]
command = "other"
args = ["a",
  "b"]

# about ours
[mcp_servers.replctl]
command = "old"
args = ["mcp"]
enabled = true

# about what comes after
[tui]
theme = "dark"
"""


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=2)))
def test_json_gains_one_entry_and_loses_nothing(root: dict[str, object], servers: dict[str, object]) -> None:
    before = {**root, "mcpServers": servers}
    after = json.loads(into_json(json.dumps(before), ["mcpServers"], "replctl", ENTRY))
    assert {**servers.get("replctl", {}), **ENTRY} == after["mcpServers"].pop("replctl")  # type: ignore[dict-item]
    servers = {name: server for name, server in servers.items() if name != "replctl"}
    assert after == {**root, "mcpServers": servers}


@pytest.mark.parametrize("text", ["", "{}", '{\n    "a": 1\n}\n', '{"mcpServers":{"b":{"command":"c"}}}'])
def test_json_twice_is_the_same_as_once(text: str) -> None:
    once = into_json(text, ["mcpServers"], "replctl", ENTRY)
    assert into_json(once, ["mcpServers"], "replctl", ENTRY) == once


def test_json_keeps_its_indent_and_what_was_added_to_the_entry() -> None:
    text = '{\n    "mcpServers": {\n        "replctl": {"command": "old", "trust": true}\n    }\n}\n'
    after = into_json(text, ["mcpServers"], "replctl", ENTRY)
    assert '\n    "mcpServers"' in after
    assert json.loads(after)["mcpServers"]["replctl"]["trust"] is True


@pytest.mark.parametrize(
    "text",
    ["{ // comment\n}", "[]", '{"mcpServers": []}', '{"mcpServers": {"replctl": 5}}', '{"a": 1, "a": 2}', "nonsense"],
)
def test_json_that_would_lose_something_is_refused(text: str) -> None:
    with pytest.raises(CannotEdit):
        into_json(text, ["mcpServers"], "replctl", ENTRY)


def test_toml_keeps_its_comments_and_its_other_tables() -> None:
    after = into_toml(CODEX, "mcp_servers", "replctl", ENTRY)
    assert set(CODEX.splitlines()) - set(after.splitlines()) == {'command = "old"'}
    parsed = tomllib.loads(after)
    assert parsed["mcp_servers"]["replctl"] == {**ENTRY, "enabled": True}
    assert parsed["mcp_servers"]["other"]["args"] == ["a", "b"]
    assert after.index("# about what comes after") > after.index("startup_timeout_sec")
    assert into_toml(after, "mcp_servers", "replctl", ENTRY) == after


@pytest.mark.parametrize("text", ["", 'model = "x"', 'model = "x"\n', "[mcp_servers.other]\ncommand = 'o'\n"])
def test_toml_gets_a_table_at_its_end(text: str) -> None:
    after = into_toml(text, "mcp_servers", "replctl", ENTRY)
    assert after.startswith(text)
    assert tomllib.loads(after)["mcp_servers"]["replctl"] == ENTRY
    assert into_toml(after, "mcp_servers", "replctl", ENTRY) == after


def test_toml_keeps_the_tables_below_ours() -> None:
    text = '[mcp_servers.replctl]\ncommand = "old"\n\n[mcp_servers.replctl.env]\nX = "1"\n'
    after = into_toml(text, "mcp_servers", "replctl", ENTRY)
    assert tomllib.loads(after)["mcp_servers"]["replctl"] == {**ENTRY, "env": {"X": "1"}}


def test_toml_keeps_what_somebody_added_to_the_entry() -> None:
    theirs = '# theirs\nenv = { A = "1" } # why\nenabled_tools = [\n  "eval",  # [sic]\n]\n\n'
    text = f'[mcp_servers.replctl]\n{theirs}command = "old"\nargs = [\n"mcp"]\n[tui]\nx = 1\n'
    after = into_toml(text, "mcp_servers", "replctl", ENTRY)
    assert theirs in after
    kept = {"env": {"A": "1"}, "enabled_tools": ["eval"]}
    assert tomllib.loads(after) == {"mcp_servers": {"replctl": {**ENTRY, **kept}}, "tui": {"x": 1}}
    assert into_toml(after, "mcp_servers", "replctl", ENTRY) == after


@pytest.mark.parametrize(
    "text",
    [
        '[mcp_servers.replctl]\nargs = [\n["a"],\n]\n',
        'mcp_servers = { replctl = { command = "old" } }\n',
        '[mcp_servers]\nreplctl.command = "old"\n',
        'note = """\n[mcp_servers.replctl]\nnot a table\n"""\n',
        "not toml",
    ],
)
def test_toml_that_would_lose_something_is_refused(text: str) -> None:
    with pytest.raises(CannotEdit):
        into_toml(text, "mcp_servers", "replctl", ENTRY)


def install(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_HOME", "_CONFIG_DIR"))}
    return subprocess.run(
        [sys.executable, "-P", "-m", "replctl", "install", *args],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**kept, "HOME": str(home), **env},
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_can_be_told(tmp_path: Path, client: str) -> None:
    done = install(tmp_path, "--client", client, "--agent", "ada")
    assert done.returncode == 0, done.stderr
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    text = path.read_text()
    parsed = tomllib.loads(text) if client == "codex" else json.loads(text)
    entry = parsed[CLIENTS[client].keys[0]]["replctl"]
    assert entry["args"][-3:] == ["mcp", "--agent", "ada"]
    assert os.path.isabs(entry["command"])
    assert "+" in done.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = install(tmp_path, "--client", client, "--agent", "ada")
    assert (again.returncode, again.stdout) == (0, "")
    assert "already in" in again.stderr
    assert path.read_text() == text


STDIO = {"type": "stdio", "command": "replctl", "args": ["mcp"]}
BARE = {"command": "replctl", "args": ["mcp"]}


@pytest.mark.parametrize(
    ("client", "user", "project", "key", "entry"),
    [  # as the clients' own documentation had it in November 2026
        ("claude", ".claude.json", ".mcp.json", "mcpServers", STDIO),  # code.claude.com/docs/en/mcp
        (
            "codex",
            ".codex/config.toml",
            ".codex/config.toml",
            "mcp_servers",  # developers.openai.com/codex/mcp
            {
                **BARE,
                "env_vars": ["XDG_RUNTIME_DIR", "REPLCTL_STATE_DIR", "REPLCTL_ENDPOINT", "REPLCTL_CONFIG"],
                "startup_timeout_sec": 20,
                "tool_timeout_sec": 300,
            },
        ),
        ("cursor", ".cursor/mcp.json", ".cursor/mcp.json", "mcpServers", BARE),  # cursor.com/docs/mcp
        # code.visualstudio.com/docs/agents/reference/mcp-configuration
        ("vscode", ".config/Code/User/mcp.json", ".vscode/mcp.json", "servers", STDIO),
        # geminicli.com/docs/tools/mcp-server
        ("gemini", ".gemini/settings.json", ".gemini/settings.json", "mcpServers", BARE),
        # qwenlm.github.io/qwen-code-docs: version 1 writes .mcp.json for a project, and reads this one as those before
        ("qwen", ".qwen/settings.json", ".qwen/settings.json", "mcpServers", BARE),
        # docs.windsurf.com/windsurf/cascade/mcp
        ("windsurf", ".codeium/windsurf/mcp_config.json", None, "mcpServers", BARE),
    ],
)
def test_files_and_entries_are_those_of_the_clients_documentation(
    tmp_path: Path, client: str, user: str, project: str | None, key: str, entry: dict[str, object]
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    assert install(home, "--client", client).returncode == 0
    found = _parsed(home / user)[key]["replctl"]
    assert {**found, "command": "replctl"} == entry
    assert (Path(found["command"]).name, os.path.isabs(found["command"])) == ("replctl", True)
    assert install(work, "--client", client, "--scope", "project").returncode == (2 if project is None else 0)
    results = [_parsed(path)[key] for path in work.rglob("*") if path.is_file()]
    assert results == ([] if project is None else [{"replctl": entry}])
    assert project is None or (work / project).exists()


def _parsed(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())


def test_the_file_before_is_kept_and_the_mode_stays(tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"
    path.write_text('{"mcpServers": {}}')
    path.chmod(0o640)
    done = install(tmp_path, "--client", "claude", "--scope", "project")
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob(".mcp.json.*.bak")
    assert kept.read_text() == '{"mcpServers": {}}'
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, kept)} == {0o640}
    assert json.loads(path.read_text())["mcpServers"]["replctl"] == {
        "type": "stdio",
        "command": "replctl",
        "args": ["mcp"],
    }


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "claude.json"
    real.write_text("{}")
    (tmp_path / ".claude.json").symlink_to(real)
    assert install(tmp_path, "--client", "claude").returncode == 0
    assert (tmp_path / ".claude.json").is_symlink()
    assert "replctl" in real.read_text()


def test_a_file_with_comments_is_left_alone_and_the_entry_is_shown(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    path = tmp_path / ".vscode" / "mcp.json"
    path.write_text("{ // mine\n}")
    done = install(tmp_path, "--client", "vscode", "--scope", "project")
    assert done.returncode == 1
    assert "was not changed" in done.stderr
    assert '"servers"' in done.stderr
    assert path.read_text() == "{ // mine\n}"


def test_printing_writes_nothing(tmp_path: Path) -> None:
    done = install(tmp_path, "--client", "codex", "--print", "--tools", "nexo", "--name", "py")
    assert tomllib.loads(done.stdout)["mcp_servers"]["py"]["args"][-2:] == ["--tools", "nexo"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("client", "variable", "file"),
    [("codex", "CODEX_HOME", "config.toml"), ("claude", "CLAUDE_CONFIG_DIR", ".claude.json")],
)
def test_a_moved_directory_is_found(tmp_path: Path, client: str, variable: str, file: str) -> None:
    moved = tmp_path / "moved"
    assert install(tmp_path, "--client", client, **{variable: str(moved)}).returncode == 0
    assert [path.name for path in moved.iterdir()] == [file]


def test_a_client_without_projects_says_so(tmp_path: Path) -> None:
    done = install(tmp_path, "--client", "windsurf", "--scope", "project")
    assert done.returncode == 2
    assert "no project configuration" in done.stderr


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_a_new_users_entry_is_a_working_tool(client: str) -> None:
    """Started as the client starts it: by its entry alone, with the few variables that it hands on."""
    home = Path(tempfile.mkdtemp(prefix="rh-", dir="/tmp"))  # short: socket paths are bounded
    project = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))
    try:
        state = {"REPLCTL_STATE_DIR": str(home / "s")}
        assert install(home, "--client", client, **state).returncode == 0
        entry = _parsed(home / CLIENTS[client].user.removeprefix("~/"))[CLIENTS[client].keys[0]]["replctl"]
        environ = {"HOME": str(home), "PATH": os.environ["PATH"], **state}
        process = subprocess.Popen(
            [entry["command"], *entry["args"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            cwd=project,
            bufsize=0,
        )
        send_request(process, "initialize", 1, **HELLO)
        assert receive(process)["result"]["serverInfo"]["name"] == "replctl"
        code = "open('made', 'w').write('x')\n6*7"
        send_request(process, "tools/call", 2, name="eval", arguments={"code": code})
        assert receive(process)["result"]["content"][0]["text"].startswith("42\n[new session default in ")
        assert (project / "made").read_text() == "x"
        finish(process)
        with Client(f"ipc://{home}/s/run/broker.sock", start=False) as broker:
            broker.shutdown()
            assert broker.wait_for_shutdown(TIMEOUT_S)
    finally:
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(project, ignore_errors=True)

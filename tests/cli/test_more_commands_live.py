"""Commands that ask a session, copy it or move it, through the installed command and a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stub_broker import TIMEOUT_S, command_environment

if TYPE_CHECKING:
    from conftest import Shell


def run_json(shell: Shell, *args: str) -> Any:
    """A command's answer as JSON."""
    return json.loads(shell.run(*args, "--json").stdout)


@pytest.fixture(scope="module")
def shop(live: Shell) -> Shell:
    """A broker with a session that has something in it."""
    code = 'import json\ndef price(amount: float, rate: float = 1.2) -> float:\n    """What it costs."""\n    return amount * rate'
    live.run("eval", "-s", "shop", code)
    live.run("eval", "-s", "shop", "basket = {'apples': [1, 2, 3]}")
    live.run("eval", "-s", "shop", "1/0")
    return live


def test_complete_prints_ways_to_go_on(shop: Shell) -> None:
    assert shop.run("complete", "-s", "shop", "bask").stdout == "basket\n"
    assert shop.run("complete", "-s", "shop", "basket.set").stdout == "setdefault\n"
    result = run_json(shop, "complete", "-s", "shop", "é = bask + 1", "--pos", "8")
    assert ([each["text"] for each in result["completions"]], result["start"]) == (["basket"], 5)  # bytes of UTF-8
    assert shop.run("complete", "--runtime", "bash", "printf -v na; unse").stdout == "unset\n"


def test_lookup_prints_what_a_name_means(shop: Shell) -> None:
    lines = shop.run("lookup", "-s", "shop", "price").stdout.splitlines()
    assert lines[0] == "price(amount: float, rate: float = 1.2): function"
    assert "What it costs." in lines
    assert shop.run("lookup", "-s", "shop", "basket").stdout.startswith("basket: dict\n")
    assert run_json(shop, "lookup", "dumps", "-s", "shop", "--module", "json")["found"] is True
    nothing = shop.run("lookup", "-s", "shop", "nonsense")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (
        4,
        "",
        "replctl: name 'nonsense' is not defined in session 'shop'\n",
    )


def test_vars_prints_names_with_type_and_preview(shop: Shell) -> None:
    lines = shop.run("vars", "shop").stdout.splitlines()
    assert lines[0] == "basket: dict 1"
    assert [each["name"] for each in run_json(shop, "vars", "shop")["variables"]] == ["basket", "price"]
    assert shop.run("vars", "nobody").returncode == 4


def test_history_prints_code_and_how_it_ended(shop: Shell) -> None:
    text = shop.run("history", "shop", "-n", "2").stdout
    assert [line.split(",")[0] for line in text.splitlines() if line.startswith("#")] == [
        "# 2 (ok",
        "# 3 (error",
    ]
    assert "1/0" in text
    assert run_json(shop, "history", "shop", "--grep", "basket")["count"] == 1


def test_stack_shows_where_the_code_is(shop: Shell) -> None:
    process = shop.start("eval", "-s", "stuck", "def wait():\n    print('on', flush=True)\n    return input()\nwait()")
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    text = shop.run("stack", "stuck").stdout
    assert "  wait at <stuck:1>:3\n" in text
    assert run_json(shop, "stack", "stuck")["processes"]
    shop.run("interrupt", "stuck")
    assert process.wait(TIMEOUT_S) == 7


def test_clone_copies_and_says_what_stays_behind(shop: Shell) -> None:
    shop.run("eval", "-s", "origin", "x = 6\ngen = (n for n in range(3))")
    ran = shop.run("clone", "origin", "copy")
    assert ran.stdout == "copy\n"
    assert "not copied: gen: " in ran.stderr
    assert shop.run("eval", "-s", "copy", "x * 7").stdout == "42\n"
    assert shop.run("clone", "origin", "copy").returncode == 4


def test_mode_holds_a_session_in_plan_mode_and_lets_it_go(shop: Shell) -> None:
    shop.run("new", "held")
    assert shop.run("mode", "held", "plan", "--reason", "reading").stdout == "held: plan\n"
    refused = shop.run("eval", "-s", "held", "x = 1")
    assert (refused.returncode, "reading" in refused.stderr) == (5, True)
    assert run_json(shop, "mode", "held", "normal")["session-mode"] == "normal"
    assert shop.run("eval", "-s", "held", "1").stdout == "1\n"


def test_env_moves_a_session_to_an_environment_and_back(shop: Shell, tmp_path: Path) -> None:
    shop.run("new", "moved")
    assert shop.run("env", "show", "-s", "moved").stdout.endswith(f": {sys.executable}\n")
    venv.create(tmp_path / "env", symlinks=True)
    went = shop.run("env", "activate", str(tmp_path / "env"), "-s", "moved")
    assert went.stdout == f"{tmp_path}/env/bin/python\n"
    assert "epoch 2" in went.stderr
    assert shop.run("eval", "-s", "moved", "import sys; print(sys.prefix)").stdout == f"{tmp_path}/env\n"
    back = run_json(shop, "env", "deactivate", "-s", "moved")
    assert (back["environment"], back["epoch"]) == (None, 3)
    failed = shop.run("env", "activate", str(tmp_path / "none"), "-s", "moved")
    assert (failed.returncode, "nothing has changed" in failed.stderr) == (5, True)
    assert shop.run("env", "pkg", "status", "-s", "moved").returncode == 0


def test_load_runs_a_file_of_an_allowed_directory(alone: Shell, tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text("print('loaded')\nside = 3\nside ** 2\n")
    (alone.state / "config.toml").write_text(f'[session]\nload-paths = ["{tmp_path}"]\n')
    config = {"REPLCTL_CONFIG": str(alone.state / "config.toml")}
    assert alone.run("load", str(tmp_path / "shapes.py"), "-s", "work", **config).stdout == "loaded\n9\n"
    (tmp_path / "shapes.py").write_text("width = 4\nwidth\n")
    assert alone.run("load", str(tmp_path / "shapes.py"), "-s", "work", "--reload", **config).stdout == "4\n"
    assert alone.run("eval", "-s", "work", "side", **config).returncode == 1
    refused = alone.run("load", "/etc/hostname", "-s", "work", **config)
    assert (refused.returncode, "not below a directory" in refused.stderr) == (5, True)


# --- shells ---


@pytest.fixture
def bash(shop: Shell, tmp_path: Path) -> Callable[..., list[str]]:
    """Ask a shell what it would complete a line to, as its user does with the tab key."""
    command = tmp_path / "replctl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m replctl "$@"\n')
    command.chmod(0o755)

    def complete(*words: str) -> list[str]:
        script = (
            'eval "$(replctl completion bash)"\n'
            'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
            "_replctl_completion replctl\n"
            'printf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        env = command_environment(shop.state)
        env["PATH"] = f"{tmp_path}:{env['PATH']}"
        ran = subprocess.run(
            ["bash", "--norc", "-c", script, "bash", "replctl", *words],
            capture_output=True,
            timeout=TIMEOUT_S,
            env=env,
            check=True,
        )
        assert ran.stderr == b""
        return ran.stdout.decode().split()

    return complete


def test_a_shell_completes_commands_options_and_names_of_sessions(bash: Callable[..., list[str]], shop: Shell) -> None:
    shop.run("new", "completed-one")
    assert "transfer" in bash("t")
    assert "--timeout" in bash("eval", "--ti")
    assert bash("info", "completed-") == ["completed-one"]
    assert bash("eval", "-s", "completed-") == ["completed-one"]
    assert bash("share", "completed-") == ["completed-one"]


def test_completion_of_names_starts_no_broker(shell: Shell) -> None:
    env = {"_REPLCTL_COMPLETE": "bash_complete", "COMP_WORDS": "replctl info ", "COMP_CWORD": "2"}
    ran = shell.run(**env)
    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, "", "")
    assert list((shell.state).rglob("*.sock")) == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_completion_script_is_the_shells_own(shell: Shell, name: str) -> None:
    ran = shell.run("completion", name)
    assert ran.returncode == 0
    assert f"_REPLCTL_COMPLETE={name}_complete" in ran.stdout


def test_named_environments_are_listed_and_removed(shop: Shell) -> None:
    assert shop.run("env", "ls").stderr == "replctl: no named environments\n"
    place = shop.state / "envs/data/bin"
    place.mkdir(parents=True)
    (place / "python").symlink_to(sys.executable)
    shop.run("new", "there", "--runtime", "@data")
    assert shop.run("env", "ls").stdout.split()[:4] == ["ENVIRONMENT", "OWNER", "SESSIONS", "@data"]
    assert run_json(shop, "env", "ls")["environments"][0]["sessions"] == ["there"]
    used = shop.run("env", "remove", "@data")
    assert (used.returncode, used.stderr.splitlines()[0]) == (5, "replctl: sessions have environment @data: there")
    shop.run("close", "there")
    assert shop.run("env", "remove", "@data").stdout == "deleted @data\n"
    assert shop.run("env", "remove", "@data").returncode == 4

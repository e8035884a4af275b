"""An option that is not known is never dropped in silence: clients refuse it, the wire names it, nothing is opened."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit import BrokerProcess, Wire
from replctl import AsyncClient, Client, ReplError
from replctl.client import fields
from replwire.ops import OPS
from replwire.requests import describe_ops


def sessions(wire: Wire) -> set[str]:
    return {entry["session"] for entry in wire.ask("ls-sessions")["sessions"]}


@pytest.mark.parametrize(
    ("op", "asked"),
    [
        ("new-session", {"name": "tight"}),
        ("new-session", {"name": "there", "if_exists": "reuse"}),
        ("eval", {"code": "1", "session": "tight", "if_missing": "create"}),
        ("eval", {"code": "1"}),
        ("complete", {"code": "a", "pos": 1}),
    ],
)
def test_what_would_open_a_session_is_refused_for_a_field_that_is_not_known(
    wire: Wire, op: str, asked: dict[str, Any]
) -> None:
    wire.run("1", "there")
    before = sessions(wire)
    answer = wire.ask(op, newtork="none", **asked)
    assert answer.status == ["done", "error", "invalid-request"]
    assert answer["err"].startswith(f"{op} has no field newtork")
    assert op == "complete" or answer["err"].endswith("did you mean network?")
    assert answer["ignored-fields"] == ["newtork"]
    assert sessions(wire) == before
    assert wire.ask("ping").get("ignored-fields") is None


def test_fields_that_are_not_known_are_named_at_the_end_of_every_answer(wire: Wire) -> None:
    """Of what the broker answers, what a worker does, and what is refused."""
    wire.run("1", "there")
    assert wire.ask("ping", timeout_ms=5, x=[1])["ignored-fields"] == ["timeout-ms", "x"]
    answer = wire.run("print(1); 2", "there", newtork="none")
    assert (answer.out, answer.value, answer.status) == ("1\n", "2", ["done"])
    assert [message.get("ignored-fields") for message in answer.messages] == [None, None, ["newtork"]]
    assert wire.run("1/0", "there", x=1)["ignored-fields"] == ["x"]
    assert wire.ask("info", session="there", x=1)["ignored-fields"] == ["x"]
    assert wire.ask("read", session="nobody", eval_id=1, x=1)["ignored-fields"] == ["x"]
    assert wire.ask("read", session="there", eval_id=1, x=1)["ignored-fields"] == ["x"]
    assert len(wire.ask("ping", **{f"field-{n}": n for n in range(100)})["ignored-fields"]) == 20
    assert wire.ask("ping", **{"x" * 5000: 1})["ignored-fields"] == ["x" * 64]


def test_our_clients_refuse_an_option_that_is_not_known_before_they_send_it(broker: BrokerProcess) -> None:
    with Client(broker.endpoint, start=False) as client:
        for call in (
            lambda: client.new("tight", newtork="none"),
            lambda: client.request("new-session", newtork="none"),
            lambda: client.send("eval", {"code": "1", "session": None, "newtork": "none"}),
        ):
            with pytest.raises(TypeError, match=r"has no field newtork: did you mean network\?") as caught:
                call()
            assert isinstance(caught.value, ReplError)
            assert caught.value.code == "invalid-request"
        with pytest.raises(TypeError, match="newtork"):
            client.eval("1", newtork="none")
        assert "tight" not in {entry.name for entry in client.sessions()}
        assert client.new("tight", cwd_needed=False).created
        client.close("tight")


def test_so_does_the_client_of_an_event_loop(broker: BrokerProcess) -> None:
    async def run() -> None:
        async with AsyncClient(broker.endpoint, start=False) as client:
            with pytest.raises(TypeError, match=r"did you mean network\?"):
                await client.new("tight", newtork="none")
            assert "tight" not in {entry.name for entry in await client.sessions()}

    asyncio.run(run())


def test_fields_that_the_library_sends_itself_are_known() -> None:
    known = {name for op in describe_ops().values() for name in (*op["requires"], *op["optional"])}
    assert {name.replace("_", "-") for name in fields._LIBRARY_FIELDS} <= known


def test_a_command_does_not_load_the_table_of_operations(broker: BrokerProcess) -> None:
    """Loading the table would take a tenth of the command's time."""
    code = "import sys; from replctl.main import main\ntry: main(sys.argv[1:])\nfinally: print('replwire.ops' in sys.modules)"
    for command in (["eval", "--ephemeral", "1"], ["ls"], ["info", "there"], ["new", "there", "--reuse"]):
        words = [sys.executable, "-c", code, *command, "--endpoint", broker.endpoint]
        ended = subprocess.run(words, capture_output=True, timeout=60, text=True, check=False)
        assert ended.stdout.endswith("False\n"), (command, ended)
    assert len(OPS) > 30


@pytest.mark.parametrize("arguments", [["serve"], ["config", "show"], ["mcp"], ["extensions"]])
def test_a_config_that_is_named_and_not_there_is_an_error(arguments: list[str], tmp_path: Path) -> None:
    environ = {**os.environ, "REPLCTL_CONFIG": str(tmp_path / "none.toml"), "REPLCTL_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "replctl", *arguments]
    ended = subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert f"REPLCTL_CONFIG names {tmp_path}/none.toml, which does not exist: create it" in ended.stderr


def test_so_is_one_that_an_option_names(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "replctl", "serve", "--config", str(tmp_path / "none.toml")]
    environ = {**os.environ, "REPLCTL_STATE_DIR": str(tmp_path)}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"--config names {tmp_path}/none.toml, which does not exist" in ended.stderr


def test_no_broker_is_started_without_the_config_that_is_named(tmp_path: Path) -> None:
    """Without the config its guards and rules for agents would not hold."""
    environ = {**os.environ, "REPLCTL_CONFIG": "/nowhere/c.toml", "REPLCTL_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "replctl", "eval", "1"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "REPLCTL_CONFIG names /nowhere/c.toml" in ended.stderr


def test_nor_is_a_broker_that_runs_found_without_the_config_that_is_named(tmp_path: Path) -> None:
    """The file might name another one. What needs no broker does its work, and an endpoint that is given needs no file."""
    environ = {**os.environ, "REPLCTL_CONFIG": "", "REPLCTL_STATE_DIR": str(tmp_path)}

    def run(*words: str, named: str = "/nowhere/c.toml", code: int = 0) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "replctl", *words],
            env=environ | {"REPLCTL_CONFIG": named},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == code, ended
        return ended.stdout + ended.stderr

    config = tmp_path / "config.toml"
    config.write_text('[sandbox]\nallow-unsandboxed = true\nprofile = "off"\n')
    try:
        run("eval", "x = 1", "-s", "s", named=str(config))
        for words in (["eval", "x", "-s", "s"], ["ls"], ["status"], ["shutdown"], ["mcp"], ["acp"]):
            assert "REPLCTL_CONFIG names /nowhere/c.toml, which does not exist: create it" in run(*words, code=2)
        run("--help")
        assert "REPLCTL_CONFIG names /nowhere/c.toml" in run("doctor", code=1)
        given = f"ipc://{tmp_path}/run/broker.sock"
        assert run("eval", "x", "-s", "s", "--endpoint", given) == "1\n"
    finally:
        run("shutdown", named=str(config))

"""The hooks that come along, at a real broker."""

from __future__ import annotations

from collections.abc import Callable

from ext_kit import config_entry
from kit import BrokerProcess

Start = Callable[..., BrokerProcess]
SECRETS = {
    "private key": "-----BEGIN RSA PRIVATE KEY-----",
    "AWS access key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "GitHub token": "ghp_" + "a" * 36,
    "Slack token": "xoxb-" + "1" * 12,
    "API key": "sk-" + "a" * 40,
    "JSON web token": "eyJ" + "a" * 20 + ".eyJ" + "b" * 20 + "." + "c" * 20,
    "password in an address": "postgres://me:hunter22@db/x",
}


def test_the_guard_of_secrets_keeps_them_out_of_session_history_and_transcript(start: Start) -> None:
    broker = start(config=config_entry(name="secrets"))
    with broker.wire() as wire:
        for name, secret in SECRETS.items():
            answer = wire.run(f"x = 1\nkey = {secret!r}")
            assert answer["status"] == ["done", "error", "hook-blocked"]
            assert f"line 2 has what looks like a secret ({name})" in answer["err"]
        assert "(password in an address)" in wire.run("u = 'redis://:hunter22@db/0'")["err"], "without a user"
        assert wire.run("x = 'https://user@host/ and sk-short'; 7", "s").value == "7"
        assert wire.ask("info", session="s")["info"]["eval-count"] >= 1
    assert broker.stop() == 0
    kept = b"".join(path.read_bytes() for path in broker.directory.rglob("*") if path.is_file())
    assert not [name for name, secret in SECRETS.items() if secret.encode() in kept]
    assert b"sk-short" in kept, "nothing was kept at all"


def test_the_guard_of_imports_knows_each_agent(start: Start) -> None:
    settings = {"allow": {"*": ["math", "os.path"], "ada": ["*"], "bob": []}}
    broker = start(config=config_entry(name="imports", settings=settings))
    with broker.wire() as wire:
        assert wire.run("import math, os.path", "s")["status"] == ["done"]
        assert wire.run("import socket", "s", agent="ada")["status"] == ["done"]
        for code in (
            "import os",
            "from os import path, system",
            "import math, socket",
            "__import__('os')",
            "exec('import os')",
            "import importlib",
            "from . import x",
        ):
            assert wire.run(code)["status"] == ["done", "error", "hook-blocked"], code
        assert "agent bob may not import math; allowed: nothing" in wire.run("import math", agent="bob")["err"]
        assert "its imports cannot be determined (SyntaxError" in wire.run("def f(:")["err"]

"""`replctl config get`, `set`, `unset`, `edit` and `path`: changes of a config file that stays valid and keeps comments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from replctl.config_text import set_value, setting_names, unset_value
from replwire.config import ConfigError, load

if TYPE_CHECKING:
    from conftest import Shell

TEXT = "# ours\n[limits]\nmax-eval-time-ms = 4000  # short\n\n[sandbox]\nprofile = 'read-only'\n"


def test_a_changed_text_keeps_comments_and_order() -> None:
    after = set_value(TEXT, "f", "limits.max-eval-time-ms", "6000")
    assert after == TEXT.replace("4000", "6000")
    assert set_value(TEXT, "f", "broker.tcp", "127.0.0.1:5555") == TEXT + '\n[broker]\ntcp = "127.0.0.1:5555"\n'
    assert load(set_value("", "f", "sandbox.allowed-hosts", '["a.test"]')).config.sandbox.allowed_hosts == ["a.test"]
    assert unset_value(TEXT, "f", "sandbox.profile") == TEXT.partition("\n[sandbox]")[0]
    assert unset_value(TEXT, "f", "broker.tcp") == TEXT


@pytest.mark.parametrize(
    ("setting", "value"), [("limits.max-eval-time-ms", "0"), ("sandbox.profile", "none"), ("broker.audit", "7")]
)
def test_an_invalid_value_is_refused(setting: str, value: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        set_value(TEXT, "f", setting, value)


@pytest.mark.parametrize("text", ["[limits", "limits = 3", "[[limits]]\na = 1", "\0"])
def test_a_file_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        set_value(text, "f", "limits.max-sessions", "3")


def test_every_default_can_be_written() -> None:
    text, defaults = "", load().config
    for setting in setting_names():
        section, _, key = setting.partition(".")
        value = getattr(getattr(defaults, section), key.replace("-", "_"))
        text = set_value(text, "f", setting, value if isinstance(value, str) else json.dumps(value))
    assert load(text).config == defaults


def test_the_command_changes_the_file_and_says_how_it_takes_effect(shell: Shell) -> None:
    file = shell.state / "c" / "config.toml"
    env = {"REPLCTL_CONFIG": str(file)}
    assert shell.run("config", "path", **env).stdout == f"{file}\n"
    first = shell.run("config", "set", "broker.warm-workers", "3", REPLCTL_BROKER_WARM_WORKERS="4", **env)
    assert (first.returncode, f"wrote {file}" in first.stderr, "reload" in first.stderr) == (0, True, True)
    assert "REPLCTL_BROKER_WARM_WORKERS overrides" in first.stderr
    assert shell.run("config", "get", "broker.warm-workers", **env).stdout == "3\n"
    assert "restart" in shell.run("config", "set", "broker.publish", "tcp://127.0.0.1:9", **env).stderr
    before = file.read_text()
    wrong = shell.run("config", "set", "broker.warm-workers", "many", **env)
    assert (wrong.returncode, "nothing was changed" in wrong.stderr, file.read_text()) == (2, True, before)
    unknown = shell.run("config", "get", "broker.warm-worker", **env)
    assert (unknown.returncode, "did you mean broker.warm-workers?" in unknown.stderr) == (2, True)
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_edited_file_is_saved_if_it_is_valid(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TEXT)
    env = {"REPLCTL_CONFIG": str(file)}
    wrong = shell.run("config", "edit", EDITOR="sed -i s/4000/x/", **env)
    assert (wrong.returncode, file.read_text()) == (2, TEXT)
    kept = Path(wrong.stderr.rstrip().rpartition("your text is in ")[2])
    assert "= x" in kept.read_text()
    kept.unlink()
    assert shell.run("config", "edit", EDITOR="sed -i s/4000/5000/", **env).returncode == 0
    assert "5000  # short" in file.read_text()
    assert "was not changed" in shell.run("config", "edit", EDITOR="true", **env).stderr

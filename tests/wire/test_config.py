"""Settings from four layers, later ones win key by key, and each knows where it came from."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from replwire.config import RELOADABLE, Config, ConfigError, changed_settings, env_name, list_settings, load, load_valid
from replwire.limits import limit_rows
from replwire.paths import config_file, default_endpoint, ipc_path, runtime_dir, state_dir

TEXT = """
[broker]
endpoint = "ipc:///file.sock"
warm-workers = 3
[limits]
max-sessions = 5
max-eval-time-ms = 5
"""


def test_nothing_given_is_the_defaults_from_nowhere() -> None:
    loaded = load()
    assert (loaded.config, loaded.sources) == (Config(), {})
    assert load("", environ={"PATH": "/bin", "REPLCTL": "1", "REPLCTL_AGENT": "ada"}, flags={}) == loaded


def test_later_layers_win_key_by_key_and_are_remembered() -> None:
    environ = {"REPLCTL_ENDPOINT": "ipc:///env.sock", "REPLCTL_LIMITS_MAX_SESSIONS": "6", "REPLCTL_STATE_DIR": "/x"}
    loaded = load(TEXT, "my.toml", environ, {"limits.max-sessions": "7", "broker.idle-exit-ms": "0"})
    assert loaded.config.broker.endpoint == "ipc:///env.sock"
    assert (loaded.config.broker.warm_workers, loaded.config.broker.idle_exit_ms) == (3, 0)
    assert (loaded.config.limits.max_sessions, loaded.config.limits.max_eval_time_ms) == (7, 5)
    assert loaded.sources == {
        "broker.endpoint": "environment REPLCTL_ENDPOINT",
        "broker.warm-workers": "my.toml",
        "broker.idle-exit-ms": "flag broker.idle-exit-ms",
        "limits.max-sessions": "flag limits.max-sessions",
        "limits.max-eval-time-ms": "my.toml",
    }


HIGHEST = {bound.name: bound.high for bound in limit_rows()}


OTHER = {
    "profile": '"read-only"',
    "network": '"host"',
    "read": '"host"',
    "warm-workers": "16",
    "audit": "false",
    "code": "true",
    "checkpoints": '"manual"',
    "builds": "true",
    "install": '"deny"',
    "more-hosts": '"ask"',
    "backend": '"sqlite"',
    "checkpoint-files": "true",
    "allowed-hosts": '["*.example.com", "@python"]',
    "denied-hosts": '["example.com:22"]',
    "private-networks": '["10.0.0.0/8"]',
    "host-addresses": '["example.com=10.0.0.1:8080"]',
    "upstream-proxy": '"http://proxy.example.com:3128"',
}


def _other(key: str, default: object) -> str:
    """Another value than the default, as TOML."""
    if key in OTHER:
        return OTHER[key]
    if isinstance(default, int):
        return str(HIGHEST.get(key, 5000 if default < 2000 else default + 1))
    return '["/X", "/Y"]' if isinstance(default, list) else '"x"'


@pytest.mark.parametrize(
    ("section", "key", "default"),
    [each for each in list_settings() if each[1] != "allow-unsandboxed"],
    ids=lambda value: str(value)[:30],
)
def test_every_setting_can_be_set_by_file_environment_and_flag(section: str, key: str, default: object) -> None:
    toml = _other(key, default)
    value = tomllib.loads(f"v = {toml}")["v"]
    assert value != default
    for loaded in (
        load(f"[{section}]\n{key} = {toml}"),
        load(environ={env_name(section, key): toml}),
        load(flags={f"{section}.{key}": toml}),
    ):
        assert getattr(getattr(loaded.config, section), key.replace("-", "_")) == value


def test_only_the_file_can_allow_sessions_without_a_sandbox() -> None:
    assert load("[sandbox]\nallow-unsandboxed = true").config.sandbox.allow_unsandboxed
    for layers in (
        {"environ": {"REPLCTL_SANDBOX_ALLOW_UNSANDBOXED": "true"}},
        {"flags": {"sandbox.allow-unsandboxed": "true"}},
    ):
        with pytest.raises(ConfigError, match="only in the config file"):
            load(**layers)


def test_text_that_is_no_toml_value_is_text() -> None:
    assert load(environ={"REPLCTL_ENDPOINT": "tcp://127.0.0.1:5"}).config.broker.endpoint == "tcp://127.0.0.1:5"
    assert load(environ={"REPLCTL_ENDPOINT": ""}).config.broker.endpoint == ""
    assert load(flags={"python.interpreter": "/opt/py thon#3"}).config.python.interpreter == "/opt/py thon#3"
    two = "1\nw = 2"
    assert load(flags={"python.interpreter": two}).config.python.interpreter == two


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ({"text": "x = 1"}, "file: x is outside a section"),
        ({"text": "[[limits]]\nmax-sessions = 1"}, "file: limits is outside a section"),
        ({"text": "[limit]\nmax-sessions = 1"}, "file: unknown setting limit.max-sessions"),
        ({"text": "[limits]\nmax_sessions = 1"}, "file: unknown setting limits.max_sessions"),
        ({"text": "[limits"}, "file: Expected ']' at the end of a table declaration (at end of document)"),
        ({"flags": {"max-sessions": "1"}}, "flag max-sessions: unknown setting max-sessions."),
        ({"flags": {"limits.max": "1"}}, "flag limits.max: unknown setting limits.max"),
        (
            {"environ": {"REPLCTL_LIMITS_MAX_SESSION": "1"}},
            "environment REPLCTL_LIMITS_MAX_SESSION: there is no such setting",
        ),
        (
            {"environ": {"REPLCTL_BROKER_ENDPOINT": "x"}},
            "environment REPLCTL_BROKER_ENDPOINT: there is no such setting",
        ),
        (
            {"text": "[limits]\nmax-sessions = -1", "origin": "my.toml"},
            "my.toml: limits.max-sessions: Expected `int` >= 0",
        ),
        (
            {"environ": {"REPLCTL_LIMITS_MAX_SESSIONS": "many"}},
            "environment REPLCTL_LIMITS_MAX_SESSIONS: limits.max-sessions: Expected `int`, got `str`",
        ),
        (
            {"flags": {"limits.max-sessions": "true"}},
            "flag limits.max-sessions: limits.max-sessions: Expected `int`, got `bool`",
        ),
        (
            {"flags": {"session.pass-env": '["A", 1]'}},
            "flag session.pass-env: session.pass-env: Expected `str`, got `int`",
        ),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_its_source(layers: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**layers)
    assert str(caught.value) == error


def test_what_cannot_be_used_is_left_out_and_told_and_the_rest_is_shown() -> None:
    text = """
        agents = 3
        [limits]
        max-sessions = "many"
        max-history = 7
        max-sesions = 5
        [sandbox]
        workspaces = ["relative"]
    """
    environ = {"REPLCTL_LIMITS_MAX_QUEUED_EVALS": "-1", "REPLCTL_LIMITS_MAX": "1", "REPLCTL_BROKER_WARM_WORKERS": "3"}
    loaded, problems = load_valid(text, "c.toml", environ, {"limits.max": "1"})
    assert loaded.sources == {
        "limits.max-history": "c.toml",
        "broker.warm-workers": "environment REPLCTL_BROKER_WARM_WORKERS",
    }
    assert loaded.config.limits.max_history == 7
    assert sorted(problem.split(":")[0] for problem in problems) == [
        "c.toml",
        "c.toml",
        "c.toml",
        "c.toml",
        "environment REPLCTL_LIMITS_MAX",
        "environment REPLCTL_LIMITS_MAX_QUEUED_EVALS",
        "flag limits.max",
    ]


def test_of_a_file_that_is_no_toml_nothing_is_used_and_the_line_is_told() -> None:
    loaded, problems = load_valid("[limits]\nmax-sessions = = 3", "c.toml", {"REPLCTL_LIMITS_MAX_HISTORY": "7"})
    assert loaded.config.limits.max_history == 7
    assert problems == ["c.toml: Invalid value (at line 2, column 16)"]


def test_changes_name_the_settings_that_differ() -> None:
    before = load("[limits]\nmax-sessions = 5\n[broker]\ntcp = '127.0.0.1:1'").config
    after = load("[limits]\nmax-sessions = 6\n[[agents]]\nname = 'ada'").config
    assert changed_settings(before, after) == ["broker.tcp", "limits.max-sessions", "agents"]
    assert changed_settings(before, before) == []


def test_what_can_be_reloaded_are_settings() -> None:
    assert {f"{section}.{key}" for section, key, _ in list_settings()} | {"agents", "identities"} > RELOADABLE


def test_places_follow_the_environment() -> None:
    home = {"HOME": "/home/ada"}
    assert runtime_dir(home, 7) == "/tmp/replctl-7"
    assert runtime_dir(home | {"XDG_RUNTIME_DIR": "/run/user/7"}, 7) == "/run/user/7/replctl"
    assert state_dir(home) == "/home/ada/.local/state/replctl"
    assert state_dir(home | {"XDG_STATE_HOME": "/s"}) == "/s/replctl"
    assert config_file(home) == "/home/ada/.config/replctl/config.toml"
    assert config_file(home | {"XDG_CONFIG_HOME": "/c"}) == "/c/replctl/config.toml"
    assert config_file(home | {"REPLCTL_CONFIG": "/my.toml", "XDG_CONFIG_HOME": "/c"}) == "/my.toml"
    own = home | {"REPLCTL_STATE_DIR": "/own/", "XDG_RUNTIME_DIR": "/run/user/7", "XDG_STATE_HOME": "/s"}
    assert (runtime_dir(own, 7), state_dir(own)) == ("/own/run", "/own")
    assert default_endpoint(own, 7) == "ipc:///own/run/broker.sock"
    assert state_dir({}) == "/.local/state/replctl"


def test_a_socket_path_has_to_fit() -> None:
    assert ipc_path("tcp://127.0.0.1:5") is None
    assert ipc_path("ipc:///" + "x" * 98) == "/" + "x" * 98
    for path in ("/" + "x" * 99, "/" + "é" * 50):
        with pytest.raises(ValueError, match="socket path longer than 99 bytes"):
            ipc_path("ipc://" + path)


@pytest.mark.parametrize("setting", ["workspaces", "writable-paths", "readable-paths", "hidden-paths"])
def test_a_path_of_the_sandbox_is_absolute(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"my.toml: sandbox.{setting}: 'here' is not an absolute path"):
        load(f'[sandbox]\n{setting} = ["here"]', "my.toml")


def test_a_protected_path_that_is_no_plain_path_is_an_error_of_the_config() -> None:
    with pytest.raises(ConfigError, match=r"my.toml: sandbox.protected-paths: '\.\./x' is not"):
        load('[sandbox]\nprotected-paths = ["../x"]', "my.toml")


def test_an_absolute_protected_path_is_protected_where_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    config = load(f'[sandbox]\nprotected-paths = ["{tmp_path}/link/golden", "rel"]').config
    assert config.sandbox.policy().protected_paths == [f"{tmp_path}/link/golden", f"{tmp_path}/real/golden", "rel"]

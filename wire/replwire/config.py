"""Settings of one broker, merged from four layers: defaults, file, environment, flags.

Later layers win, key by key. Keys are written as on the wire: `[limits] max-eval-time-ms = 5000`,
`REPLCTL_LIMITS_MAX_EVAL_TIME_MS=5000`, `--set limits.max-eval-time-ms=5000`. An unknown key or a value out of range is
an error in every layer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from replwire.agents import AgentEntry, AgentRules
from replwire.config_paths import located
from replwire.config_schema import Config as Config
from replwire.config_schema import PackagesSection as PackagesSection
from replwire.config_schema import SandboxSection as SandboxSection
from replwire.config_schema import TraceSection as TraceSection
from replwire.identities import Identities
from replwire.limits import Limits
from replwire.network import HostLists
from replwire.policy import Policy, SandboxOverrides, tighten
from replwire.secret_entries import check_secrets

FILE_ONLY = ("sandbox.allow-unsandboxed",)  # not by flags, environment or requests


# Settings that a running broker can reload; their users read them on each use.
RELOADABLE = frozenset(
    {
        "access.admins",
        "agents",
        "identities",
        "broker.idle-exit-ms",
        "broker.warm-workers",
        *(f"sandbox.{name.replace('_', '-')}" for name in HostLists._fields),
        *(f"limits.{field.encode_name}" for field in msgspec.structs.fields(Limits)),
    }
) - {"limits.max-message-bytes", "limits.worker-silence-ms", "limits.hook-time-ms"}


class ConfigError(ValueError):
    """An invalid setting. The message names the key and its source.

    `setting` is empty if the whole of `source` is unusable.
    """

    def __init__(self, text: str, source: str, setting: str = "") -> None:
        super().__init__(text)
        self.source = source
        self.setting = setting


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Settings in force, the source of each dotted key that is not a default, and the config file, if any."""

    config: Config
    sources: dict[str, str]
    file: str | None = None


_LISTS = ("agents", "identities", "extensions", "secrets")


def as_list(setting: str | list[str]) -> list[str]:
    """Return a setting that may be a string or a list as a list without empty strings."""
    return [each for each in ([setting] if isinstance(setting, str) else setting) if each]


def list_settings() -> Iterator[tuple[str, str, Any]]:
    """Yield section, key and default of every scalar setting. Lists of tables are left out."""
    for section in msgspec.structs.fields(Config):
        if not isinstance(section.default, msgspec.Struct):
            continue
        for each in msgspec.structs.fields(type(section.default)):
            default = each.default if each.default is not msgspec.NODEFAULT else each.default_factory()
            yield section.encode_name, each.encode_name, default


def load(
    text: str | None = None,
    origin: str = "file",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    without: Collection[tuple[str, str]] = (),
) -> LoadedConfig:
    """Merge the layers into one validated config.

    Args:
        text: contents of the config file in TOML; None for no file
        origin: name of the file, used in messages
        environ: environment variables
        flags: dotted keys and their values as text
        without: pairs of source and setting to ignore

    Raises:
        ConfigError: a setting is unknown, out of range or set in the wrong layer
    """
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    known = {(section, key) for section, key, _ in list_settings()}

    def put(section: str, key: str, value: Any, source: str) -> None:
        dotted = f"{section}.{key}"
        if (source, dotted) in without:
            return
        if (section, key) not in known:
            raise ConfigError(f"{source}: unknown setting {dotted}", source, dotted)
        if dotted in FILE_ONLY and source != origin:
            raise ConfigError(f"{source}: {dotted} can be set only in the config file", source, dotted)
        merged.setdefault(section, {})[key] = value
        sources[dotted] = source

    for section, table in _parse_toml(text, origin).items():
        if (origin, section) in without:
            continue
        if section in _LISTS:
            merged[section], sources[section] = table, origin
            continue
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {section} is outside a section", origin, section)
        for key, value in table.items():
            put(section, key, value, origin)
    names = {env_name(section, key): (section, key) for section, key in known}
    prefixes = tuple({f"REPLCTL_{section}_".upper() for section, _ in known})
    for name, value in sorted((environ or {}).items()):
        if name in names:
            put(*names[name], parse_value(value), f"environment {name}")
        elif name.startswith(prefixes) and (name, name) not in without:
            raise ConfigError(f"environment {name}: there is no such setting", name, name)
    for dotted, value in (flags or {}).items():
        section, _, key = dotted.partition(".")
        put(section, key, parse_value(value), f"flag {dotted}")
    return LoadedConfig(_build_config(merged, sources), sources)


def load_valid(
    text: str | None = None,
    origin: str = "file",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> tuple[LoadedConfig, list[str]]:
    """Load what is valid and return it with the list of problems.

    For displaying settings; a broker that starts uses `load`.
    """
    problems: list[str] = []
    without: set[tuple[str, str]] = set()
    while True:
        try:
            return load(text, origin, environ, flags, without), problems
        except ConfigError as error:
            problems.append(str(error))
            wrong = (error.source, error.setting)
            if not error.setting or wrong in without:  # the whole file is unusable
                if text is None:
                    raise
                text = None
            without.add(wrong)


def changed_settings(before: Config, after: Config) -> list[str]:
    """Return the dotted keys of settings that differ."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    single = [f"{section}.{key}" for section, key, _ in list_settings() if old[section][key] != new[section][key]]
    return [*single, *(name for name in _LISTS if old[name] != new[name])]


def env_name(section: str, key: str) -> str:
    """Return the environment variable of a setting.

    `broker.endpoint` has the short name that every command reads.
    """
    if (section, key) == ("broker", "endpoint"):
        return "REPLCTL_ENDPOINT"
    return f"REPLCTL_{section}_{key}".replace("-", "_").upper()


def _parse_toml(text: str | None, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text or "")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: {error}", origin) from None


def parse_value(text: str) -> Any:
    """Parse a value from the environment or a flag as TOML; anything else is a string."""
    try:
        table = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["v"] if len(table) == 1 else text


def _build_config(merged: dict[str, Any], sources: dict[str, str]) -> Config:
    try:
        config = msgspec.convert(merged, Config)
    except msgspec.ValidationError as error:
        raise _config_error(error, merged, sources) from None
    try:
        AgentRules(config.agents)
    except ValueError as error:
        raise ConfigError(f"{sources['agents']}: {error}", sources["agents"], "agents") from None
    try:
        Identities(config.identities)
    except ValueError as error:
        source = sources["identities"]
        raise ConfigError(f"{source}: identities: {error}", source, "identities") from None
    try:
        check_secrets(config.secrets)
    except ValueError as error:
        source = sources["secrets"]
        raise ConfigError(f"{source}: {error}", source, "secrets") from None
    _check_hibernation(config, sources)
    try:
        policy = config.sandbox.policy()
    except ValueError as error:
        setting = f"sandbox.{str(error).partition(':')[0]}"
        source = sources.get(setting, "settings")
        raise ConfigError(f"{source}: sandbox.{error}", source, setting) from None
    if policy.profile != "off":
        _check_agents(policy, config.agents, sources.get("agents", "settings"))
    return config


def _check_hibernation(config: Config, sources: dict[str, str]) -> None:
    """Check that sessions are hibernated before they are closed.

    Raises:
        ConfigError: they are not
    """
    after, closed = config.session.hibernate_after_ms, config.limits.session_idle_timeout_ms
    if after and 0 < closed <= after:
        key = "session.hibernate-after-ms"
        err = f"{key}: {after} is not less than limits.session-idle-timeout-ms = {closed}, which closes sessions first"
        raise ConfigError(f"{sources.get(key, 'settings')}: {err}", sources.get(key, "settings"), key)


def _check_agents(policy: Policy, agents: list[AgentEntry], source: str) -> None:
    """Check that no agent's rule grants more than the sandbox.

    Raises:
        ConfigError: one does
    """
    for agent in agents:
        for rule in (agent, *agent.bindings):
            try:
                tighten(policy, rule.sandbox_overrides() or SandboxOverrides())
            except ValueError as error:
                raise ConfigError(f"{source}: agents: {agent.name}: {error}", source, "agents") from None


def _config_error(error: msgspec.ValidationError, merged: dict[str, Any], sources: dict[str, str]) -> ConfigError:
    what, _, where = str(error).partition(" - at ")
    dotted, entry = located(where.strip("`").removeprefix("$."), merged)
    source = sources.get(dotted, "settings")
    return ConfigError(f"{source}: {dotted}{entry}: {what}", source, dotted)

"""Settings of one broker, merged from four layers: defaults, file, environment, flags.

Later layers win, key by key. Keys are written as on the wire: `[limits] max-eval-time-ms = 5000`,
`REPLCTL_LIMITS_MAX_EVAL_TIME_MS=5000`, `--set limits.max-eval-time-ms=5000`. An unknown key or a value out of range is
an error in every layer.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from replwire.agents import AgentEntry, AgentRules
from replwire.config_paths import located
from replwire.extensions import Extension
from replwire.identities import Identities, Identity
from replwire.limits import DAY_MS, MINUTE_MS, Limits
from replwire.policy import PROTECTED, Network, Policy, Profile, Read, SandboxLimits

FILE_ONLY = ("sandbox.allow-unsandboxed",)  # not by flags, environment or requests


# Settings that a running broker can reload; their users read them on each use.
RELOADABLE = frozenset(
    {
        "access.admins",
        "agents",
        "identities",
        "broker.idle-exit-ms",
        "broker.warm-workers",
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


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    pass


class BrokerSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Addresses and lifetime of the broker."""

    endpoint: Annotated[str, Meta(description="address of the broker; empty: the user's own ipc socket")] = ""
    tcp: Annotated[
        str | list[str],
        Meta(description="HOST:PORT, or a list of them, for JSON lines over TCP; empty: none. 127.0.0.1:5555 is usual"),
    ] = ""
    unix: Annotated[
        str | list[str], Meta(description="path, or a list of them, of Unix sockets for JSON lines; empty: none")
    ] = ""
    idle_exit_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=30 * DAY_MS,
            description="a broker started by a command ends after this long without sessions; 0: never",
        ),
    ] = 30 * MINUTE_MS
    warm_workers: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="workers kept ready for new sessions and resets; of a runtime or environment other than the "
            "default one is kept ready once a session has it",
        ),
    ] = 2
    publish: Annotated[
        str,
        Meta(description="endpoint of a PUB socket with all events, `ipc://PATH` or loopback `tcp://`; empty: none"),
    ] = ""
    audit: Annotated[
        bool, Meta(description="write one line for each request into `audit.ndjson` in the state folder")
    ] = True
    audit_bytes: Annotated[
        int, Meta(ge=4096, le=1 << 40, description="size at which the audit file becomes `audit.ndjson.1`")
    ] = 100_000_000


class PythonSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The Python runtime."""

    interpreter: Annotated[str, Meta(description="python that sessions run; empty: the one that runs replctl")] = ""


class NodeSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The Node runtime."""

    interpreter: Annotated[str, Meta(description="node that sessions run; empty: the one on the PATH, if any")] = ""


class BashSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The Bash runtime."""

    interpreter: Annotated[str, Meta(description="bash that sessions run; empty: the one on the PATH, if any")] = ""


class AccessSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Administrators of the broker."""

    admins: Annotated[
        list[str],
        Meta(
            description="identities that may do everything, beside the broker's own user and root: `uid:N`, key names"
        ),
    ] = []


class SandboxSection(SandboxLimits, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Sandbox policy for sessions; see docs/security.md. Requests may tighten it, never loosen it."""

    allow_unsandboxed: Annotated[
        bool,
        Meta(
            description="true: where this machine cannot sandbox, or `profile` is `off`, sessions run without. For the "
            "config file alone"
        ),
    ] = False
    profile: Annotated[
        Profile, Meta(description="what sessions may write: nothing, or their own folder; `off` is no sandbox at all")
    ] = "workspace-write"
    network: Annotated[Network, Meta(description="`host`: sessions have this machine's network")] = "none"
    read: Annotated[
        Read, Meta(description="what sessions may read beyond their runtime and their folder: nothing, or this machine")
    ] = "minimal"
    workspaces: Annotated[
        list[str],
        Meta(
            description="where sessions' folders may lie; empty: anywhere but homes, what they hide, and system folders"
        ),
    ] = field(default_factory=list)
    writable_paths: Annotated[list[str], Meta(description="what sessions may write beside their folder")] = field(
        default_factory=list
    )
    readable_paths: Annotated[list[str], Meta(description="what sessions may read beside their runtime")] = field(
        default_factory=list
    )
    protected_paths: Annotated[
        list[str], Meta(description="not to be written although it lies in a folder that may be")
    ] = field(default_factory=lambda: list(PROTECTED))
    hidden_paths: Annotated[list[str], Meta(description="seen empty, wherever it lies")] = field(default_factory=list)

    def policy(self) -> Policy:
        """Build the sandbox policy, with symlinks in paths resolved.

        Raises:
            ValueError: a path is not absolute or not normalised
        """
        limits = SandboxLimits(**{name: getattr(self, name) for name in SandboxLimits.__struct_fields__})
        return Policy(
            profile=self.profile,
            network=self.network,
            read=self.read,
            limits=limits,
            protected_paths=[each for path in self.protected_paths for each in _with_real(path)],
            **{name: [_real(name, path) for path in getattr(self, name)] for name in _ABSOLUTE},
        )


_ABSOLUTE = ("workspaces", "writable_paths", "readable_paths", "hidden_paths")


def _real(name: str, path: str) -> str:
    found = os.path.expanduser(path)
    if not found.startswith("/"):
        raise ValueError(f"{name.replace('_', '-')}: {path!r} is not an absolute path")
    return os.path.realpath(found)


def _with_real(path: str) -> list[str]:
    """Return a relative path unchanged, an absolute one with and without symlinks resolved.

    Paths are compared as text, so both spellings have to be listed.
    """
    found = os.path.expanduser(path)
    return list(dict.fromkeys((found, os.path.realpath(found)))) if found.startswith("/") else [path]


class SessionSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Environment and file access of sessions."""

    pass_env: Annotated[
        list[str],
        Meta(description="environment variables of the broker that sessions may see, beyond the usual ones"),
    ] = []
    load_paths: Annotated[list[str], Meta(description="folders whose files `load-file` may run; empty: none")] = []


class TranscriptSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Storage of session transcripts: canonical events, in `transcripts` in the state directory."""

    backend: Annotated[
        str,
        Meta(
            description="`jsonl`: a file a session; `sqlite`: one file with full-text search; `off`: nothing is kept; "
            "or that of an extension"
        ),
    ] = "jsonl"
    max_session_bytes: Annotated[
        int, Meta(ge=4096, le=1 << 40, description="of one session; its oldest half goes when there is more")
    ] = 20_000_000
    max_bytes: Annotated[
        int, Meta(ge=4096, le=1 << 44, description="of all; transcripts of ended sessions go, the oldest first")
    ] = 2_000_000_000
    max_age_days: Annotated[
        int, Meta(ge=1, le=36_500, description="transcripts that nothing was added to for this long go")
    ] = 90


class MetricsSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Prometheus metrics."""

    listen: Annotated[
        str,
        Meta(description="loopback HOST:PORT that answers `GET /metrics`; empty: none. 127.0.0.1:9464 is usual"),
    ] = ""


class TraceSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Traces for an OpenTelemetry collector, one per eval. Requires the extra `otel`."""

    otlp: Annotated[
        str,
        Meta(
            description="http(s) URL of a collector that takes OTLP over HTTP; empty: none. `http://127.0.0.1:4318` is "
            "usual"
        ),
    ] = ""
    code: Annotated[bool, Meta(description="true: traces have the code of evals; never their output or values")] = False


class Config(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """All settings of a broker."""

    broker: BrokerSection = BrokerSection()
    python: PythonSection = PythonSection()
    node: NodeSection = NodeSection()
    bash: BashSection = BashSection()
    access: AccessSection = AccessSection()
    session: SessionSection = SessionSection()
    sandbox: SandboxSection = SandboxSection()
    transcript: TranscriptSection = TranscriptSection()
    metrics: MetricsSection = MetricsSection()
    trace: TraceSection = TraceSection()
    limits: Limits = Limits()
    agents: list[AgentEntry] = []
    identities: list[Identity] = []
    extensions: list[Extension] = []


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Settings in force, the source of each dotted key that is not a default, and the config file, if any."""

    config: Config
    sources: dict[str, str]
    file: str | None = None


_LISTS = ("agents", "identities", "extensions")


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
            raise ConfigError(f"{source}: {dotted} can be set in the config file alone", source, dotted)
        merged.setdefault(section, {})[key] = value
        sources[dotted] = source

    for section, table in _parse_toml(text, origin).items():
        if (origin, section) in without:
            continue
        if section in _LISTS:
            merged[section], sources[section] = table, origin
            continue
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {section} stands outside a section", origin, section)
        for key, value in table.items():
            put(section, key, value, origin)
    names = {env_name(section, key): (section, key) for section, key in known}
    prefixes = tuple({f"REPLCTL_{section}_".upper() for section, _ in known})
    for name, value in sorted((environ or {}).items()):
        if name in names:
            put(*names[name], _parse_value(value), f"environment {name}")
        elif name.startswith(prefixes) and (name, name) not in without:
            raise ConfigError(f"environment {name}: no setting has this name", name, name)
    for dotted, value in (flags or {}).items():
        section, _, key = dotted.partition(".")
        put(section, key, _parse_value(value), f"flag {dotted}")
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


def _parse_value(text: str) -> Any:
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
        config.sandbox.policy()
    except ValueError as error:
        setting = f"sandbox.{str(error).partition(':')[0]}"
        source = sources.get(setting, "settings")
        raise ConfigError(f"{source}: sandbox.{error}", source, setting) from None
    return config


def _config_error(error: msgspec.ValidationError, merged: dict[str, Any], sources: dict[str, str]) -> ConfigError:
    what, _, where = str(error).partition(" - at ")
    dotted, entry = located(where.strip("`").removeprefix("$."), merged)
    source = sources.get(dotted, "settings")
    return ConfigError(f"{source}: {dotted}{entry}: {what}", source, dotted)

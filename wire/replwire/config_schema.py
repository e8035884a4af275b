"""Settings of a broker as structs, one per section of the config file."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from msgspec import field

from replwire.agents import AgentEntry, PermissionRule
from replwire.documented import documented
from replwire.extensions import Extension
from replwire.identities import Identity
from replwire.limits import DAY_MS, MINUTE_MS, Limits
from replwire.policy import PROTECTED, Checkpoints, Network, Policy, Profile, Read, SandboxLimits
from replwire.secret_entries import SecretEntry


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    pass


class BrokerSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Addresses and lifetime of the broker."""

    endpoint: Annotated[str, documented("address of the broker; empty: the user's own ipc socket")] = ""
    tcp: Annotated[
        str | list[str],
        documented("HOST:PORT, or a list, for JSON lines over TCP; empty: none. 127.0.0.1:5555 is conventional"),
    ] = ""
    unix: Annotated[str | list[str], documented("path, or a list, of Unix sockets for JSON lines; empty: none")] = ""
    idle_exit_ms: Annotated[
        int,
        documented(
            "time without sessions after which a broker started by a command exits; 0: never", low=0, high=30 * DAY_MS
        ),
    ] = 30 * MINUTE_MS
    orphan_ttl_ms: Annotated[
        int,
        documented(
            "time for which sessions outlive a broker that was killed or got SIGTERM, until another one at its endpoint"
            " goes on with them; 0: they end with it",
            low=0,
            high=30 * DAY_MS,
        ),
    ] = 10 * MINUTE_MS
    warm_workers: Annotated[
        int,
        documented(
            "warm workers for new sessions and resets; other runtimes and environments in use get one each",
            low=0,
            high=100,
        ),
    ] = 2
    publish: Annotated[
        str,
        documented("endpoint of a PUB socket with all events, `ipc://PATH` or loopback `tcp://`; empty: none"),
    ] = ""
    audit: Annotated[bool, documented("write one line per request to `audit.ndjson` in the state directory")] = True
    audit_bytes: Annotated[
        int, documented("size at which the audit file is rotated to `audit.ndjson.1`", low=4096, high=1 << 40)
    ] = 100_000_000


class PythonSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The Python runtime."""

    interpreter: Annotated[str, documented("Python interpreter of sessions; empty: the one that runs replctl")] = ""


class NodeSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The Node runtime."""

    interpreter: Annotated[str, documented("Node program of sessions; empty: the one on the PATH, if any")] = ""


class BashSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """The Bash runtime."""

    interpreter: Annotated[str, documented("Bash program of sessions; empty: the one on the PATH, if any")] = ""


class AccessSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Administrators of the broker."""

    admins: Annotated[
        list[str],
        documented("admin identities besides the broker's own user and root: `uid:N`, key names"),
    ] = []


class SandboxSection(SandboxLimits, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Sandbox policy for sessions; see docs/security.md. Requests may tighten it, never loosen it."""

    allow_unsandboxed: Annotated[
        bool,
        documented(
            "true: run sessions unsandboxed if the machine cannot sandbox or `profile` is `off`. Only in the "
            "config file"
        ),
    ] = False
    profile: Annotated[
        Profile, documented("what sessions may write: nothing, or their own directory; `off`: no sandbox")
    ] = "workspace-write"
    network: Annotated[
        Network,
        documented("`none`; `list`: the hosts in `allowed-hosts`; `host`: sessions use this machine's network"),
    ] = "none"
    allowed_hosts: Annotated[
        list[str],
        documented(
            'with `network = "list"`: `NAME`, `*.NAME`, `*` or an IPv4 address, each with `:PORT` (otherwise 80 and'
            " 443), and `@python`, `@node`, `@git`"
        ),
    ] = field(default_factory=list)
    denied_hosts: Annotated[
        list[str], documented("the same entries, which win; without a port they mean every port")
    ] = field(default_factory=list)
    more_hosts: Annotated[
        PermissionRule,
        documented(
            "whether `allow-hosts` may add to a session's list; `ask`: with a person's approval. An agent may have its"
            " own `more-hosts`"
        ),
    ] = "deny"
    private_networks: Annotated[
        list[str], documented("networks such as `10.0.0.0/8` that allowed names may lead to; empty: public ones only")
    ] = field(default_factory=list)
    host_addresses: Annotated[
        list[str],
        documented("`NAME=ADDRESS` or `NAME=ADDRESS:PORT`: where names lead, instead of the resolver's answer"),
    ] = field(default_factory=list)
    upstream_proxy: Annotated[
        str, documented("`http://HOST:PORT` of a proxy through which listed hosts are reached; empty: none")
    ] = ""
    read: Annotated[
        Read, documented("what sessions may read besides their runtime and directory: nothing, or this machine")
    ] = "minimal"
    workspaces: Annotated[
        list[str],
        documented(
            "where sessions' directories may be; empty: anywhere except homes, hidden files in them, and system"
            " directories"
        ),
    ] = field(default_factory=list)
    writable_paths: Annotated[list[str], documented("paths sessions may write besides their directory")] = field(
        default_factory=list
    )
    readable_paths: Annotated[list[str], documented("paths sessions may read besides their runtime")] = field(
        default_factory=list
    )
    protected_paths: Annotated[list[str], documented("write-protected paths inside writable directories")] = field(
        default_factory=lambda: list(PROTECTED)
    )
    hidden_paths: Annotated[list[str], documented("paths shown empty, wherever they are")] = field(default_factory=list)

    def policy(self) -> Policy:
        """Build the sandbox policy, with symlinks in paths resolved.

        Raises:
            ValueError: a path is not absolute or not normalised
        """
        limits = SandboxLimits(**{name: getattr(self, name) for name in SandboxLimits.__struct_fields__})
        return Policy(
            profile=self.profile,
            network=self.network,
            allowed_hosts=self.allowed_hosts,
            denied_hosts=self.denied_hosts,
            private_networks=self.private_networks,
            host_addresses=self.host_addresses,
            upstream_proxy=self.upstream_proxy,
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
        documented("environment variables of the broker passed to sessions besides the usual ones"),
    ] = []
    load_paths: Annotated[list[str], documented("directories whose files `load-file` may run; empty: none")] = []
    checkpoints: Annotated[
        Checkpoints,
        documented(
            "`auto`: a checkpoint after each eval, while the session idles; `manual`: by request only; `off`: none"
        ),
    ] = "auto"
    checkpoint_files: Annotated[
        bool,
        documented("checkpoints keep the files of the session's directory too, and a rollback brings them back"),
    ] = False
    hibernate_after_ms: Annotated[
        int,
        documented("idle time, in ms, after which a session is hibernated; 0: never", low=0, high=365 * 86_400_000),
    ] = 0


class PackagesSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Packages that sessions install with `env`; see docs/packages.md."""

    install: Annotated[
        PermissionRule,
        documented("`ask`: only with a person's approval; `deny`: never. An agent may have its own `packages`"),
    ] = "allow"
    builds: Annotated[
        bool,
        documented("true: build packages without a wheel, which runs their code in the installer's sandbox"),
    ] = False
    cache_bytes: Annotated[
        int, documented("size of the common cache of downloads at which it is emptied", low=1 << 20, high=1 << 44)
    ] = 10_000_000_000


class TranscriptSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Storage of session transcripts: canonical events, in `transcripts` in the state directory."""

    backend: Annotated[
        str,
        documented(
            "`jsonl`: one file per session; `sqlite`: one file with full-text search; `off`: no transcripts; or"
            " an extension's backend"
        ),
    ] = "jsonl"
    max_session_bytes: Annotated[
        int, documented("size of one transcript; beyond it the older half is deleted", low=4096, high=1 << 40)
    ] = 20_000_000
    max_bytes: Annotated[
        int,
        documented(
            "size of all transcripts; beyond it those of ended sessions are deleted, oldest first",
            low=4096,
            high=1 << 44,
        ),
    ] = 2_000_000_000
    max_age_days: Annotated[
        int, documented("days after the last event when a transcript is deleted", low=1, high=36_500)
    ] = 90


class MetricsSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Prometheus metrics."""

    listen: Annotated[
        str,
        documented("loopback HOST:PORT that serves `GET /metrics`; empty: none. 127.0.0.1:9464 is conventional"),
    ] = ""


class TraceSection(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Traces for an OpenTelemetry collector, one per eval. Requires the extra `otel`."""

    otlp: Annotated[
        str,
        documented("http(s) URL of an OTLP/HTTP collector; empty: none. `http://127.0.0.1:4318` is conventional"),
    ] = ""
    code: Annotated[
        bool, documented("true: include the code of evals in traces; output and values are never included")
    ] = False


class Config(_Section, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """All settings of a broker."""

    broker: BrokerSection = BrokerSection()
    python: PythonSection = PythonSection()
    node: NodeSection = NodeSection()
    bash: BashSection = BashSection()
    access: AccessSection = AccessSection()
    session: SessionSection = SessionSection()
    sandbox: SandboxSection = SandboxSection()
    packages: PackagesSection = PackagesSection()
    transcript: TranscriptSection = TranscriptSection()
    metrics: MetricsSection = MetricsSection()
    trace: TraceSection = TraceSection()
    limits: Limits = Limits()
    agents: list[AgentEntry] = []
    identities: list[Identity] = []
    extensions: list[Extension] = []
    secrets: list[SecretEntry] = []

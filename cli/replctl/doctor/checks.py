"""All checks, in reading order: prerequisites of others first."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping

from replctl.client.address import absolute_endpoint
from replctl.client.errors import ReplError
from replctl.doctor import broker, host, network, sandbox, settings, sockets
from replctl.doctor.finding import Finding, fail
from replctl.settings import salvage_settings
from replwire.config import Config, as_list
from replwire.paths import default_endpoint, state_dir

# Variables that an interpreter gets from the broker; the self-test needs no more.
_ENV = ("PATH", "HOME", "LANG", "TMPDIR")


def run_checks(endpoint: str | None, path: str | None, environ: Mapping[str, str], uid: int) -> list[Finding]:
    """Run all checks. Each has its own timeout; together they take about half a second."""
    loaded, problems = salvage_settings(path, {})
    config = loaded.config
    state = state_dir(environ)
    env = {name: environ[name] for name in _ENV if name in environ}
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("python", host.python),
        ("libzmq", host.libzmq),
        ("machine", host.machine),
        ("config", lambda: settings.config(path, loaded, problems, environ, uid)),
        ("runtimes", lambda: settings.interpreters(config, environ.get("PATH"))),
        ("sandbox", lambda: sandbox.sandbox(config.sandbox, state, env)),
        ("network", lambda: network.network(config.sandbox, config.secrets, environ)),
        ("state", lambda: [*sockets.directory("state", state, uid), *sockets.secrets(state)]),
        ("sockets", lambda: _socket_checks(endpoint, config, environ, state, uid)),
        ("descriptors", lambda: host.descriptors(config)),
        ("disk", lambda: host.disk(config, state, tempfile.gettempdir())),
        ("clock", lambda: host.clock(state)),
    ]
    return [finding for name, check in checks for finding in _run_check(name, check)]


def _run_check(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run a check; an error in the check becomes a finding."""
    try:
        return list(check())
    except (OSError, ValueError) as error:
        return [fail(name, str(error), "the check failed", "see the message; run this as the broker's user")]
    except ReplError as error:
        return [
            fail(
                name,
                error.message,
                "the setting is invalid",
                "correct it: --endpoint, REPLCTL_ENDPOINT or the config file",
            )
        ]


def _socket_checks(flag: str | None, config: Config, environ: Mapping[str, str], state: str, uid: int) -> list[Finding]:
    named = flag or environ.get("REPLCTL_ENDPOINT") or config.broker.endpoint
    endpoint = absolute_endpoint(named or default_endpoint(environ, uid))
    more: list[Finding] = []
    for unix in as_list(config.broker.unix):
        more += list(sockets.directory("sockets", os.path.dirname(os.path.abspath(unix)), uid))
    return [*sockets.listener(endpoint, state, uid), *more, *broker.broker(endpoint, state)]

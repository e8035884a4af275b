"""Units of systemd for `replctl service`. Those of a whole machine are the files of `deploy/`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

_USER_UNIT = """\
# Written by `replctl service install`.
[Unit]
Description=replctl broker: REPL sessions for agents

[Service]
Type=exec
UMask=0077
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
{environment}# SIGINT goes to the broker alone: it drains, notifies waiting clients, and stops its workers itself.
KillMode=mixed
KillSignal=SIGINT
TimeoutStopSec=60s
Restart=on-failure
RestartSec=1s
# 2: invalid configuration. A restart would fail in the same way.
RestartPreventExitStatus=2
# Sessions get control groups below the unit's own.
Delegate=yes
OOMPolicy=continue

[Install]
WantedBy=default.target
"""
_PROGRAM, _CONFIG = "/opt/replctl/bin/replctl", "/etc/replctl/replctl.toml"


def user_unit(program: str, config: str | None, environment: Mapping[str, str]) -> str:
    """Return the unit of one user's broker.

    Args:
        program: Path of `replctl`.
        config: Path of the broker's config file; None for the user's own.
        environment: Environment variables of the broker.
    """
    words = (program, "serve", *(("--config", config) if config else ()))
    command = " ".join(_quote(word).replace("$", "$$") for word in words)
    lines = "".join(f"Environment={_quote(f'{name}={value}')}\n" for name, value in environment.items())
    return _USER_UNIT.format(command=command, environment=lines)


def system_unit(program: str, config: str | None) -> str:
    """Return the unit of a machine's broker, with these paths."""
    return _text("replctl.service").replace(_PROGRAM, _quote(program)).replace(_CONFIG, _quote(config or _CONFIG))


def system_socket() -> str:
    """Return the socket unit for the machine's agents."""
    return _text("replctl.socket")


def _text(name: str) -> str:
    return files("replctl").joinpath("units", name).read_text(encoding="utf-8")


def _quote(word: str) -> str:
    """Return a word for systemd's own syntax, in which `%` has a meaning."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if escaped != word or " " in word else word

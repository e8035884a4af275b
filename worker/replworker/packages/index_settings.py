"""Index configuration of the broker's user, as pip and uv have it, for the installer alone.

uv does not read pip's files, so what they say becomes variables of uv where uv's own configuration says nothing.
Sources: pip "Configuration", uv "Configuration files" and "Environment variables".
"""

from __future__ import annotations

import configparser
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from replwire.packages import InstallerSettings

_PYPI = "https://pypi.org/simple"
_PYPI_HOSTS = ("pypi.org", "files.pythonhosted.org")
_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT")
_PIP_TO_UV = {  # where both exist, the option of pip and the variable of uv; lists are separated by spaces in both
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "HTTPS_PROXY",
}
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
_OURS = ("UV_CACHE_DIR", "UV_TARGET", "UV_PYTHON", "UV_PROJECT", "UV_WORKING_DIR", "PIP_TARGET", "PIP_PREFIX")
LOOPBACK_NAME = "loopback.internal"  # for indexes on this machine; inside a sandbox 127.0.0.1 is its own
_LOOPBACK_HOST = re.compile(r"(//(?:[^/@\s\"']*@)?)(?:localhost|127(?:\.\d+){3})(?=[:/\s\"']|$)")
_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """Configuration of an installer: variables, files of its own, paths that it reads, and hosts that it reaches."""

    env: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)  # name in the job's directory to contents
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def through_proxy(self) -> IndexSettings:
        """Return the same for a sandbox with its own network, where this machine's loopback has a name."""
        return IndexSettings(
            {name: _name_loopback(value) for name, value in self.env.items()},
            {name: _name_loopback(text) for name, text in self.files.items()},
            self.paths,
            tuple(_name_loopback(f"//{host}").removeprefix("//") for host in self.hosts),
        )


def read_python_settings(settings: InstallerSettings) -> IndexSettings:
    """Read the configuration of uv and pip.

    Raises:
        ValueError: a file cannot be parsed
    """
    env = {name: value for name, value in settings.env.items() if name not in _OURS}
    config = _read_uv_config(settings)
    pip = _read_pip_config(settings)
    own = _uv_indexes(config)
    if not own and not any(name.startswith(("UV_DEFAULT_INDEX", "UV_INDEX")) for name in env):
        env |= {_PIP_TO_UV[name]: value for name, value in pip.items() if name in ("index-url", "extra-index-url")}
    for name, value in pip.items():
        if name in _PIP_TO_UV and "index" not in name:
            env.setdefault(_PIP_TO_UV[name], value)
    files = {} if config is None else {"uv.toml": config.text}
    netrc = Path(settings.env.get("NETRC") or f"{settings.home}/.netrc")
    if netrc.is_file():
        files["netrc"] = netrc.read_text()
    listed = [env.get(name, "") for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")]
    more = [env.get(name, "") for name in ("UV_FIND_LINKS", *_PROXIES)]
    urls = [*own, *" ".join([*listed, *more]).split()]
    if not _has_default_index(config, env):
        urls.append(_PYPI)
    paths = [*_local_paths([*urls, *env.get("UV_CONSTRAINT", "").split()]), *(env.get(name, "") for name in _FILES)]
    return IndexSettings(env, files, existing_paths(paths), url_hosts(urls))


def redact(text: str) -> str:
    """Remove credentials from URLs in a tool's output."""
    return _CREDENTIALS.sub(r"\1***@", text)


def _name_loopback(text: str) -> str:
    return _LOOPBACK_HOST.sub(rf"\1{LOOPBACK_NAME}", text)


@dataclass(frozen=True, slots=True)
class _UvConfig:
    text: str
    table: dict[str, Any]


def _read_uv_config(settings: InstallerSettings) -> _UvConfig | None:
    base = settings.env.get("XDG_CONFIG_HOME") or f"{settings.home}/.config"
    for path in (settings.env.get("UV_CONFIG_FILE"), f"{base}/uv/uv.toml", "/etc/uv/uv.toml"):
        if path and os.path.isfile(path):
            text = Path(path).read_text()
            return _UvConfig(text, tomllib.loads(text))
    return None


def _has_default_index(config: _UvConfig | None, env: dict[str, str]) -> bool:
    """Return whether another index stands in for PyPI, or none does."""
    if any(env.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_NO_INDEX")):
        return True
    tables = [] if config is None else [config.table, config.table.get("pip") or {}]
    single = any(table.get(name) for table in tables for name in ("index-url", "default-index", "no-index"))
    return single or any(entry.get("default") for table in tables for entry in table.get("index") or [])


def _uv_indexes(config: _UvConfig | None) -> list[str]:
    if config is None:
        return []
    tables = [config.table, config.table.get("pip") or {}]
    entries = [entry.get("url", "") for table in tables for entry in table.get("index") or []]
    single = [table[name] for table in tables for name in ("index-url", "default-index") if table.get(name)]
    several = [url for table in tables for name in ("extra-index-url", "find-links") for url in table.get(name) or []]
    return [*entries, *single, *several]


def _read_pip_config(settings: InstallerSettings) -> dict[str, str]:
    """Read pip's files in its order, later ones win, and its variables, which win over all.

    Raises:
        ValueError: a file cannot be parsed
    """
    found: dict[str, str] = {}
    for path in _pip_files(settings):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except configparser.Error as error:
            raise ValueError(f"pip's configuration {path} cannot be read: {error.message}") from None
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {name.replace("_", "-"): " ".join(value.split()) for name, value in parser.items(section)}
    for name, value in settings.env.items():
        if name.startswith("PIP_"):
            found[name[4:].lower().replace("_", "-")] = value
    return {name: value for name, value in found.items() if value}


def _pip_files(settings: InstallerSettings) -> Iterator[str]:
    if settings.env.get("PIP_CONFIG_FILE") == os.devnull:
        return
    for directory in reversed((settings.env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
        yield f"{directory}/pip/pip.conf"
    base = settings.env.get("XDG_CONFIG_HOME") or f"{settings.home}/.config"
    yield from ("/etc/pip.conf", f"{settings.home}/.pip/pip.conf", f"{base}/pip/pip.conf")
    if settings.env.get("PIP_CONFIG_FILE"):
        yield settings.env["PIP_CONFIG_FILE"]


def _local_paths(urls: list[str]) -> Iterator[str]:
    """Yield the directories of local indexes, whose links may lead to a directory beside."""
    for url in urls:
        path = urlsplit(url).path if url.startswith("file:") else url if url.startswith("/") else ""
        if path:
            yield os.path.dirname(path.rstrip("/")) if path.rstrip("/").endswith("/simple") else path


def existing_paths(paths: list[str]) -> tuple[str, ...]:
    """Return the paths that exist, with symlinks resolved."""
    return tuple(dict.fromkeys(os.path.realpath(path) for path in paths if path and os.path.exists(path)))


def url_hosts(urls: list[str]) -> tuple[str, ...]:
    """Return hosts and ports of HTTP URLs, as entries of a list of hosts."""
    found: list[str] = []
    for url in urls:
        parts = urlsplit(url.partition("=")[2] if "=http" in url else url)
        if parts.scheme in ("http", "https") and parts.hostname:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            found += [f"{host}:{port}" for host in (_PYPI_HOSTS if parts.hostname == "pypi.org" else (parts.hostname,))]
    return tuple(dict.fromkeys(found))

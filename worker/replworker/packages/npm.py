"""npm as an installer: its command line, and the registry configuration of the broker's user (npm "config")."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from replwire.packages import InstallerSettings, parse_node_package
from replworker.packages.index_settings import IndexSettings, existing_paths, url_hosts
from replworker.packages.tools import InstallRequest

_REGISTRY = "https://registry.npmjs.org/"
_OWN = {
    "npm_config_ignore_scripts": "true",  # so no code of a package runs before the session imports it
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
    "npm_config_progress": "false",
    "npm_config_color": "false",
    "npm_config_logs_max": "0",
    "npm_config_fetch_retries": "1",
    "npm_config_replace_registry_host": "always",  # the installer reaches the registry and no other host
    "npm_config_install_links": "true",
}
_SETTING = re.compile(r"^\s*([@\w/:.-]+?)\s*=\s*(.*?)\s*$", re.M)
_PROXIES = ("https-proxy", "http-proxy", "proxy")
_METADATA = ("package.json", "package-lock.json", "node_modules/.package-lock.json")  # that npm may write in place


@dataclass(frozen=True, slots=True)
class NpmTool:
    """npm: makes `node_modules` what `package.json` requires, and keeps the versions of its lock file."""

    program: str
    script: str
    index: IndexSettings
    incremental = True

    def paths(self) -> tuple[str, ...]:
        """Return paths that it reads beside node's own installation and its registry's configuration."""
        return (os.path.dirname(os.path.dirname(self.script)),)

    def environment(self, cache: str, job: str) -> dict[str, str]:
        """Return its variables, for its cache and the directory of the job."""
        files = {"npm_config_userconfig": f"{job}/npmrc", "npm_config_globalconfig": f"{job}/npmrc-global"}
        return {**_OWN, **files, "npm_config_cache": f"{cache}/npm"}

    def prepare(self, target: str, requirements: Sequence[str]) -> None:
        """Write what it shall install. Its own files are copied, since an older generation shares them by hard links.

        Raises:
            OSError: they cannot be written
        """
        for name in _METADATA:
            with suppress(FileNotFoundError):
                data = Path(target, name).read_bytes()
                Path(target, name).unlink()
                Path(target, name).write_bytes(data)
        wanted = map(parse_node_package, requirements)
        table = {"private": True, "dependencies": {each.name: each.version for each in wanted}}
        Path(target, "package.json").write_text(json.dumps(table))

    def install(self, wanted: InstallRequest) -> list[str]:
        """Return the command that installs packages."""
        action = ["update", "--no-save"] if wanted.upgrades else ["install"]
        argv = [self.program, self.script, *action, "--prefix", wanted.target]
        argv += ["--dry-run"] if wanted.dry_run else []
        return [*argv, "--", *wanted.upgrades]


def find_npm() -> str | None:
    """Return npm's script, of the one on the PATH, if any."""
    found = shutil.which("npm")
    return None if found is None else os.path.realpath(found)


def read_npm_settings(settings: InstallerSettings) -> IndexSettings:
    """Read the registries, credentials, certificates and proxies of npm's files and variables."""
    env = {name: value for name, value in settings.env.items() if name.lower().startswith("npm_config_")}
    env = {
        name: value
        for name, value in env.items()
        if name.lower() not in (*_OWN, "npm_config_cache", "npm_config_prefix")
    }
    plain = {
        name: value
        for name, value in settings.env.items()
        if not name.lower().startswith(("npm_config_", "pip_", "uv_"))
    }
    texts = {
        "npmrc": _read(env.pop("npm_config_userconfig", "") or f"{settings.home}/.npmrc"),
        "npmrc-global": _read(env.pop("npm_config_globalconfig", "") or "/etc/npmrc"),
    }
    found: dict[str, str] = {}
    for text in reversed(texts.values()):
        found |= dict(_SETTING.findall(text))
    found |= {name[len("npm_config_") :].lower().replace("_", "-"): value for name, value in env.items()}
    registries = [value for name, value in found.items() if name.endswith(":registry")]
    urls = [found.get("registry") or _REGISTRY, *registries]
    urls += [value for name, value in [*found.items(), *plain.items()] if name.lower().replace("_", "-") in _PROXIES]
    certificates = [
        found.get("cafile", ""),
        *(value for name, value in plain.items() if name.endswith(("_FILE", "CERTS"))),
    ]
    return IndexSettings({**plain, **env}, texts, existing_paths(certificates), url_hosts(urls))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""

"""Checks of the config file and the paths it names."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Iterator, Mapping

from replctl.doctor.finding import Finding, fail, ok, warn
from replwire.config import Config, LoadedConfig
from replwire.identities import Identity
from replwire.paths import config_file

_FIX = "correct it; `replctl config show` prints every setting and its source"


def config(
    path: str | None, loaded: LoadedConfig, problems: list[str], environ: Mapping[str, str], uid: int
) -> Iterator[Finding]:
    """Check that the config file is valid and not writable by others, since it can disable the sandbox."""
    place = path or config_file(environ)
    for problem in problems:
        yield fail("config", problem, "no broker can start with it (the checks below ignore it)", _FIX)
    if problems:
        return
    try:
        found = os.stat(place)
    except FileNotFoundError:
        yield ok("config", f"no file at {place}; {_describe_settings(loaded)}")
        return
    if found.st_uid not in (uid, 0) or found.st_mode & 0o022:
        seen = f"{place} has mode {stat.S_IMODE(found.st_mode):04o} and owner {found.st_uid}"
        cause = "others may change it, and it can disable the sandbox"
        yield fail("config", seen, cause, f"chmod go-w {place}; chown {uid} {place}")
        return
    yield ok("config", f"{place}; {_describe_settings(loaded)}")
    yield from _check_paths(loaded.config)


def _describe_settings(loaded: LoadedConfig) -> str:
    agents = f", rules for {len(loaded.config.agents)} agents" if loaded.config.agents else ""
    listed = f", {len(loaded.config.identities)} identities" if loaded.config.identities else ""
    return f"{len(loaded.sources)} settings differ from the defaults{agents}{listed}"


def _check_paths(config: Config) -> Iterator[Finding]:
    """Check the directories that the settings name."""
    sandbox = config.sandbox
    directories = {
        "sandbox.workspaces": sandbox.workspaces,
        "sandbox.readable-paths": sandbox.readable_paths,
        "sandbox.writable-paths": sandbox.writable_paths,
        "session.load-paths": config.session.load_paths,
    }
    for key, paths in directories.items():
        for path in paths:
            if not os.path.exists(os.path.expanduser(path)):
                yield warn("config", f"{key} names {path}", "it does not exist", f"create it, or remove it from {key}")
    for each in config.identities:
        yield from _check_identity(each)


def _check_identity(entry: Identity) -> Iterator[Finding]:
    """Check the host user and the directories of an identity."""
    key = f"identities: {entry.name}"
    if entry.user is not None:
        try:
            pwd.getpwnam(entry.user)
        except KeyError:
            cause = "there is no such user, so its sessions get no directory, environment or files on a root broker"
            yield warn("config", f"{key}: user {entry.user}", cause, "create the user, or correct `user`")
    for path in entry.workspaces:
        if not os.path.isdir(path):
            yield warn(
                "config", f"{key}: workspaces names {path}", "it does not exist", "create it, or remove the entry"
            )


def interpreters(config: Config, search: str | None) -> Iterator[Finding]:
    """Check the interpreters that sessions of each runtime would use."""
    for runtime, named in (
        ("python", config.python.interpreter),
        ("node", config.node.interpreter),
        ("bash", config.bash.interpreter),
    ):
        if named and shutil.which(named, path=search) is None:
            yield fail(
                "runtimes",
                f"{runtime}.interpreter is {named}",
                "there is no such program",
                f"install it, or correct {runtime}.interpreter",
            )
    yield ok("runtimes", f"python, {', '.join(_find_interpreters(config, search)) or 'no node or bash'}")


def _find_interpreters(config: Config, search: str | None) -> list[str]:
    named = {"node": config.node.interpreter, "bash": config.bash.interpreter}
    return [runtime for runtime, path in named.items() if shutil.which(path or runtime, path=search)]

"""Commands on the config file: path, get, set, unset, edit. They need no broker."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import click
import msgspec

from replctl.atomic_file import write_atomically
from replctl.commands.output import CommandOutput
from replctl.commands.params import suggest_name
from replctl.settings import read_settings
from replwire.config import RELOADABLE, ConfigError, env_name, load
from replwire.faults import ExitCode
from replwire.paths import config_file

_HEAD = "# Settings of replctl; `replctl config show` lists them all.\n"
_file_option = click.option(
    "--config", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Config file instead of the user's own."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")


@click.command()
@_json_option
def path(as_json: bool) -> None:
    """Print the path of the config file, which need not exist."""
    found = config_file(os.environ)
    if as_json:
        CommandOutput().json({"status": ["done"], "path": found, "exists": os.path.exists(found)})
    else:
        CommandOutput().line(found)


@click.command()
@click.argument("setting", metavar="SECTION.KEY")
@_file_option
@_json_option
def get(setting: str, path: str | None, as_json: bool) -> None:
    """Print the value of a setting that is in force: from environment, file or default."""
    _check_name(setting)
    loaded = read_settings(path, {})
    section, _, key = setting.partition(".")
    value: Any = msgspec.to_builtins(loaded.config)[section][key]
    source = loaded.sources.get(setting, "default")
    if as_json:
        CommandOutput().json({"status": ["done"], "setting": setting, "value": value, "source": source})
    else:
        CommandOutput().line(value if isinstance(value, str) else msgspec.json.encode(value).decode())


@click.command("set")
@click.argument("setting", metavar="SECTION.KEY")
@click.argument("value")
@_file_option
@_json_option
def set_(setting: str, value: str, path: str | None, as_json: bool) -> None:
    """Set a setting in the config file, which stays valid and keeps its comments.

    VALUE is written as in TOML: 5000, true, '["a.test", "b.test"]'; anything else is a string.
    """
    from replctl.config_text import set_value  # with a library that only changes need

    _check_name(setting)
    _change(setting, path, as_json, lambda text, origin: set_value(text or _HEAD, origin, setting, value))


@click.command()
@click.argument("setting", metavar="SECTION.KEY")
@_file_option
@_json_option
def unset(setting: str, path: str | None, as_json: bool) -> None:
    """Remove a setting from the config file, so that its default holds."""
    from replctl.config_text import unset_value

    _check_name(setting)
    _change(setting, path, as_json, lambda text, origin: unset_value(text, origin, setting))


@click.command()
@_file_option
def edit(path: str | None) -> int:
    """Open the config file in $VISUAL or $EDITOR. An invalid text is not saved; the editor opens again, or it stays."""
    origin = _origin(path)
    before, screen = _read(origin), CommandOutput()
    after = before or _HEAD
    while True:
        edited = click.edit(after, extension=".toml")
        if edited is None or edited == before:
            screen.notice(f"{origin} was not changed")
            return ExitCode.OK
        after = edited
        try:
            load(after, origin)
        except ConfigError as error:
            screen.notice(f"invalid: {error}")
            if os.isatty(0) and os.isatty(2) and click.confirm("Edit again?", default=True, err=True):
                continue
            screen.notice(f"{origin} was not changed; your text is in {_keep(after)}")
            return ExitCode.USAGE
        _write(origin, after)
        screen.notice(f"wrote {origin}; replctl config reload has a running broker read it")
        return ExitCode.OK


def _change(setting: str, path: str | None, as_json: bool, change: Any) -> None:
    origin, screen = _origin(path), CommandOutput()
    before = _read(origin)
    try:
        after: str = change(before, origin)
    except ConfigError as error:
        raise click.UsageError(f"{error}; nothing was changed") from None
    if after != before:
        _write(origin, after)
    name = env_name(*setting.split(".", 1))
    overridden = name if os.environ.get(name) else None
    apply = "replctl config reload" if setting in RELOADABLE else "replctl restart"
    if as_json:
        done = {"status": ["done"], "file": origin, "changed": after != before}
        screen.json({**done, "overridden-by": overridden, "apply": apply})
        return
    screen.notice(
        f"wrote {origin}; a running broker uses it after {apply}" if after != before else f"already so in {origin}"
    )
    if overridden is not None:
        screen.notice(f"the environment variable {overridden} overrides it")


def _check_name(setting: str) -> None:
    from replctl.config_text import is_setting, setting_names

    if not is_setting(setting):
        meant = suggest_name(setting, setting_names())
        also = f"did you mean {meant}?" if meant else "replctl config show lists them."
        raise click.UsageError(f"No setting {setting!r}; {also}")


def _origin(path: str | None) -> str:
    """Return the file to change; a symlink stays one."""
    return os.path.realpath(path or config_file(os.environ))


def _read(origin: str) -> str:
    try:
        with open(origin, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read {origin}: {error}") from None


def _write(origin: str, text: str) -> None:
    try:
        write_atomically(origin, text)
    except OSError as error:
        raise click.ClickException(f"cannot write {origin}: {error.strerror}") from None


def _keep(text: str) -> str:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".toml", delete=False) as file:
        file.write(text)
    return file.name

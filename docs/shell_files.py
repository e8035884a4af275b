"""Man pages and completion scripts, which the package contains, made from the commands."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import click
from click.shell_completion import get_completion_class
from click_man.core import write_man_pages

from replctl import __version__
from replctl.main import COMMANDS, EPILOG, cli

SHARE = Path(__file__).resolve().parents[1] / "cli" / "share"
_COMPLETIONS = {
    "bash": "bash-completion/completions/replctl",
    "zsh": "zsh/site-functions/_replctl",
    "fish": "fish/vendor_completions.d/replctl.fish",
}


def shell_files() -> dict[str, str]:
    """Return the text of each file, by its path below `share`."""
    return {f"man/man1/{name}": text for name, text in man_pages().items()} | completion_scripts()


def man_pages() -> dict[str, str]:
    """Return the man page of each command and of the group, by its file name."""
    context = click.Context(cli, info_name="replctl")
    commands = {name: cli.get_command(context, name) for name in COMMANDS}
    for name, command in commands.items():
        assert command is not None
        _describe(command, COMMANDS[name].help)
    group = click.Group(
        "replctl",
        commands={name: command for name, command in commands.items() if command is not None},
        help=f"{cli.help}\n\n{EPILOG}",
        params=cli.params,
    )
    _describe(group, cli.help or "")
    with tempfile.TemporaryDirectory() as directory:
        write_man_pages("replctl", group, version=__version__, target_dir=directory, date=f"replctl {__version__}")
        return {path.name: _as_text(path.read_text(encoding="utf-8")) for path in Path(directory).iterdir()}


def _describe(command: click.Command, line: str) -> None:
    """Set the line that lists of commands have, which click-man would cut off."""
    command.short_help = line.strip().split("\n")[0]
    for each in getattr(command, "commands", {}).values():
        if each.help:
            _describe(each, each.help)


def completion_scripts() -> dict[str, str]:
    """Return the completion script of each shell."""
    scripts = {}
    for shell, path in _COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        scripts[path] = kind(cli, {}, "replctl", "_REPLCTL_COMPLETE").source().strip() + "\n"
    return scripts


def _as_text(page: str) -> str:
    r"""Return a page in which no line of text is taken for a request, as one that begins with a quote would be."""
    page = re.sub(r"^\x08\n(.*?)\n(?=\.PP|\.SH)", r".nf\n\1\n.fi\n", page, flags=re.M | re.S)
    return re.sub(r"^(?=')", r"\\&", page, flags=re.M)

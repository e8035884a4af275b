"""`replctl completion`: the completion script for a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    pass


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL, for example: eval "$(replctl completion bash)"."""
    from click.shell_completion import get_completion_class

    from replctl.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "replctl", "_REPLCTL_COMPLETE").source())

"""Shell completion: session names, and the script for a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from replctl.client.errors import ReplError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class SessionName(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click alone
    """A session parameter, completed with the names of existing sessions. Never starts a broker."""

    name = "session"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Return sessions with this prefix."""
        from click.shell_completion import CompletionItem  # needed for completion only

        from replctl.client.sync import Client

        try:
            with Client(ctx.params.get("endpoint"), start=False) as client:
                entries = client.sessions()
        except ReplError:
            return []
        names = [entry.ref for entry in entries]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL, for example: eval "$(replctl completion bash)"."""
    from click.shell_completion import get_completion_class

    from replctl.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "replctl", "_REPLCTL_COMPLETE").source())

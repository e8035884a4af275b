"""`replctl allow-hosts`: more hosts for a session, for a time."""

from __future__ import annotations

import click

from replctl.commands.context import CommandContext, session_option, with_common_options
from replctl.commands.foreground import with_approval
from replctl.commands.params import Duration


@click.command("allow-hosts")
@click.argument("hosts", nargs=-1)
@session_option
@click.option("--for", "seconds", type=Duration(), help="How long, such as 10m. [limits.max-host-time-ms]")
@with_common_options
def allow_hosts(context: CommandContext, hosts: tuple[str, ...], session: str, seconds: float | None) -> None:
    """Let a session reach HOSTS beside its list for a time: names as in sandbox.allowed-hosts, such as pypi.org:443.

    Without HOSTS, what was allowed so ends at once. sandbox.more-hosts decides, or you do, at a terminal. See
    docs/network.md.
    """
    with context.client() as client:
        reply = with_approval(context, lambda approval: client.allow_hosts(hosts, session, seconds, approval))
    more = reply.more_hosts or {}
    data = {"status": reply.status, "session": reply.session, "name": reply.name, "more-hosts": more}
    context.show(data, *(f"{entry} until {until}" for entry, until in more.items()))
    if context.json:
        return
    if not more:
        context.screen.notice(f"session {session!r} reaches the hosts of its list alone")
    if reply.notice:
        context.screen.notice(reply.notice)

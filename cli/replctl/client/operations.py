"""Client operations and their request flows, shared by both clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from replctl.client import request_fields
from replwire.identifiers import DEFAULT_SESSION

R = TypeVar("R")  # Reply, or an awaitable of one


class Operations(ABC, Generic[R]):
    """Operations shared by `Client` and `AsyncClient`. Each raises ReplError if the broker refuses."""

    @abstractmethod
    def request(self, op: str, **fields: Any) -> R:
        """Send an operation and return its final reply."""

    def new(
        self,
        name: str | None = None,
        runtime: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        reuse: bool = False,
        **options: Any,
    ) -> R:
        """Open a session: `session` in the reply is its id, `name` its name.

        Args:
            name: Name of the session; None for a session without a name.
            runtime: `python`, `node`, `bash`, or the path of a Python environment.
            cwd: Working directory.
            env: Environment variables besides the usual ones.
            reuse: Return an existing session of this name instead of raising `session-already-exists`.
            options: Further fields of `new-session`: `cwd_needed`, and sandbox restrictions such as `profile`,
                `network` or `memory_bytes`.
        """
        return self.request("new-session", **request_fields.new_fields(name, runtime, cwd, env, reuse), **options)

    def reset(self, session: str = DEFAULT_SESSION) -> R:
        """Replace the session's worker. All variables are lost and `epoch` increases."""
        return self.request("reset", session=session)

    def interrupt(self, session: str = DEFAULT_SESSION, eval_id: int | None = None, all: bool = False) -> R:
        """Interrupt the running eval, or the eval `eval_id`. `all` also clears the session's queue."""
        return self.request("interrupt", session=session, interrupt_id=eval_id, all=all or None)

    def close(self, session: str) -> R:
        """Close a session and end everything it started. (`disconnect` closes the connection.)"""
        return self.request("close", session=session)

    def clone(self, session: str, to: str) -> R:
        """Copy a session's variables to a new session `to`; `left_behind` lists variables that could not be copied."""
        return self.request("clone", session=session, name=to)

    def clear(self, session: str = DEFAULT_SESSION) -> R:
        """Delete every variable of the session; its process keeps running."""
        return self.request("clear-bindings", session=session)

    def stdin(self, session: str, text: str) -> R:
        """Send input to the session's running eval, or to the next one that reads. A line ends in a newline."""
        return self.request("stdin", session=session, input=text)

    def complete(
        self, code: str, pos: int | None = None, session: str | None = DEFAULT_SESSION, runtime: str | None = None
    ) -> R:
        """Return completions for `code` at `pos`.

        Args:
            code: The code to complete.
            pos: Cursor position in characters; None for the end.
            session: The session to ask; None for an ephemeral one.
            runtime: Runtime of the ephemeral session.

        Returns:
            A reply with `completions`, and `start` in bytes of UTF-8.
        """
        at = len((code if pos is None else code[:pos]).encode("utf-8", "surrogatepass"))
        return self.request("complete", code=code, pos=at, session=session, runtime=runtime)

    def lookup(self, symbol: str, session: str | None = DEFAULT_SESSION, module: str | None = None) -> R:
        """Look up a dotted name: `found`, `type`, `doc`, `signature`, `methods`, `file`, `line`."""
        return self.request("lookup", symbol=symbol, session=session, module=module)

    def bindings(self, session: str = DEFAULT_SESSION) -> R:
        """List the session's variables with their types."""
        return self.request("ls-bindings", session=session)

    def history(self, session: str = DEFAULT_SESSION, limit: int | None = None, grep: str | None = None) -> R:
        """Return the code that was sent to the session, oldest first."""
        return self.request("history", session=session, limit=limit, grep=grep)

    def stack(self, session: str = DEFAULT_SESSION) -> R:
        """Return the session's current stacks: `threads` and `processes`."""
        return self.request("stack", session=session)

    def env(self, session: str = DEFAULT_SESSION) -> R:
        """Return the session's Python environment: `environment`, `executable`."""
        return self.request("env", session=session, action="show")

    def activate(self, session: str, path: str) -> R:
        """Switch the session to a Python environment. The session gets a fresh worker; on failure nothing changes."""
        return self.request("env", session=session, action="activate", path=path)

    def deactivate(self, session: str) -> R:
        """Switch the session back to the broker's own Python."""
        return self.request("env", session=session, action="deactivate")

    def remove_environment(self, environment: str) -> R:
        """Delete a named environment, `@NAME`, that no session uses."""
        return self.request("remove-environment", environment=environment)

    def set_mode(self, session: str, to: str, reason: str | None = None) -> R:
        """Set the session mode: `plan` refuses every change in the session, `normal` allows changes."""
        return self.request("set-mode", session=session, to=to, reason=reason)

    def share(self, session: str, level: str, who: str = "*") -> R:
        """Let `who` read or use the session. The reply's `shares` lists the resulting permissions.

        Args:
            session: The session to share.
            level: `read` to observe, `write` to use, `none` to withdraw.
            who: An identity, or `*` for everyone.
        """
        return self.request("share", session=session, who=who, level=level)

    def transfer(self, session: str, who: str) -> R:
        """Offer the session to another identity, or accept an offered one.

        The reply's `owner` is the current owner and `offered_to` the identity that may accept. An administrator changes
        the owner at once.
        """
        return self.request("hand-over", session=session, who=who)

    def describe(self) -> R:
        """Return the broker's operations, runtimes, limits and versions."""
        return self.request("describe")

    def ping(self) -> R:
        """Check that the broker replies."""
        return self.request("ping")

    def reload_config(self) -> R:
        """Make the broker reload its config file: `reloaded` has changed, `needs_restart` has not."""
        return self.request("reload-config")

    def shutdown(self) -> R:
        """Stop the broker and close every session."""
        return self.request("shutdown")

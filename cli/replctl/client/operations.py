"""The operations that are one request and one reply, for both clients: what they return is what `request` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from replctl.client import request_fields
from replwire.identifiers import DEFAULT_SESSION

R = TypeVar("R")  # Reply, or an awaitable of one


class Operations(ABC, Generic[R]):
    """Raises ReplError when the broker refuses."""

    @abstractmethod
    def request(self, op: str, **fields: Any) -> R:
        """Send an operation and return its last reply."""

    def new(
        self,
        name: str | None = None,
        runtime: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        reuse: bool = False,
        **options: Any,
    ) -> R:
        """Open a session: `session` is its id, `name` its name. A taken name is an error unless `reuse`.

        `runtime` is `python`, `node`, `bash`, or the path of a python environment. `options` are further fields of
        `new-session`: `cwd_needed`, and what makes its sandbox tighter (`profile`, `network`, `memory_bytes`, …).
        """
        return self.request("new-session", **request_fields.new_fields(name, runtime, cwd, env, reuse), **options)

    def reset(self, session: str = DEFAULT_SESSION) -> R:
        """A fresh worker for the session; all it held is gone, `epoch` counts up."""
        return self.request("reset", session=session)

    def interrupt(self, session: str = DEFAULT_SESSION, eval_id: int | None = None, all: bool = False) -> R:
        """Interrupt the running eval, or the one named; `all` empties the session's queue too."""
        return self.request("interrupt", session=session, interrupt_id=eval_id, all=all or None)

    def close(self, session: str) -> R:
        """End a session and everything it started. (The connection ends with `disconnect`, or with the `with`.)"""
        return self.request("close", session=session)

    def clone(self, session: str, to: str) -> R:
        """A new session `to` with a copy of this one's names; `left_behind` lists those that could not be copied."""
        return self.request("clone", session=session, name=to)

    def clear(self, session: str = DEFAULT_SESSION) -> R:
        """Forget every name the session's code bound; the process stays."""
        return self.request("clear-bindings", session=session)

    def stdin(self, session: str, text: str) -> R:
        """Input for the session's running eval, or for the next that reads. A line ends in a newline."""
        return self.request("stdin", session=session, input=text)

    def complete(
        self, code: str, pos: int | None = None, session: str | None = DEFAULT_SESSION, runtime: str | None = None
    ) -> R:
        """Ways to go on with `code` at `pos`, in characters (its end when not given): `completions`, and `start`,
        in bytes of UTF-8. `session` None asks in a throw-away one."""
        at = len((code if pos is None else code[:pos]).encode("utf-8", "surrogatepass"))
        return self.request("complete", code=code, pos=at, session=session, runtime=runtime)

    def lookup(self, symbol: str, session: str | None = DEFAULT_SESSION, module: str | None = None) -> R:
        """What a dotted name means: `found`, `type`, `doc`, `signature`, `methods`, `file`, `line`."""
        return self.request("lookup", symbol=symbol, session=session, module=module)

    def bindings(self, session: str = DEFAULT_SESSION) -> R:
        """Names that the session's code bound, with their types."""
        return self.request("ls-bindings", session=session)

    def history(self, session: str = DEFAULT_SESSION, limit: int | None = None, grep: str | None = None) -> R:
        """Code that the session was given, oldest first."""
        return self.request("history", session=session, limit=limit, grep=grep)

    def stack(self, session: str = DEFAULT_SESSION) -> R:
        """Where the session's code is at this moment: `threads` and `processes`."""
        return self.request("stack", session=session)

    def env(self, session: str = DEFAULT_SESSION) -> R:
        """The session's python environment: `environment`, `executable`."""
        return self.request("env", session=session, action="show")

    def activate(self, session: str, path: str) -> R:
        """Move the session to a python environment; a fresh worker, or nothing at all has changed."""
        return self.request("env", session=session, action="activate", path=path)

    def deactivate(self, session: str) -> R:
        """Move the session back to the broker's own python."""
        return self.request("env", session=session, action="deactivate")

    def remove_environment(self, environment: str) -> R:
        """Remove a named environment, `@NAME`, that no session has."""
        return self.request("remove-environment", environment=environment)

    def set_mode(self, session: str, to: str, reason: str | None = None) -> R:
        """`plan`: whatever would change something is refused in this session. `normal`: no longer."""
        return self.request("set-mode", session=session, to=to, reason=reason)

    def share(self, session: str, level: str, who: str = "*") -> R:
        """Let `who`, an identity or everybody, see (`read`) or use (`write`) the session; `none` takes it back.
        `shares` is what holds now."""
        return self.request("share", session=session, who=who, level=level)

    def transfer(self, session: str, who: str) -> R:
        """Offer the session to another identity, or take one that is offered: `owner` says whose it is now,
        `offered_to` who may take it. An admin makes somebody its owner at once."""
        return self.request("hand-over", session=session, who=who)

    def describe(self) -> R:
        """Operations, runtimes, limits and versions of the broker."""
        return self.request("describe")

    def ping(self) -> R:
        """Is anybody there?"""
        return self.request("ping")

    def reload_config(self) -> R:
        """Have the broker read its config file again: `reloaded` has changed, `needs_restart` has not."""
        return self.request("reload-config")

    def shutdown(self) -> R:
        """End the broker and every session."""
        return self.request("shutdown")

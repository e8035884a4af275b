"""Client operations, shared by both clients."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from replctl.client import flows, request_fields
from replctl.client.base import ReplyT, ResultT
from replctl.client.outcome_operations import OutcomeOperations
from replctl.client.result import OnOutput
from replwire.identifiers import DEFAULT_SESSION


class Operations(OutcomeOperations[ReplyT, ResultT]):
    """Operations shared by `Client` and `AsyncClient`. Each raises ReplError if the broker refuses."""

    def read(
        self,
        session: str,
        eval_id: int,
        wait: float | None = None,
        offset: int = 0,
        stream: str = "both",
        max_bytes: int | None = None,
        grep: str | None = None,
        on_output: OnOutput | None = None,
    ) -> ResultT:
        """Return an eval's output and result, waiting up to `wait` seconds for its end.

        Args:
            session: Name or id of the session.
            eval_id: Number of the eval; 0 for output printed between evals.
            wait: Seconds to wait for the end.
            offset: First byte of output to return.
            stream: `out`, `err` or `both`.
            max_bytes: Limit of the output's size.
            grep: Return only lines with this text.
            on_output: Called with the stream and the text as it arrives.
        """
        fields = request_fields.read_fields(session, eval_id, wait, offset, stream, max_bytes, grep)
        return self._run(flows.run("read", fields, flows.DEFAULT_TIMEOUT + (wait or 0), on_output))

    def load(
        self,
        file: str,
        session: str | None = DEFAULT_SESSION,
        reload: bool = False,
        timeout: float | None = None,
        wait: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ResultT:
        """Run a file on the broker's machine, below a directory that its config allows.

        Args:
            file: Absolute path of the file.
            session: Name or id of the session.
            reload: First delete what the file defined before.
            timeout: Limit of the run time in seconds.
            wait: Limit of the wait in seconds.
            on_output: Called with the stream and the text as it arrives.
        """
        op, fields = request_fields.load_fields(file, session, reload, timeout, wait)
        return self._run(flows.run(op, fields, None, on_output))

    def packages(
        self,
        action: str,
        packages: Sequence[str] = (),
        session: str = DEFAULT_SESSION,
        path: str | None = None,
        on_output: OnOutput | None = None,
        approval: str | None = None,
    ) -> ResultT:
        """Manage the session's packages; the output of the installer is the result's.

        Args:
            action: `add`, `rm`, `update`, `status`, `instantiate`, `resolve` or `test`.
            packages: Names of packages, for `add` with versions if needed.
            session: Name or id of the session.
            path: For `instantiate`, the lock or project file.
            on_output: Called with the stream and the text as it arrives.
            approval: Id of an `approval-needed` (`ReplError.approval`) that a person has granted.
        """
        fields = request_fields.package_fields(action, packages, session, path, approval)
        return self._run(flows.run("env", fields, None, on_output))

    def new(
        self,
        name: str | None = None,
        runtime: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        reuse: bool = False,
        from_file: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> ReplyT:
        """Open a session: `session` in the reply is its id, `name` its name.

        Args:
            name: Name of the session; None for a session without a name.
            runtime: `python`, `node`, `bash`, or the path of a Python environment.
            cwd: Working directory.
            env: Environment variables besides the usual ones.
            reuse: Return an existing session of this name instead of raising `session-already-exists`.
            from_file: File of a session saved with `save`, whose variables it begins with; `skipped` lists those
                that were not saved or cannot be restored.
            options: Further fields of `new-session`: `cwd_needed`, and sandbox restrictions such as `profile`,
                `network` or `memory_bytes`.
        """
        fields = request_fields.new_fields(name, runtime, cwd, env, reuse) | options
        if from_file is None:
            return self.request("new-session", **fields)
        from replctl.client import snapshots  # hashing and temporary files, which few commands need

        return self._perform(snapshots.open_saved(from_file, fields))

    def save(self, session: str, file: str | os.PathLike[str]) -> ReplyT:
        """Save the session's variables in a file, which `new` with `from_file` opens later or elsewhere.

        The file is replaced as a whole, with mode 0600; `skipped` in the reply lists variables that it lacks.

        Raises:
            OSError: The file cannot be written.
        """
        from replctl.client import snapshots

        return self._perform(snapshots.save_session(session, file))

    def hibernate(self, session: str = DEFAULT_SESSION) -> ReplyT:
        """Store the session's variables and end its processes until the next eval; `skipped` lists what cannot be."""
        return self.request("hibernate", session=session)

    def reset(self, session: str = DEFAULT_SESSION) -> ReplyT:
        """Replace the session's worker. All variables are lost and `epoch` increases."""
        return self.request("reset", session=session)

    def checkpoint(self, session: str = DEFAULT_SESSION, name: str | None = None) -> ReplyT:
        """Keep the session's state after its running eval, for `rollback`. The reply's `checkpoint` is its number."""
        return self.request("checkpoint", session=session, name=name)

    def rollback(self, session: str = DEFAULT_SESSION, to: int | str | None = None) -> ReplyT:
        """Restore the state of a checkpoint, by number or name; without one, undo the last eval.

        Without `to` it fails with `checkpoint-not-found` if more evals than the last would be undone: the error's
        reply lists them in `undone_evals`. A running eval is interrupted, queued ones end, and `epoch` increases.
        """
        return self.request("rollback", session=session, to=to)

    def diff(self, session: str = DEFAULT_SESSION, checkpoint: int | str | None = None) -> ReplyT:
        """Return what has changed in the session's directory since a checkpoint: `file_changes`, and `patch` for texts.

        Without a number or name, since the newest checkpoint before the last eval.
        """
        return self.request("diff", session=session, checkpoint=checkpoint)

    def drop_checkpoint(self, session: str, checkpoint: int | str) -> ReplyT:
        """Drop a checkpoint of the session, by number or name."""
        return self.request("drop-checkpoint", session=session, checkpoint=checkpoint)

    def list_checkpoints(self, session: str = DEFAULT_SESSION) -> ReplyT:
        """List the session's checkpoints: `checkpoints`, and `dropped` ones."""
        return self.request("ls-checkpoints", session=session)

    def interrupt(self, session: str = DEFAULT_SESSION, eval_id: int | None = None, all: bool = False) -> ReplyT:
        """Interrupt the running eval, or the eval `eval_id`. `all` also clears the session's queue."""
        return self.request("interrupt", session=session, interrupt_id=eval_id, all=all or None)

    def close(self, session: str) -> ReplyT:
        """Close a session and end everything it started. (`disconnect` closes the connection.)"""
        return self.request("close", session=session)

    def clone(self, session: str, to: str) -> ReplyT:
        """Copy a session's variables to a new session `to`; `skipped` lists variables that could not be copied."""
        return self.request("clone", session=session, name=to)

    def branch(self, session: str, to: str, at: int | str | None = None) -> ReplyT:
        """Open a session `to` that begins as a copy of `session`, as it is now or was at the checkpoint `at`."""
        return self.request("branch", session=session, name=to, at=at)

    def clear(self, session: str = DEFAULT_SESSION) -> ReplyT:
        """Delete every variable of the session; its process keeps running."""
        return self.request("clear-bindings", session=session)

    def stdin(self, session: str, text: str) -> ReplyT:
        """Send input to the session's running eval, or to the next one that reads. A line ends in a newline."""
        return self.request("stdin", session=session, input=text)

    def complete(
        self, code: str, pos: int | None = None, session: str | None = DEFAULT_SESSION, runtime: str | None = None
    ) -> ReplyT:
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

    def lookup(self, symbol: str, session: str | None = DEFAULT_SESSION, module: str | None = None) -> ReplyT:
        """Look up a dotted name: `found`, `type`, `doc`, `signature`, `methods`, `file`, `line`."""
        return self.request("lookup", symbol=symbol, session=session, module=module)

    def bindings(self, session: str = DEFAULT_SESSION) -> ReplyT:
        """List the session's variables with their types."""
        return self.request("ls-bindings", session=session)

    def history(self, session: str = DEFAULT_SESSION, limit: int | None = None, grep: str | None = None) -> ReplyT:
        """Return the code that was sent to the session, oldest first."""
        return self.request("history", session=session, limit=limit, grep=grep)

    def stack(self, session: str = DEFAULT_SESSION) -> ReplyT:
        """Return the session's current stacks: `threads` and `processes`."""
        return self.request("stack", session=session)

    def env(self, session: str = DEFAULT_SESSION) -> ReplyT:
        """Return the session's Python environment: `environment`, `executable`."""
        return self.request("env", session=session, action="show")

    def activate(self, session: str, path: str) -> ReplyT:
        """Switch the session to a Python environment. The session gets a fresh worker; on failure nothing changes."""
        return self.request("env", session=session, action="activate", path=path)

    def deactivate(self, session: str) -> ReplyT:
        """Switch the session back to the broker's own Python."""
        return self.request("env", session=session, action="deactivate")

    def remove_environment(self, environment: str) -> ReplyT:
        """Delete a named environment, `@NAME`, that no session uses."""
        return self.request("remove-environment", environment=environment)

    def set_mode(self, session: str, to: str, reason: str | None = None) -> ReplyT:
        """Set the session mode: `plan` refuses every change in the session, `normal` allows changes."""
        return self.request("set-mode", session=session, to=to, reason=reason)

    def share(self, session: str, level: str, who: str = "*") -> ReplyT:
        """Let `who` read or use the session. The reply's `shares` lists the resulting permissions.

        Args:
            session: The session to share.
            level: `read` to observe, `write` to use, `none` to withdraw.
            who: An identity, or `*` for everyone.
        """
        return self.request("share", session=session, who=who, level=level)

    def transfer(self, session: str, who: str) -> ReplyT:
        """Offer the session to another identity, or accept an offered one.

        The reply's `owner` is the current owner and `offered_to` the identity that may accept. An administrator changes
        the owner at once.
        """
        return self.request("transfer", session=session, who=who)

    def allow_hosts(
        self,
        hosts: Sequence[str],
        session: str = DEFAULT_SESSION,
        seconds: float | None = None,
        approval: str | None = None,
    ) -> ReplyT:
        """Let a session with a list of hosts reach more of them for a time. The reply's `more_hosts` lists them.

        Args:
            hosts: Entries as in `sandbox.allowed-hosts`; empty: end at once what was allowed so.
            session: Name or id of the session.
            seconds: How long; None for as long as the broker permits.
            approval: Id of an `approval-needed` (`ReplError.approval`) that a person has granted.
        """
        fields = {"hosts": list(hosts) or None, "for_ms": request_fields.milliseconds(seconds), "approval": approval}
        return self.request("allow-hosts", session=session, **fields)

    def describe(self) -> ReplyT:
        """Return the broker's operations, runtimes, limits and versions."""
        return self.request("describe")

    def ping(self) -> ReplyT:
        """Check that the broker replies."""
        return self.request("ping")

    def reload_config(self) -> ReplyT:
        """Make the broker reload its config file: `reloaded` has changed, `needs_restart` has not."""
        return self.request("reload-config")

    def shutdown(self, *, keep_sessions: bool = False, restart: bool = False) -> ReplyT:
        """Stop the broker and close every session.

        Args:
            keep_sessions: end the broker alone: the next one at its endpoint goes on with the sessions
            restart: the same, and its process begins again as that one
        """
        return self.request("shutdown", keep_sessions=keep_sessions or None, restart=restart or None)

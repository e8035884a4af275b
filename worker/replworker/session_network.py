"""Network by list of a session in its worker: hands its sockets to the egress proxy, and keeps refusals for evals."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from replwire.network import NetworkRules
from replworker.egress.client import EgressClient
from replworker.egress.listeners import Listener, plan_listeners
from replworker.prepared_secrets import PreparedSecrets

_MAX_NOTES = 5  # in one answer


class SessionNetwork:
    """Sockets of a session's sandbox, served by the egress proxy.

    Args:
        path: The proxy's socket.
        secrets: The session's secrets, if it has any.
    """

    def __init__(self, path: str, secrets: PreparedSecrets | None = None) -> None:
        self._secrets = secrets
        self._client = EgressClient(path)
        self._notes: dict[str, None] = {}

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do."""
        return self._client.fileno()

    @staticmethod
    def listeners(rules: NetworkRules | None) -> list[Listener]:
        """Return the sockets to open for these rules."""
        return [] if rules is None else plan_listeners(rules)

    def open(self, session: str, owner: str, rules: NetworkRules, sockets: Sequence[socket.socket]) -> str | None:
        """Have the sockets served for a session of this owner. Return why they are not, or None."""
        secrets = self._secrets
        mine = ("", []) if secrets is None else (secrets.authority, secrets.usable_by(owner))
        try:
            self._client.serve(session, rules, plan_listeners(rules), sockets, *mine)
        except OSError as error:
            self._client.close()
            return f"the session has no network: the egress proxy cannot be reached: {error.strerror or error}"
        return None

    def set_rules(self, rules: NetworkRules) -> None:
        """Replace the rules of the session."""
        self._client.set_rules(rules)

    def resume(self) -> None:
        """Have the sockets served again, by the proxy of another broker."""
        self._client.resume()

    def poll(self) -> None:
        """Read what the proxy has refused, and reconnect if it has died."""
        for reason in self._client.receive():
            if len(self._notes) <= _MAX_NOTES:
                self._notes[reason] = None

    def discard_notes(self) -> None:
        """Forget refusals that no running eval has caused."""
        self.poll()
        self._notes.clear()

    def take_note(self) -> str | None:
        """Return what was refused since the last call as a notice, or None."""
        self.poll()
        if not self._notes:
            return None
        notes, self._notes = list(self._notes), {}
        more = "; and more" if len(notes) > _MAX_NOTES else ""
        return f"network: {'; '.join(notes[:_MAX_NOTES])}{more}"

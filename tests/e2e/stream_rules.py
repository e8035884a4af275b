"""Rules for every stream of messages, on any transport (REPLy's rules of conformance)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from replwire import events
from replwire.events import Event
from replwire.ops import OPS
from replwire.ops.base import OF_ANY_ANSWER
from replwire.ops.extension import ExtensionRequest

_TEXT, _VALUE, _DONE = range(3)
_OF_ANY = frozenset({"id", "status", *OF_ANY_ANSWER})
_OF_EXTENSION = _OF_ANY.union(ExtensionRequest.returns)  # operations that the broker does not have itself
_RETURNED = {op: _OF_ANY.union(kind.returns) for op, kind in OPS.items()}
_OF_SOME = _OF_ANY.union(*_RETURNED.values())  # of a request whose operation is not known here


def decode_declared(event: dict[str, Any]) -> Event:
    """Decode an event as its readers do; fail for an event that differs from the table of events."""
    found = events.decode(msgspec.json.encode(event))
    assert msgspec.json.decode(events.encode(found)) == event, "an event has fields that are not declared"
    return found


class StreamRules:
    """Checker of everything that one connection receives.

    The id is that of a request; one message has `done`, and it is the last; `out` and stderr come before
    `value`, and that before `done`; what has `error` in its status has `err`; every key is one that the contract of the
    operation has; no key has an underscore; every event is declared.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()  # requests of this id that still wait
        self._finished: set[str] = set()
        self._ranks: dict[str, int] = {}
        self._keys: dict[str, frozenset[str]] = {"": _OF_ANY}  # that answers may have, by request

    def sent(self, request_id: str, op: object = None) -> None:
        """Note that a request is sent with this id."""
        self._open[request_id] += 1
        keys = _RETURNED.get(op, _OF_EXTENSION) if isinstance(op, str) else _OF_SOME
        self._keys[request_id] = self._keys.get(request_id, _OF_ANY) | keys

    def see(self, message: dict[str, Any]) -> None:
        """Check one message; an unknown id is taken for that of a request."""
        request_id, status = message["id"], message.get("status", [])
        self._check_keys(message)
        undeclared = message.keys() - self._keys.get(request_id, _OF_SOME)
        assert not undeclared, f"{undeclared} not in the contract: {message}"
        for event in (*message.get("events", ()), *([message["event"]] if "event" in message else ())):
            decode_declared(event)
        assert "error" not in status or message.get("err"), message
        if request_id == "":  # for what has no id to answer under: each such answer is a whole stream
            assert "done" in status, message
            return
        assert self._open[request_id] or request_id not in self._finished, f"after its end: {message}"
        if self._open[request_id] < 2:  # two streams under one id, which clients are told to avoid, have no order
            self._check_order(request_id, message, status)
        if "done" in status:
            self._open[request_id] = max(0, self._open[request_id] - 1)
            self._finished.add(request_id)
            self._ranks.pop(request_id, None)

    def _check_order(self, request_id: str, message: dict[str, Any], status: list[str]) -> None:
        if "done" in status:
            rank = _DONE
        elif "value" in message or "repr-error" in message:
            rank = _VALUE
        elif "out" in message or ("err" in message and not status):
            rank = _TEXT
        else:
            return  # that it is queued, opened a session, needs input: at any time before the end
        before = self._ranks.get(request_id, _TEXT)
        assert rank > before or rank == _TEXT == before, f"out of order: {message}"
        self._ranks[request_id] = rank

    @staticmethod
    def _check_keys(message: dict[str, Any]) -> None:
        rows = [row for rows in message.values() if isinstance(rows, list) for row in rows if isinstance(row, dict)]
        keys = {key for each in (message, *rows) for key in each}
        assert not any("_" in key for key in keys), message

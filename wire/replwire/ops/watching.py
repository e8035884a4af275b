"""Operations for observing: event subscriptions and snapshots of the broker's parts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from replwire.identifiers import MAX_NAME_BYTES
from replwire.ops.base import Natural, Request

_Word = Annotated[str, Meta(min_length=1, max_length=100)]


class Subscribe(Request, frozen=True, kw_only=True, rename="kebab"):
    """Subscribe to events of a session, or of all readable sessions.

    Ends with `unsubscribe`, the end of the session or of the connection. `types` are names or prefixes such as `eval/`;
    `output` adds live output. `since-seq` first replays events after that number, as far as the session's buffer has
    them.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("event", "events", "seq", "missed", "session", "name")

    types: Annotated[list[_Word], Meta(max_length=100)] = []
    since_seq: Natural | None = None
    output: bool = False


class Unsubscribe(Request, frozen=True, kw_only=True, rename="kebab"):
    """End a subscription of this connection by the id of its request, which then gets its `done`."""

    changes: ClassVar[bool] = False

    subscription: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]


class Introspect(Request, frozen=True, kw_only=True, rename="kebab"):
    """Return snapshots of the broker's parts, all or the one called `name`.

    For the broker's own user, root and admins.
    """

    changes: ClassVar[bool] = False
    returns: ClassVar[tuple[str, ...]] = ("snapshots",)

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)] | None = None

"""Fields common to all events."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from replwire.documented import documented

VERSION = 1
BROKER = "broker"  # `emitter` of the broker's own events, and transcript of events without a session


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True, tag_field="type"):
    """Fields common to all events."""

    canonical: ClassVar[bool] = True

    id: Annotated[str, documented("unique id: the broker's start, and a number")]
    time: Annotated[str, documented("ISO 8601, UTC")]
    v: Annotated[int, documented("version of this table")] = 0  # never 0, because defaults are omitted
    seq: Annotated[
        int, documented("number within the session, or among events without one; absent in ephemeral events")
    ] = 0
    session: Annotated[str | None, documented("id of the session; absent in events of the broker as a whole")] = None
    eval: Annotated[int, documented("eval-id, if the event is about an eval")] = 0
    agent: Annotated[str | None, documented("label of the requesting agent")] = None
    emitter: Annotated[str, documented("source of the event: `broker`, or an extension")] = ""


ENVELOPE = tuple(field.encode_name for field in msgspec.structs.fields(Event))

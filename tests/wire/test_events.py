"""The table of events: closed, told apart by type, readable without the broker."""

from __future__ import annotations

import re

import msgspec
import pytest

from replwire import events
from replwire.events import EVENTS


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_has_a_name_a_sentence_and_known_fields(name: str) -> None:
    kind = EVENTS[name]
    assert re.fullmatch(r"[a-z]+/[a-z-]+", name)
    assert events.type_name(kind) == name
    assert (kind.__doc__ or "").strip().endswith(".")
    assert all(re.fullmatch(r"[a-z][a-z-]*", field) for field in events.fields_of(kind))


def test_what_is_not_declared_cannot_be_decoded() -> None:
    for body in (b'{"type":"eval/made-up","id":"1","time":"t"}', b'{"id":"1"}', b"[]", b"{"):
        with pytest.raises(msgspec.MsgspecError):
            events.decode(body)
    with pytest.raises(msgspec.ValidationError):
        events.decode(b'{"type":"eval/queued","id":"1","time":"t","position":"first"}')


def test_prefixes_and_names_pick_types() -> None:
    assert events.matching_types([]) == frozenset(EVENTS)
    assert events.matching_types(["eval/queued", "log/"]) == {"eval/queued", "log/info", "log/error"}
    for word in ("eval", "nope/", "eval/que"):
        with pytest.raises(ValueError, match=word):
            events.matching_types([word])


def test_a_message_is_part_of_an_event_only_when_it_is_json() -> None:
    assert events.as_raw_json(b'{"out":"hi"}') is not None
    assert events.as_raw_json(b'{"out":"hi"') is None
    assert events.as_raw_json(b'{} , "type":"broker/started"') is None


def test_a_notice_to_a_slow_reader_is_a_message_of_its_subscription() -> None:
    message = msgspec.json.decode(events.wrap_event('a"b', events.build_lagged(7)))
    assert message["id"] == 'a"b'
    assert (message["event"]["type"], message["event"]["missed"]) == ("bus/lagged", 7)

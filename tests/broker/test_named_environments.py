"""Named environments in the core: whose a name is, and how many there may be."""

from __future__ import annotations

import pytest

from replbroker.core.environments import Environments
from replwire.faults import Refusal
from replwire.limits import Limits

KEPT = frozenset({"@a", "@b", "@uid:7/a"})
NAMES = Environments("uid:1", lambda: KEPT)


@pytest.mark.parametrize(
    ("asked", "identity", "found"),
    [
        ("@a", "uid:1", "@a"),
        ("@a", "uid:7", "@uid:7/a"),
        ("@uid:7/a", "uid:7", "@uid:7/a"),
        ("@uid:1/a", "uid:1", "@a"),
    ],
)
def test_a_name_is_its_owners(asked: str, identity: str, found: str) -> None:
    assert NAMES.qualified(asked, identity) == found


@pytest.mark.parametrize(
    ("asked", "word"),
    [("@uid:1/a", "forbidden"), ("@../a", "invalid-request"), ("@", "invalid-request"), ("@a.b", "invalid-request")],
)
def test_anothers_name_and_no_name_are_refused(asked: str, word: str) -> None:
    with pytest.raises(Refusal) as caught:
        NAMES.qualified(asked, "uid:7")
    assert caught.value.word == word


def test_there_is_room_for_those_that_are_there_and_no_more() -> None:
    limits = Limits(max_environments=4, max_identity_environments=2)
    NAMES.check_room("@a", [], limits)
    NAMES.check_room("@uid:7/b", [], limits)
    NAMES.check_room("@uid:7/b", ["@uid:7/b"], limits)
    for environment, used, limit in (
        ("@c", [], "max-identity-environments"),
        ("@uid:7/c", ["@uid:7/b"], "max-identity-environments"),
        ("@uid:8/c", ["@uid:7/b"], "max-environments"),
    ):
        with pytest.raises(Refusal) as caught:
            NAMES.check_room(environment, used, limits)
        assert caught.value.word == "environment-limit-reached"
        assert caught.value.more["limit"] == limit

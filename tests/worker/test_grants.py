"""From an identity to its rights on this machine, and the id maps that show them to a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replwire.identities import Identity, Principal
from replworker.grants import GrantResolver
from replworker.sandbox.private_mounts import swapped_id_map
from replworker.sandbox.rights import Rights, acting_as
from replworker.sandbox.workspace import DirectoryRefused

ALL = [(0, 4294967295)]


@pytest.mark.parametrize(
    ("ranges", "one", "other", "lines"),
    [
        (ALL, 1001, 61005, ["0 0 1001", "1001 61005 1", "1002 1002 60003", "61005 1001 1", "61006 61006 4294906289"]),
        (ALL, 0, 61000, ["0 61000 1", "1 1 60999", "61000 0 1", "61001 61001 4294906294"]),
        (ALL, 61000, 61000, ["0 0 61000", "61000 61000 1", "61001 61001 4294906294"]),
        ([(0, 1), (1, 65536)], 1, 61000, ["0 0 1", "1 61000 1", "2 2 60998", "61000 1 1", "61001 61001 4536"]),
    ],
)
def test_an_id_map_has_two_ids_change_places_and_leaves_all_others(
    ranges: list[tuple[int, int]], one: int, other: int, lines: list[str]
) -> None:
    assert swapped_id_map(ranges, one, other).splitlines() == lines


def test_an_ordinary_users_broker_opens_everything_as_that_user_where_its_config_lets_an_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    grants = GrantResolver((Identity(name="ada", workspaces=["/srv/ada"]),))
    assert (
        grants.resolve(Principal(identity="ada")).rights,
        grants.resolve(Principal(identity="ada")).directories,
    ) == (
        None,
        ("/srv/ada",),
    )
    assert not grants.resolve(Principal(identity="bob")).is_restricted


@pytest.mark.needs_root("of a root broker")
@pytest.mark.parametrize(
    ("identity", "why"),
    [
        ("anyone", r"in \[\[identities\]\] of the broker's config"),
        ("", r"in \[\[identities\]\] of the broker's config"),
        ("ada", r"in \[\[identities\]\] of the broker's config"),
        ("gone", r"\[\[identities\]\] names nobody-of-this-name for gone, which does not exist"),
        ("uid:3999999", "not in this machine's user database"),
    ],
)
def test_who_is_no_user_of_this_machine_gets_nothing_of_a_root_broker(identity: str, why: str) -> None:
    grants = GrantResolver((Identity(name="gone", user="nobody-of-this-name"),))
    with pytest.raises(DirectoryRefused, match=why):
        grants.resolve(Principal(identity=identity))


@pytest.mark.needs_root("of a root broker")
def test_rights_are_the_owners_and_roots_are_roots() -> None:
    grants = GrantResolver((Identity(name="ada", user="nobody"), Identity(name="ops", user="root")))
    assert grants.resolve(Principal(identity="uid:0")).rights is None
    assert grants.resolve(Principal(identity="ops")).rights is None
    ada = grants.resolve(Principal(identity="ada")).rights
    assert ada is not None
    assert ada.uid == 65534
    result = grants.resolve(Principal(identity="uid:3999999", groups=(7, 8, 9))).rights
    assert result == Rights(3999999, 7, (7, 8, 9))
    assert grants.resolve(Principal(identity="uid:65534", groups=(7,))).rights == Rights(
        65534, 7, (7,)
    )  # the process has no others


@pytest.mark.needs_root("takes root's rights away for a moment")
def test_rights_are_taken_on_and_given_back(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_text("x")
    secret.chmod(0o600)
    tmp_path.chmod(0o755)
    ada = Rights(3999999, 3999999, (7,))
    before = os.getgroups()
    with acting_as(ada):
        assert os.getgroups() == [7]
        with acting_as(ada), pytest.raises(PermissionError):
            secret.open()
        assert not os.access(secret, os.R_OK, effective_ids=True)
        with acting_as(Rights(3999999, 0)), pytest.raises(PermissionError):
            secret.open()
    assert secret.read_text() == "x"
    assert os.getgroups() == before
    with pytest.raises(OSError, match="cannot assume the rights"), acting_as(Rights(0xFFFF_FFFF, 1)):
        pass
    assert secret.read_text() == "x"

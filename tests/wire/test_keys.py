"""Key files: who may read them, and where they come to lie."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replwire.keys import KeyPair, KeyStore

OTHER_UID = 65534
PUBLIC = "x" * 40


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A state directory of another user, who can get there."""
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        directory = Path(above, "state")
        directory.mkdir(mode=0o700)
        os.chown(directory, OTHER_UID, OTHER_UID)
        yield directory


def test_the_state_directory_that_the_first_key_makes_is_its_users_alone(tmp_path: Path) -> None:
    state = tmp_path / "new" / "replctl"
    KeyStore(str(state)).allow("ada", PUBLIC)
    made = [state, *state.rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o077] == []


@pytest.mark.needs_root("to act for another user")
def test_what_root_makes_for_another_users_broker_is_that_users(theirs: Path) -> None:
    keys = KeyStore(str(theirs))
    keys.set_server(KeyPair("p", "s"))
    keys.allow("ada", PUBLIC)
    keys.add_token("bob", "secret")
    assert {path.stat().st_uid for path in theirs.rglob("*")} == {OTHER_UID}
    assert keys.revoke("ada")
    assert [each.name for each in keys.list_keys()] == ["bob"]
    assert (os.geteuid(), os.getegid()) == (0, 0)


@pytest.mark.needs_root("to act for another user")
@pytest.mark.parametrize("act", [lambda keys: keys.allow("ada", PUBLIC), lambda keys: keys.revoke("old")])
def test_links_of_another_user_lead_root_nowhere(theirs: Path, act: Callable[[KeyStore], object]) -> None:
    roots = theirs.parent / "roots"
    roots.mkdir(mode=0o755)
    (roots / "old").touch()
    (theirs / "keys").mkdir()
    (theirs / "keys/clients").symlink_to(roots)
    os.chown(theirs / "keys", OTHER_UID, OTHER_UID)
    with pytest.raises(PermissionError):
        act(KeyStore(str(theirs)))
    assert [path.name for path in roots.iterdir()] == ["old"]

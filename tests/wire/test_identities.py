"""`[[identities]]` of the config: what is taken, and what is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from replwire.config import ConfigError, load
from replwire.identities import Identities


def entry(**fields: str) -> str:
    return "[[identities]]\n" + "".join(f"{name} = {value}\n" for name, value in fields.items())


def test_an_identity_has_a_host_user_and_directories_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    text = entry(name='"ada"', user='"alice"', workspaces=f'["{tmp_path}/link"]') + entry(name='"uid:1000"')
    known = Identities(load(text).config.identities)
    ada, local = known.get("ada"), known.get("uid:1000")
    assert ada is not None
    assert local is not None
    assert (ada.user, ada.workspaces) == ("alice", [str(tmp_path)])
    assert (local.user, local.workspaces) == (None, [])
    assert known.get("bob") is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (entry(name='"a"') + entry(name='"a"'), "file: identities: a is listed twice"),
        (entry(name='"a"', quota="1"), "unknown field `quota`"),
        (entry(name='"ada"') + entry(name='"bob"', user="7"), r"identities \(bob, user\): Expected `str"),
        (entry(name='"ada"', quotas="{max-sessions = -1}"), r"identities \(ada, quotas.max-sessions\): Expected `int`"),
        (entry(name='"a b"'), r"identities \(a b, name\)"),
        (entry(user='"root"'), r"identities \(entry 1\): .*missing required field `name`"),
        (entry(name='"anyone"', user='"bob"'), "not an authenticated identity"),
        (entry(name='"uid:7"', user='"bob"'), "local users are identified by the kernel"),
        (entry(name='"uid:007"'), "has no leading zeros"),
        (entry(name='"a"', workspaces='["work"]'), "'work' is not an absolute path"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        load(text)


def test_identities_stand_in_the_file_alone() -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        load(flags={"identities": "[]"})
    with pytest.raises(ConfigError, match=r"identities is outside a section|Expected `array`"):
        load('[identities]\nname = "a"')

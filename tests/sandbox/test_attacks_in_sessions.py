"""Every way out again, now as an eval of a whole broker's session, while others are answered within a second.

With `REPLCTL_SOAK=1` the controls are tried as the ordinary user's too; test_attacks.py has them for both always.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from attack_environment import REAL
from attack_targets import SOAK, USERS, AttackSite, site
from attacks import ATTACKS, Attack
from replworker.sandbox.report import SandboxReport
from test_attacks import ABSENT

# Two are about descriptors that the arena gives away; a session inherits none of the broker's.
INHERITED = ("DIRECTORY_FD", "LOG_FD")
TRIED = [attack for attack in ATTACKS if not any(name in attack.code for name in INHERITED)]


def pairs(*controls: str, held: bool = False) -> list[object]:
    """Return pairs of users and attacks."""
    return [
        pytest.param(who, attack, id=f"{who}: {attack.id}")
        for who in (USERS if held or SOAK else USERS[:1])
        for attack in TRIED
        if attack.control in controls and not (who == "user" and (attack.group or controls == ("root",)))
    ]


class AttackSites:
    """Started when they are first needed, all ended together."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._sites: dict[tuple[str, bool], AttackSite] = {}

    def get(self, who: str, *, sandboxed: bool) -> AttackSite:
        if (who, sandboxed) not in self._sites:
            self._sites[who, sandboxed] = self._stack.enter_context(site(who, sandboxed=sandboxed))
        return self._sites[who, sandboxed]


@pytest.fixture(scope="module")
def sites(report: SandboxReport) -> Iterator[AttackSites]:
    assert report.ok
    with ExitStack() as stack:
        yield AttackSites(stack)


@pytest.mark.parametrize(("who", "attack"), pairs("always", "root", "feature", held=True))
def test_it_is_held_and_nobody_else_waits(sites: AttackSites, who: str, attack: Attack) -> None:
    assert sites.get(who, sandboxed=True).attempt(attack).startswith("HELD")


@pytest.mark.parametrize(("who", "attack"), pairs("always"))
def test_it_gets_out_of_a_session_without_a_sandbox(sites: AttackSites, who: str, attack: Attack) -> None:
    assert sites.get(who, sandboxed=False).attempt(attack) == "OUT"


@pytest.mark.parametrize(("who", "attack"), pairs("root"))
def test_it_gets_out_of_a_root_brokers_session_without_a_sandbox(sites: AttackSites, who: str, attack: Attack) -> None:
    assert sites.get(who, sandboxed=False).attempt(attack) == "OUT"


@pytest.mark.parametrize(("who", "attack"), pairs("feature"))
def test_it_gets_out_without_where_the_kernel_has_it(sites: AttackSites, who: str, attack: Attack) -> None:
    assert ABSENT.search(sites.get(who, sandboxed=False).attempt(attack))


def test_a_session_inherits_no_descriptor_that_leads_anywhere(sites: AttackSites) -> None:
    """The two attacks with foreign descriptors would need more: sockets and pipes are all there is."""
    for who in USERS:
        place = sites.get(who, sandboxed=True)
        place.open_session("python")
        code = (
            "import os\n[os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in os.listdir('/proc/self/fd')[:-1]]"
        )
        kinds = place.run(code).value or ""
        place.close_session()
        assert set(eval(kinds)) == {"pipe", "socket"}


def test_the_real_targets_are_aimed_at_from_inside_alone() -> None:
    assert set(REAL) <= {name for attack in ATTACKS for name in REAL if name in attack.code}

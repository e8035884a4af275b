"""Whatever one session does, the broker and other sessions answer within a second, and nothing of it is left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from attack_targets import SOAK, USERS, AttackSite, site
from attacks import ATTACKS
from kit import CollectedReplies, processes_with, wait_until
from live_processes import look_at_each
from replworker.sandbox.report import LAYERS, SandboxReport
from resource_exhaustion import EXHAUSTIONS, Exhaustion

DOC = Path(__file__).parents[2] / "docs/security.md"
LASTS_MS = 800  # of a storm that has no end of its own
ENDS_MS = 20_000
MOST_GROWTH = 64 << 20  # of the broker and of a session's worker, in bytes, while a session prints without end


@pytest.fixture(scope="module")
def sites(report: SandboxReport) -> Iterator[dict[str, AttackSite]]:
    assert report.ok
    with ExitStack() as stack:
        yield {who: stack.enter_context(site(who, sandboxed=True)) for who in USERS}


def ending(answer: CollectedReplies) -> str:
    """Return the outcome of an eval."""
    ex = answer.get("ex") or {}
    word = ex.get("type") or next((word for word in answer.status if word not in ("done", "error")), "ok")
    if "error" in answer.status and word == "ok":
        word = "eval-error"
    dropped = ", output dropped" if answer.get("dropped-bytes") else ""
    cause = f": {answer['cause']}" if answer.get("cause") else ""
    return f"{word}, state {answer.get('state')}{dropped}{cause}"


@pytest.mark.parametrize(
    ("who", "storm"),
    [
        pytest.param(who, storm, id=f"{who}: {storm.id}")
        for who in (USERS if SOAK else USERS[:1])
        for storm in EXHAUSTIONS
        if not (storm.group and who == "user")
    ],
)
def test_everybody_else_is_answered_and_nothing_is_left(
    sites: dict[str, AttackSite], who: str, storm: Exhaustion
) -> None:
    place = sites[who]
    mark = f"STORM-{who}-{EXHAUSTIONS.index(storm)}"
    place.open_session(storm.runtime, mark=mark)
    endless = storm.endless or storm.ends.startswith("timeout")
    ended = ending(place.run(storm.code, LASTS_MS if endless else ENDS_MS))
    place.assert_others_respond()
    place.close_session()
    assert ended.startswith((storm.ends, storm.or_else or storm.ends))
    wait_until(lambda: not processes_with(mark), "all that the session started is gone")
    place.assert_others_respond()


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("code", ["while True: print('x' * 10**6)", "import os\nwhile True: os.write(2, b'x' * 65536)"])
def test_output_without_end_costs_the_broker_and_the_worker_nothing(
    sites: dict[str, AttackSite], who: str, code: str
) -> None:
    place = sites[who]
    place.open_session("python")
    place.run("print('x' * 10**7)")  # what one eval may keep is there now
    before = look_at_each(place.broker.process_tree(), resident, at_least=4)
    answer = place.run(code, LASTS_MS)
    grown = {pid: size - before[pid] for pid, size in look_at_each(before, resident, at_least=4).items()}
    place.close_session()
    assert answer["dropped-bytes"] > 0
    assert place.broker.pid in grown
    assert max(grown.values()) < MOST_GROWTH, grown


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ends(storm: Exhaustion) -> str:
    """As the table says it."""
    return f"{storm.ends}, or {storm.or_else}" if storm.or_else else storm.ends


def test_every_storm_names_layers_that_exist_and_a_control_that_does() -> None:
    assert len({storm.id for storm in EXHAUSTIONS}) == len(EXHAUSTIONS)
    assert {layer for storm in EXHAUSTIONS for layer in storm.held_by} <= {*LAYERS, "worker", "broker"}
    assert {storm.control for storm in EXHAUSTIONS} - {None} <= {attack.id for attack in ATTACKS}


def test_the_table_of_storms_is_the_list_of_storms() -> None:
    rows = re.findall(r"^\| (python|node|bash) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", DOC.read_text(), re.M)
    assert rows == [(storm.runtime, storm.name, ", ".join(storm.held_by), ends(storm)) for storm in EXHAUSTIONS]

"""Every way out that is known: held inside a sandbox, and open to the very same program outside one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_environment import LIMITS
from attacks import ATTACKS, Attack
from replworker.sandbox.report import LAYERS, REQUIRED, SandboxReport

HERE = Path(__file__).parent
DOC = HERE.parents[1] / "docs/security.md"
ATTACKS_TIMEOUT_S = 240.0
# A kernel without the feature refuses everybody, in one of these ways.
ABSENT = re.compile(r"OUT|Function not implemented|not supported|Operation not permitted|No space left|HELD 1$")
USERS = ["root", "user"] if os.getuid() == 0 else ["user"]
PAIRS = [
    pytest.param(who, attack, id=f"{who}: {attack.id}")
    for who in USERS
    for attack in ATTACKS
    if not (attack.group and who == "user")
]
ALONE = ("landlock", "seccomp", "network", "memory")  # layers that can be left out one by one
Results = dict[tuple[str, str], dict[str, str]]


@pytest.fixture(scope="module")
def results(report: SandboxReport) -> Iterator[Results]:
    """All attacks, by each kind of user, bare and sandboxed; at once, each in a process of its own."""
    del report
    started = {
        (who, how): subprocess.Popen(
            [sys.executable, str(HERE / "attack_environment.py"), who, how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(HERE)},
            text=True,
        )
        for who in USERS
        for how in ("bare", "sandboxed", *(f"without-{layer}" for layer in ALONE))
        if (who, how) != ("user", "without-memory")
    }
    found: Results = {}
    try:
        for key, process in started.items():
            out, err = process.communicate(timeout=ATTACKS_TIMEOUT_S)
            assert process.returncode == 0, err
            found[key] = json.loads(out)["results"]
        yield found
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("who", "attack"), PAIRS)
def test_it_is_held(results: Results, who: str, attack: Attack) -> None:
    assert results[who, "sandboxed"][attack.id].startswith("HELD")


@pytest.mark.parametrize(("who", "attack"), [pair for pair in PAIRS if pair.values[1].control == "always"])
def test_it_would_get_out_without(results: Results, who: str, attack: Attack) -> None:
    assert results[who, "bare"][attack.id] == "OUT"


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.control == "root"], ids=lambda a: a.id)
@pytest.mark.needs_root("what only root may do, only root can try")
def test_root_would_get_out_without(results: Results, attack: Attack) -> None:
    assert results["root", "bare"][attack.id] == "OUT"


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.control == "feature"], ids=lambda a: a.id)
def test_it_would_get_out_where_the_kernel_has_it(results: Results, attack: Attack) -> None:
    assert ABSENT.search(results[USERS[0], "bare"][attack.id])


@pytest.mark.parametrize("layer", ALONE)
@pytest.mark.parametrize("who", USERS)
def test_what_a_layer_stops_alone_gets_out_without_it_and_nothing_else(results: Results, who: str, layer: str) -> None:
    found = results.get((who, f"without-{layer}"), {})
    absent = {
        attack.id for attack in ATTACKS if attack.control == "feature" and results[who, "bare"][attack.id] != "OUT"
    }
    alone = {attack.id for attack in ATTACKS if attack.layers == (layer,) and attack.id in found} - absent
    assert {name for name, verdict in found.items() if verdict == "OUT"} == alone


def test_every_attack_has_a_name_of_its_own_and_names_layers_that_exist() -> None:
    assert len({attack.id for attack in ATTACKS}) == len(ATTACKS)
    assert {layer for attack in ATTACKS for layer in attack.layers} <= set(LAYERS)
    assert set(LAYERS) - {layer for attack in ATTACKS for layer in attack.layers} == {
        "late-workspace",
        "cpu",
        "sockets",  # the last is held by mounts, network and landlock together
    }


def test_the_table_of_attacks_is_the_list_of_attacks() -> None:
    rows = re.findall(r"^\| (python|node|bash) \| ([^|]*) \| ([^|]*) \|$", DOC.read_text(), re.M)
    assert rows == [(attack.runtime, attack.name, ", ".join(attack.layers)) for attack in ATTACKS]


def test_the_table_of_layers_is_the_list_of_layers() -> None:
    rows = re.findall(r"^\| ([\w-]+) \| (.*?) \| (yes|no) \|$", DOC.read_text(), re.M)
    assert rows == [(name, text, "yes" if name in REQUIRED else "no") for name, text in LAYERS.items()]


def test_the_bounds_of_the_arena_are_below_what_attacks_ask_for() -> None:
    assert LIMITS.memory_bytes < 300 << 20
    assert LIMITS.tmp_bytes < 20 << 20
    assert LIMITS.file_bytes < 3 << 20
    assert LIMITS.open_files < 300
    assert LIMITS.pids < 100

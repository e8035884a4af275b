"""Packages of a session that has no network: installed from outside, importable at once, gone with the session."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end
from kit import BrokerProcess, Wire, wait_until
from live_processes import LOOK_INSIDE
from package_index import PASSWORD, PackageIndex, serve

ALPHA = "alpha/__init__.py"
CONFIG = """
[[agents]]
name = "careful"
packages = "ask"

[[agents]]
name = "barred"
packages = "deny"
"""


@pytest.fixture(scope="module")
def index() -> PackageIndex:
    index = PackageIndex()
    index.add(
        "alpha",
        "1.0",
        {
            ALPHA: "version = 1\ndef late():\n    from alpha import part\n    return part.value\n",
            "alpha/part.py": "value = 1",
        },
    )
    index.add("alpha", "2.0", {ALPHA: "version = 2", "alpha/part.py": "value = 2"})
    index.add("beta", "1.0", {"beta.py": "import alpha"}, ["alpha>=1", "click"])
    index.add("large", "1.0", {"large.py": "", "large.bin": os.urandom(3 << 20)})
    index.add_source(
        "source",
        "1.0",
        {
            "PKG-INFO": "Metadata-Version: 2.1\nName: source\nVersion: 1.0\n",
            "pyproject.toml": "[project]\nname='source'\nversion='1.0'\n",
        },
    )
    return index


@pytest.fixture(scope="module")
def broker(who: str, index: PackageIndex) -> Iterator[BrokerProcess]:
    """One whose user has an index with a password, in the broker's environment as pip and uv read it."""
    with serve(index) as url, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("UV_DEFAULT_INDEX", url)
        broker = begin(who, "limits.max-package-bytes=2000000", config=CONFIG)
        yield broker
        end(broker)


def add(wire: Wire, *packages: str, session: str = "s", action: str = "add", **fields: object) -> str:
    """Perform an action, which has to succeed; return its output."""
    answer = wire.ask("env", session=session, action=action, packages=list(packages), **fields)
    assert answer.status == ["done"], answer.messages
    return answer.out


def test_a_package_can_be_imported_at_once_and_stays_over_a_reset(wire: Wire) -> None:
    wire.run("kept = 1")
    assert "alpha 1.0" in add(wire, "alpha==1.0")
    assert wire.run("import alpha; alpha.version, kept").value == "(1, 1)"
    wire.ask("reset", session="s")
    assert wire.run("import alpha; alpha.version").value == "1"
    assert "alpha 1.0  (requested: alpha==1.0)" in add(wire, action="status")
    assert wire.ask("jobs", session="s")["jobs"][1]["code"] == "env add alpha==1.0"


def test_what_is_in_memory_keeps_its_version_until_a_reset_and_is_named(wire: Wire) -> None:
    wire.run("1")
    add(wire, "alpha==1.0")
    wire.run("import alpha")
    assert "alpha 1.0 stays in memory until a reset" in add(wire, "alpha==2.0")
    assert wire.run("alpha.version, alpha.late()").value == "(1, 1)"
    wire.ask("reset", session="s")
    assert wire.run("import alpha; alpha.version").value == "2"
    assert add(wire, "alpha") == "already there: alpha 2.0\n"


def test_a_clone_has_the_packages_and_goes_its_own_way(wire: Wire) -> None:
    wire.run("1")
    add(wire, "alpha==1.0")
    wire.run("import alpha\ndef f(): return alpha.version")
    assert wire.ask("clone", session="s", name="t").status == ["done"]
    assert wire.run("f()", session="t").value == "1"
    add(wire, "alpha==2.0", session="t")
    for name in ("s", "t"):
        wire.ask("reset", session=name)
    assert [wire.run("import alpha; alpha.version", session=name).value for name in ("s", "t")] == ["1", "2"]


def test_a_removed_package_is_gone_and_others_stay(wire: Wire) -> None:
    wire.run("1")
    add(wire, "alpha==1.0", "beta")
    assert "removed: beta 1.0" in add(wire, "beta", action="rm")
    assert wire.run("import alpha; alpha.version").value == "1"
    assert "ModuleNotFoundError" in wire.run("import beta")["err"]
    refused = wire.ask("env", session="s", action="rm", packages=["beta"])
    assert refused["err"] == "not among the packages requested for this session: beta; requested are alpha==1.0"


def test_what_the_environment_has_is_not_installed_again(wire: Wire) -> None:
    wire.run("1")
    add(wire, "beta")
    status = add(wire, action="status")
    assert "click" not in status.partition("in its environment")[0]
    assert "  click " in status.partition("in its environment")[2]


def test_an_update_takes_the_newest_and_a_trial_changes_nothing(wire: Wire) -> None:
    wire.run("1")
    add(wire, "alpha<2")
    add(wire, "alpha", action="resolve")
    assert "alpha 1.0" in add(wire, action="status")
    add(wire, "alpha>=1")
    assert "alpha 1.0" in add(wire, action="status")
    add(wire, action="update")
    assert wire.run("import alpha; alpha.version").value == "2"


def test_a_misspelt_package_is_named_with_the_reason(wire: Wire) -> None:
    wire.run("1")
    answer = wire.ask("env", session="s", action="add", packages=["alhpa"])
    assert answer.status == ["done", "error"]
    assert "alhpa was not found" in answer["err"]
    assert answer["err"].startswith("nothing has changed")
    assert wire.run("1").value == "1"


NO_NAMES = (
    "--target=/tmp", "-e.", "./alpha", "/tmp/a.whl", "git+https://example.org/x", "a @ file:///etc", "a;os_name=='x'",
    "a b", "a\nb", "a===1", "-r/etc/passwd", "${HOME}", "a@1", "", "é",
)  # fmt: skip


def test_nothing_but_a_name_with_versions_reaches_the_tool(wire: Wire) -> None:
    wire.run("1")
    for name in NO_NAMES:
        for action in ("add", "rm", "update", "resolve"):
            answer = wire.ask("env", session="s", action=action, packages=[name])
            assert answer.status == ["done", "error", "invalid-request"], (name, answer.messages)
    assert len(wire.ask("jobs", session="s")["jobs"]) == 1


def test_a_package_without_a_wheel_is_refused_and_its_code_does_not_run(wire: Wire) -> None:
    wire.run("1")
    answer = wire.ask("env", session="s", action="add", packages=["source"])
    assert answer.status == ["done", "error"]
    assert "wheel" in answer["err"]


def test_a_file_of_the_project_names_packages_and_nothing_else(wire: Wire, tmp_path: Path) -> None:
    del tmp_path
    wire.run(
        "import os; os.chdir('/tmp/work'); open('requirements.txt', 'w').write('alpha<2  # old\\nbeta; python_version < \"3\"\\n')"
    )
    add(wire, action="instantiate")
    assert wire.run("import alpha; alpha.version").value == "1"
    wire.run("open('requirements.txt', 'w').write('alpha\\n--index-url http://example.org\\n')")
    answer = wire.ask("env", session="s", action="instantiate")
    assert "requirements.txt, line 2" in answer["err"]
    assert wire.ask("env", session="s", action="instantiate", path="/etc/shadow").status == ["done", "error"]


def test_an_installation_can_be_interrupted_and_leaves_nothing(
    wire: Wire, broker: BrokerProcess, index: PackageIndex
) -> None:
    wire.run("x = 1")
    index.stalled.clear()
    asked = wire.send("env", session="s", action="add", packages=["slow"])
    assert index.stalled.wait(20)
    begun = time.monotonic()
    wire.ask("interrupt", session="s")
    assert wire.answer(asked).status == ["done", "interrupted"]
    assert time.monotonic() - begun < 5
    assert wire.run("x").value == "1"
    jobs = broker.directory / "packages/shared/jobs"
    wait_until(lambda: not [*jobs.iterdir()], "the directory of the installation is removed")


def test_two_sessions_install_at_once(wire: Wire) -> None:
    for name in ("s", "t"):
        wire.run("1", session=name)
    asked = [wire.send("env", session=name, action="add", packages=["beta"]) for name in ("s", "t")]
    assert [wire.answer(each).status for each in asked] == [["done"]] * 2
    assert [wire.run("import beta; 1", session=name).value for name in ("s", "t")] == ["1", "1"]


def test_the_index_password_is_for_the_installer_alone(wire: Wire, broker: BrokerProcess) -> None:
    wire.run("1")
    wire.send("env", session="s", action="add", packages=["alpha", "nothing-there"])
    add(wire, "beta")
    seen = wire.run(LOOK_INSIDE)
    assert "PATH" in seen.out, seen.messages  # so there was something to be read
    assert PASSWORD not in repr(seen.messages)
    assert PASSWORD not in repr(wire.ask("read", session="s", eval_id=2).messages)
    found = [path for path in broker.directory.rglob("*") if path.is_file() and "cache" not in str(path)]
    assert not [path for path in found if PASSWORD.encode() in path.read_bytes()]


def test_the_session_can_change_nothing_of_its_packages(wire: Wire) -> None:
    wire.run("1")
    add(wire, "alpha")
    for code in ("open(alpha.__file__, 'a')", "import os; os.remove(alpha.__file__)", "os.mkdir('/run/packages/x')"):
        refused = wire.run(f"import alpha, os; {code}")["err"]
        assert "Read-only file system" in refused or "Permission denied" in refused


def test_more_than_a_session_may_have_is_not_published(wire: Wire) -> None:
    wire.run("1")
    answer = wire.ask("env", session="s", action="add", packages=["large"])
    assert "limits.max-package-bytes = 2000000" in answer["err"]
    assert "ModuleNotFoundError" in wire.run("import large")["err"]
    add(wire, "alpha")


def test_an_agent_may_have_to_ask_or_may_not_install_at_all(wire: Wire) -> None:
    wire.run("1")
    barred = wire.ask("env", session="s", action="add", packages=["alpha"], agent="barred")
    assert barred.status == ["done", "error", "forbidden"]
    assert wire.ask("env", session="s", action="status", agent="barred").status == ["done"]
    asked = wire.ask("env", session="s", action="add", packages=["alpha"], agent="careful")
    assert asked.status == ["done", "error", "approval-needed"]
    granted = asked["approval"]["id"]
    other = wire.ask("env", session="s", action="add", packages=["beta"], agent="careful", approval=granted)
    assert other.status[-1] == "approval-needed"
    add(wire, "alpha", agent="careful", approval=granted)
    again = wire.ask("env", session="s", action="add", packages=["alpha"], agent="careful", approval=granted)
    assert again.status[-1] == "approval-needed"


def test_packages_go_with_their_session(wire: Wire, broker: BrokerProcess) -> None:
    session = wire.ask("new-session", name="s")["session"]
    add(wire, "alpha")
    layer = broker.directory / "packages/layers" / session
    assert layer.is_dir()
    wire.ask("close", session="s")
    wait_until(lambda: not layer.exists(), "the packages of a closed session are removed")

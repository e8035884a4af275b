"""Directories and environments that a client might ask for, because a session with them would be more than a session."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import replwire
from attack_targets import begin, end, uid_of
from kit import BrokerProcess, Wire
from replwire.policy import Policy

EXTENSION = "from replctl.ext import hookimpl\n\n\n@hookimpl\ndef replctl_register(register, settings): pass\n"


@pytest.fixture(scope="module")
def work(who: str) -> Iterator[Path]:
    """A directory of the broker's user, in which its config and an extension lie."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-work-", dir="/tmp"))
    (directory / "extension.py").write_text(EXTENSION)
    for path in (directory, *directory.iterdir()):
        os.chown(path, uid_of(who), uid_of(who))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def broker(who: str, work: Path) -> Iterator[BrokerProcess]:
    config = f'[[extensions]]\npath = "{work}/extension.py"\n'
    broker = begin(who, config=config, config_in=work)
    yield broker
    end(broker)


def test_a_directory_below_the_brokers_own_is_given_to_nobody(wire: Wire, broker: BrokerProcess) -> None:
    for directory in (broker.directory / "run", broker.directory / "transcripts"):
        refused = wire.ask("new-session", name="s", cwd=str(directory))
        assert refused.status == ["done", "error", "invalid-request"]
        assert "hidden from sessions" in refused["err"]


def test_where_the_brokers_code_lies_is_no_place_to_write(wire: Wire) -> None:
    code = str(Path(str(replwire.__file__)).parents[1])
    for directory in (sys.prefix, os.path.dirname(sys.executable), code, f"{code}/replwire"):
        refused = wire.ask("new-session", name="s", cwd=directory)
        assert refused.status == ["done", "error", "invalid-request"], directory


def test_what_the_broker_obeys_at_its_next_start_is_not_written(wire: Wire, work: Path) -> None:
    opened = wire.ask("new-session", name="s", cwd=str(work))
    assert opened.status == ["done"], opened.messages
    for name in ("config.toml", "extension.py"):
        before = (work / name).read_text()
        for attempt in (
            f"open({name!r}, 'a')",
            f"import os; os.unlink({name!r})",
            f"import os; os.rename({name!r}, 'x')",
        ):
            assert wire.run(attempt).status[1] == "error", attempt
        assert (work / name).read_text() == before
    assert wire.run("open('mine', 'w').write('hi')").value == "2"


def test_a_program_in_the_place_of_a_python_does_not_get_around_the_limits(wire: Wire, work: Path, who: str) -> None:
    (work / "sly/bin").mkdir(parents=True)
    (program := work / "sly/bin/python").write_text(
        '#!/bin/sh\nfor word; do case "$word" in *harness.py) break;; esac; shift; done\nexec /usr/bin/python3 "$@"\n'
    )
    program.chmod(0o755)
    for path in (program.parent.parent, program.parent, program):
        os.chown(path, uid_of(who), uid_of(who))
    opened = wire.ask("new-session", name="s", runtime=str(program), cwd=str(work))
    assert opened.status == ["done"], opened.messages
    bound = wire.run("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[1]").value
    assert bound == str(Policy().limits.open_files)


def test_an_environment_that_a_session_has_made_shows_it_nothing_of_others(
    wire: Wire, broker: BrokerProcess, work: Path, who: str
) -> None:
    """`pyvenv.cfg` and `.pth` files name other directories, and a session may write anything there."""
    (secrets := broker.directory / "secrets").mkdir()
    (secret := secrets / "secret").write_text("for nobody")
    for path in (secrets, secret):
        os.chown(path, uid_of(who), uid_of(who))
    opened = wire.ask("new-session", name="s", cwd=str(work))
    assert opened.status == ["done"], opened.messages
    made = wire.run(
        "import os\n"
        "os.makedirs('env/bin'); os.makedirs('env/lib/python3.11/site-packages'); os.makedirs('lies')\n"
        f"os.symlink('/usr/bin/python3', 'env/bin/python'); os.symlink({str(secret)!r}, 'lies/python3')\n"
        f"open('env/pyvenv.cfg', 'w').write('home = {work}/lies')\n"
        f"open('env/lib/python3.11/site-packages/x.pth', 'w').write({str(secrets)!r})"
    )
    assert made.status == ["done"], made.messages
    opened = wire.ask("new-session", name="t", runtime=f"{work}/env", cwd=str(work))
    assert opened.status == ["done"], opened.messages
    assert wire.run(f"open({str(secret)!r}).read()", session="t")["ex"]["type"] == "FileNotFoundError"

"""The distribution: typed for its users, whole in its source form, and readable where the repository is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from fnmatch import fnmatch
from pathlib import Path

import pytest

from replctl import __version__

ROOT = Path(__file__).resolve().parents[2]

# A user's program; its last line has the one fault that mypy is to find.
USER_PROGRAM = """
from replbroker.core.engine import BrokerCore
from replctl import Client
from replwire.limits import Limits
from replworker.boot import main

limits: Limits = Limits()
with Client(agent="ada") as client:
    result = client.eval("6*7", session="work")
    value: str | None = result.value
    wrong: int = result.value
"""


def _build(kind: str, directory: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = directory.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_a_users_program_is_type_checked_against_the_installed_package(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    program = tmp_path / "program.py"
    program.write_text(USER_PROGRAM)
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--python-executable",
            str(environment / "bin/python"),
            "--config-file=",
            "--cache-dir",
            str(tmp_path / "cache"),
            str(program),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    faults = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert len(faults) == 1, checked.stdout + checked.stderr
    assert re.search(r"program.py:11: error: .*str \| None", faults[0])


def test_the_version_stands_in_one_place(metadata: Message) -> None:
    assert metadata["Version"] == __version__


def test_links_of_the_description_lead_somewhere(metadata: Message) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def _kept_files() -> set[str]:
    """Every file of this tree that `.gitignore` does not leave out, by its path."""
    ignored = {*(ROOT / ".gitignore").read_text().split(), ".git/"}
    found = set()
    for directory, names, files in os.walk(ROOT):
        names[:] = [name for name in names if not any(fnmatch(f"{name}/", pattern) for pattern in ignored)]
        found |= {str((Path(directory) / name).relative_to(ROOT)) for name in files}
    return found - {".git"}  # a worktree's


def test_the_source_distribution_has_every_file_of_the_repository(tmp_path: Path) -> None:
    with tarfile.open(_build("sdist", tmp_path)) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert _kept_files() - packed == set()

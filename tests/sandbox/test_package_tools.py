"""Packages by other means than uv and wheels: pip where there is no uv, builds where they are permitted, rollbacks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end
from kit import BrokerProcess, Wire
from package_index import PackageIndex, serve

# A build backend without requirements, which tells the module that it builds where it runs.
BACKEND = """
import os, socket, zipfile
def seen():
    try:
        socket.create_connection(("elsewhere.test", 80), 5).close()
        reached = True
    except OSError:
        reached = False
    parts = {"reached": reached, "variables": dict(os.environ), "project": os.path.exists(PROJECT)}
    return parts
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "source-1.0-py3-none-any.whl"
    info = "source-1.0.dist-info"
    files = {
        "source.py": "seen = " + repr(seen()),
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: source\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in files)
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""
PYPROJECT = "[project]\nname='source'\nversion='1.0'\n[build-system]\nrequires=[]\nbuild-backend='backend'\nbackend-path=['.']\n"


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A working directory that everybody may use."""
    place = Path(tempfile.mkdtemp(prefix="rpt-", dir="/tmp"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module", autouse=True)
def index(project: Path) -> Iterator[None]:
    """An index, whose settings the brokers of these tests find in their environment."""
    index = PackageIndex()
    for version in ("1.0", "2.0"):
        index.add("alpha", version, {"alpha.py": f"version = {version}"})
    index.add("beta", "1.0", {"beta.py": "import alpha"}, ["alpha"])
    info = "Metadata-Version: 2.1\nName: source\nVersion: 1.0\n"
    backend = f"PROJECT = {str(project)!r}\n{BACKEND}"
    index.add_source("source", "1.0", {"PKG-INFO": info, "pyproject.toml": PYPROJECT, "backend.py": backend})
    with serve(index) as url, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", url)
        patch.setenv("PIP_TRUSTED_HOST", "127.0.0.1 loopback.internal")
        yield


@pytest.fixture(scope="module")
def with_pip(who: str, project: Path) -> Iterator[BrokerProcess]:
    """A broker that finds no uv."""
    with pytest.MonkeyPatch.context() as patch:
        (project / "blocked").mkdir(exist_ok=True)
        (project / "blocked/uv.py").write_text("raise ImportError('blocked')")
        patch.setenv("PYTHONPATH", str(project / "blocked"))
        patch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        assert shutil.which("uv") is None
        broker = begin(who)
    yield broker
    end(broker)


@pytest.fixture(scope="module")
def with_builds(who: str) -> Iterator[BrokerProcess]:
    broker = begin(who, "packages.builds=true")
    yield broker
    end(broker)


def env(wire: Wire, action: str, *packages: str) -> str:
    """Perform an action, which has to succeed; return its output."""
    answer = wire.ask("env", session="s", action=action, packages=list(packages))
    assert answer.status == ["done"], answer.messages
    return answer.out


def test_without_uv_pip_installs_the_same(with_pip: BrokerProcess) -> None:
    with with_pip.wire() as wire:
        wire.run("1")
        answer = wire.ask("env", session="s", action="add", packages=["alpha==1.0"])
        assert answer.status == ["done"], answer.messages
        assert "Successfully installed alpha-1.0" in answer.err, "pip itself says so"
        assert "importable now: alpha 1.0" in answer.out
        assert wire.run("import alpha; alpha.version").value == "1.0"
        env(wire, "add", "beta")
        assert "alpha 1.0  (requested: alpha==1.0)" in env(wire, "status"), "pins stay"
        assert "removed: beta 1.0" in env(wire, "rm", "beta")
        refused = wire.ask("env", session="s", action="add", packages=["source"])
        assert refused.status == ["done", "error"]
        assert "nothing has changed" in refused["err"]
        missing = wire.ask("env", session="s", action="add", packages=["not-there"])
        assert "No matching distribution found for not-there" in missing["err"]


def test_a_build_runs_in_the_installers_sandbox_and_sees_nothing_of_the_session(
    with_builds: BrokerProcess, project: Path
) -> None:
    with with_builds.wire() as wire:
        (project / "mine").write_text("secret")
        wire.ask("new-session", name="s", cwd=str(project), env=["OF_THE_SESSION=1"])
        assert "importable now: source 1.0" in env(wire, "add", "source")
        seen = wire.run("import source; source.seen['reached'], source.seen['project']")
        assert seen.value == "(False, False)"
        assert wire.run("'OF_THE_SESSION' in source.seen['variables']").value == "False"
        assert wire.run("'PIP_INDEX_URL' in source.seen['variables']").value == "True", "the installer's own"


def test_what_is_built_stays_out_of_the_common_cache(with_builds: BrokerProcess) -> None:
    with with_builds.wire() as wire:
        wire.run("1")
        env(wire, "add", "source")
    assert not list((with_builds.directory / "packages/shared").rglob("source*"))


def test_packages_stay_after_a_rollback_to_a_moment_before_they_were_installed(with_builds: BrokerProcess) -> None:
    with with_builds.wire() as wire:
        wire.run("x = 1")
        before = wire.ask("checkpoint", session="s", name="before")
        assert before.status == ["done"], before.messages
        env(wire, "add", "alpha==1.0")
        wire.run("import alpha; x = 2")
        assert wire.ask("rollback", session="s", to="before").status == ["done"]
        assert wire.run("x").value == "1"
        assert "alpha 1.0" in env(wire, "status")
        assert wire.run("import alpha; alpha.version").value == "1.0"
        env(wire, "add", "alpha==2.0", "beta")
        assert wire.ask("rollback", session="s", to="before").status == ["done"]
        assert wire.run("import beta; beta.alpha.version").value == "2.0"

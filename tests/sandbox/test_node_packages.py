"""Packages of a Node session without a network: by npm, in a sandbox of its own, from the operator's registry."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end
from kit import BrokerProcess, Wire
from live_processes import LOOK_INSIDE
from npm_registry import TOKEN, NpmRegistry, serve_npm

pytestmark = pytest.mark.needs_program("node", "npm")


@pytest.fixture(scope="module")
def registry() -> NpmRegistry:
    registry = NpmRegistry()
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        registry.add("alpha", version, {"main.js": f"exports.version = '{version}';"})
    registry.add(
        "@team/beta", "1.0.0", {"main.js": "exports.alpha = require('alpha').version;"}, dependencies={"alpha": "^1"}
    )
    registry.add("modern", "1.0.0", {"main.js": "export const kind = 'module';"}, type="module")
    registry.add(
        "sly", "1.0.0", {"main.js": ""}, scripts={"install": "touch /tmp/ran ran; exit 1", "preinstall": "exit 1"}
    )
    return registry


@pytest.fixture(scope="module")
def broker(who: str, registry: NpmRegistry) -> Iterator[BrokerProcess]:
    """One whose user has a registry with a token, as npm reads it."""
    home = Path(tempfile.mkdtemp(prefix="rpn-", dir="/tmp"))
    home.chmod(0o755)
    with serve_npm(registry) as port, pytest.MonkeyPatch.context() as patch:
        npmrc = home / "npmrc"
        npmrc.write_text(f"registry=http://127.0.0.1:{port}/\n//127.0.0.1:{port}/:_authToken=${{NPM_TOKEN}}\n")
        patch.setenv("npm_config_userconfig", str(npmrc))
        patch.setenv("NPM_TOKEN", TOKEN)
        broker = begin(who, "limits.max-package-bytes=2000000")
        yield broker
        end(broker)
    shutil.rmtree(home)


@pytest.fixture
def node(wire: Wire) -> Wire:
    """A connection with a Node session `s`."""
    assert wire.ask("new-session", name="s", runtime="node").status == ["done"]
    return wire


def env(wire: Wire, action: str, *packages: str, **fields: object) -> str:
    """Perform an action, which has to succeed; return its output."""
    answer = wire.ask("env", session="s", action=action, packages=list(packages), **fields)
    assert answer.status == ["done"], answer.messages
    return answer.out


def test_a_package_can_be_required_and_imported_at_once_and_stays_over_a_reset(node: Wire) -> None:
    assert "MODULE_NOT_FOUND" in str(node.run("require('alpha')").messages)
    assert "importable now: alpha 1.1.0, modern 1.0.0" in env(node, "add", "alpha@^1", "modern")
    assert node.run("require('alpha').version").value == "'1.1.0'"
    assert node.run("(await import('modern')).kind").value == "'module'"
    assert node.run("import { kind } from 'modern'; kind").value == "'module'"
    node.ask("reset", session="s")
    assert node.run("require('alpha').version").value == "'1.1.0'"
    assert "alpha 1.1.0  (requested: alpha@^1)" in env(node, "status")
    assert node.ask("jobs", session="s")["jobs"][1]["code"] == "env add alpha@^1 modern"


def test_a_scope_brings_what_it_needs_and_what_is_removed_is_gone(node: Wire) -> None:
    assert "@team/beta 1.0.0, alpha 1.1.0" in env(node, "add", "@team/beta")
    assert node.run("require('@team/beta').alpha").value == "'1.1.0'"
    assert "removed: @team/beta 1.0.0, alpha 1.1.0" in env(node, "rm", "@team/beta")
    node.ask("reset", session="s")
    assert "MODULE_NOT_FOUND" in str(node.run("require('alpha')").messages)
    assert node.ask("env", session="s", action="rm", packages=["alpha"])["err"].startswith("not among the packages")


def test_versions_stay_until_an_update_and_what_is_in_memory_is_named(node: Wire) -> None:
    env(node, "add", "alpha@1.0.0")
    node.run("var before = require('alpha')")
    assert "alpha 1.0.0 stays in memory until a reset" in env(node, "add", "alpha@2.0.0")
    assert node.run("before.version").value == "'1.0.0'"
    env(node, "add", "alpha@~1.0.0")
    env(node, "add", "alpha@^1.0.0")
    assert "alpha 1.0.0" in env(node, "status"), "a version that still fits stays"
    assert "importable now: alpha 1.1.0" in env(node, "update", "alpha")


def test_a_trial_changes_nothing(node: Wire) -> None:
    env(node, "resolve", "alpha")
    assert "installed for this session: 0" in env(node, "status")


def test_a_clone_has_the_packages_and_goes_its_own_way(node: Wire) -> None:
    env(node, "add", "alpha@1.0.0")
    assert node.ask("clone", session="s", name="t").status == ["done"]
    assert node.run("require('alpha').version", session="t").value == "'1.0.0'"
    env(node, "add", "alpha@2.0.0")
    assert node.run("require('alpha').version", session="t").value == "'1.0.0'"
    node.ask("reset", session="t")
    assert node.run("require('alpha').version", session="t").value == "'1.0.0'"


def test_no_script_of_a_package_runs(node: Wire, broker: BrokerProcess) -> None:
    env(node, "add", "sly")
    assert node.run("require('fs').existsSync('/tmp/ran')").value == "false"
    assert not list(broker.directory.rglob("ran"))
    assert not Path("/tmp/ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        *("--registry=http://evil.test", "-g", "./here", "../here", "/etc", "file:/etc", "git+https://a.test/b.git"),
        *(
            "user/repository",
            "github:user/repository",
            "alpha@npm:beta",
            "alpha@file:/etc",
            "alpha@http://a.test/a.tgz",
        ),
        *(
            "https://a.test/a.tgz",
            "alpha beta",
            "@scope",
            "@/alpha",
            "alpha@",
            "a" * 215,
            "alpha\n",
            "älpha",
            "",
            "alpha@../x",
        ),
    ],
)
def test_nothing_but_a_name_with_a_version_reaches_npm(node: Wire, text: str) -> None:
    answer = node.ask("env", session="s", action="add", packages=[text])
    assert answer.status == ["done", "error", "invalid-request"]


def test_a_package_that_is_not_there_is_refused_with_the_reason(node: Wire) -> None:
    answer = node.ask("env", session="s", action="add", packages=["no-such-thing"])
    assert answer.status == ["done", "error"]
    assert "nothing has changed" in answer["err"]
    assert "no-such-thing" in answer["err"]
    answer = node.ask("env", session="s", action="add", packages=["alpha@^9"])
    assert "No matching version found for alpha@^9" in answer["err"]


def test_the_dependencies_of_a_project_are_installed_from_its_file(wire: Wire) -> None:
    place = Path(tempfile.mkdtemp(prefix="rpp-", dir="/tmp"))
    place.chmod(0o777)
    (place / "package.json").write_text('{"dependencies": {"alpha": "^1.0.0"}}')
    try:
        wire.ask("new-session", name="s", runtime="node", cwd=str(place))
        assert "alpha 1.1.0" in env(wire, "instantiate")
        assert wire.run("require('alpha').version").value == "'1.1.0'"
        (place / "package.json").write_text('{"dependencies": {"alpha": "file:/etc"}}')
        refused = wire.ask("env", session="s", action="instantiate")
        assert "package.json, dependencies: 'alpha@file:/etc' is no package name" in refused["err"]
    finally:
        shutil.rmtree(place)


def test_the_registrys_token_is_for_the_installer_alone(node: Wire, wire: Wire, broker: BrokerProcess) -> None:
    env(node, "add", "alpha")
    seen = wire.run(LOOK_INSIDE, session="look")
    assert "PATH" in seen.out
    assert TOKEN not in repr(seen.messages)
    assert TOKEN not in repr(node.run("JSON.stringify(process.env)").messages)
    found = [path for path in broker.directory.rglob("*") if path.is_file()]
    assert len(found) > 5
    assert not [path for path in found if TOKEN.encode() in path.read_bytes()]


def test_the_session_can_change_nothing_of_its_packages(node: Wire) -> None:
    env(node, "add", "alpha")
    code = "require('fs').appendFileSync(require.resolve('alpha'), 'x')"
    assert "EROFS" in str(node.run(code).messages) or "EACCES" in str(node.run(code).messages)


def test_tests_of_a_project_are_not_for_node(node: Wire) -> None:
    answer = node.ask("env", session="s", action="test")
    assert answer.status == ["done", "error", "not-supported"]

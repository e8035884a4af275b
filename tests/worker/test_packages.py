"""Parts of package actions that need no broker: changes, configuration of the index, files of a project, texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from replwire.packages import InstallerSettings
from replworker.packages.changes import PackageRefused, find_missing, leave_out_present, plan_change
from replworker.packages.index_settings import read_python_settings, redact
from replworker.packages.layers import LayerRecord
from replworker.packages.npm import read_npm_settings
from replworker.packages.report import failure_reason
from replworker.packages.requirement_files import InvalidRequirementFile, parse_requirements

RECORD = LayerRecord(1, ["alpha<2", "beta"], {"alpha": "1.0", "beta": "1.0", "gamma": "3.0"})


def settings(home: Path, **env: str) -> InstallerSettings:
    return InstallerSettings({"PIP_CONFIG_FILE": "/dev/null", **env}, str(home), False, 0)


def test_a_change_keeps_what_was_requested_and_installs_the_rest() -> None:
    assert plan_change("add", ["Alpha==2"], RECORD, None).requirements == {"alpha": "Alpha==2", "beta": "beta"}
    removed = plan_change("rm", ["BETA"], RECORD, None)
    assert (removed.install, removed.rebuild, removed.keep) == (["alpha<2"], True, RECORD.pins)
    assert plan_change("update", [], RECORD, None).upgrades == ["alpha", "beta", "gamma"]
    with pytest.raises(PackageRefused, match="gamma; requested are alpha<2, beta"):
        plan_change("rm", ["gamma"], RECORD, None)
    with pytest.raises(PackageRefused, match="nothing to instantiate"):
        plan_change("instantiate", [], LayerRecord(0), None)


def test_what_is_there_in_a_version_that_fits_is_left_out() -> None:
    change = plan_change("add", ["alpha", "six>=1", "click>9", "attrs[x]"], RECORD, None)
    left, present = leave_out_present(change, RECORD, {"six": "1.17", "click": "8.1", "attrs": "26"})
    assert (left.install, present) == (["click>9", "attrs[x]"], ["alpha 1.0", "six 1.17"])
    assert "six" not in left.requirements


def test_an_environment_that_does_not_fit_what_is_installed_is_found(tmp_path: Path) -> None:
    info = tmp_path / "new-1.dist-info"
    info.mkdir()
    lines = [
        "Name: new",
        "Requires-Dist: old>=2",
        "Requires-Dist: fits>=1",
        "Requires-Dist: more[x]",
        "Requires-Dist: not; python_version<'3'",
        "Requires-Dist: (((",
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nRequires-Dist: text\n")
    environment = {"old": "1.0", "fits": "1.0", "more": "1.0", "not": "1.0", "text": "1.0"}
    assert find_missing(str(tmp_path), environment, "3.11.7") == {"old", "more"}


def test_the_index_is_what_pip_or_uv_is_configured_for(tmp_path: Path) -> None:
    assert read_python_settings(settings(tmp_path)).hosts == ("pypi.org:443", "files.pythonhosted.org:443")
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://u:p@mirror.corp:8443/simple\nextra-index-url = http://127.0.0.1:3141/x\n"
    )
    found = read_python_settings(settings(tmp_path, PIP_CONFIG_FILE=str(config)))
    assert found.hosts == ("mirror.corp:8443", "127.0.0.1:3141")
    assert found.env["UV_DEFAULT_INDEX"] == "https://u:p@mirror.corp:8443/simple"
    inside = found.through_proxy()
    assert inside.hosts == ("mirror.corp:8443", "loopback.internal:3141")
    assert inside.env["UV_INDEX"] == "http://loopback.internal:3141/x"
    (tmp_path / ".config/uv").mkdir(parents=True)
    (tmp_path / ".config/uv/uv.toml").write_text('[[index]]\nurl = "https://own.corp/simple"\ndefault = true\n')
    own = read_python_settings(settings(tmp_path, PIP_CONFIG_FILE=str(config)))
    assert (own.hosts, "UV_DEFAULT_INDEX" in own.env) == (("own.corp:443",), False)


def test_credentials_are_removed_from_output() -> None:
    assert redact("Failed to fetch: `https://ada:s3cret@h/simple/x/`") == "Failed to fetch: `https://***@h/simple/x/`"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("requirements.txt", "# a\nsix  # b\n\npandas>=2 ; python_version < '3'\nb[c]==1\n", ["six", "b[c]==1"]),
        ("pyproject.toml", "[project]\ndependencies = ['six', 'x; python_version>\"3\"']", ["six", "x"]),
        ("pylock.toml", "lock-version='1.0'\n[[packages]]\nname='six'\nversion='1.17.0'\n", ["six==1.17.0"]),
        ("pyproject.toml", "[tool.x]\n", []),
    ],
)
def test_a_project_names_its_packages(name: str, text: str, expected: list[str]) -> None:
    assert parse_requirements(name, text, "3.11.7") == expected


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("requirements.txt", "six\n-r other.txt\n", "line 2"),
        ("requirements.txt", "x @ https://h/x.whl\n", "line 1"),
        ("requirements.txt", "six --hash=sha256:0\n", "line 1"),
        ("pyproject.toml", "[project]\ndependencies = ['x @ file:///etc']", "project.dependencies"),
        ("pylock.toml", "lock-version='1'\n[[packages]]\nname='../x'\n", "package ../x"),
        ("pyproject.toml", "[", "pyproject.toml"),
    ],
)  # fmt: skip
def test_a_file_with_anything_else_is_refused_with_the_place(name: str, text: str, where: str) -> None:
    with pytest.raises(InvalidRequirementFile, match=where):
        parse_requirements(name, text, "3.11.7")


def test_npm_reads_registries_credentials_and_certificates_of_the_brokers_user(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    (tmp_path / ".npmrc").write_text(
        f"registry = https://npm.corp:4873/\n@team:registry=https://team.corp/npm\ncafile={tmp_path}/ca.pem\n"
        "//npm.corp:4873/:_authToken=${NPM_TOKEN}\n; registry=https://comment.corp\n"
    )
    found = read_npm_settings(settings(tmp_path, NPM_TOKEN="secret", npm_config_https_proxy="http://proxy.corp:3128"))
    assert set(found.hosts) == {"npm.corp:4873", "team.corp:443", "proxy.corp:3128"}
    assert found.paths == (str((tmp_path / "ca.pem").resolve()),)
    assert "_authToken" in found.files["npmrc"]
    assert found.env["NPM_TOKEN"] == "secret"
    assert "PIP_CONFIG_FILE" not in found.env


def test_npm_has_its_own_registry_without_any_and_no_setting_turns_scripts_on(tmp_path: Path) -> None:
    found = read_npm_settings(settings(tmp_path, npm_config_ignore_scripts="false", npm_config_prefix="/usr"))
    assert "registry.npmjs.org:443" in found.hosts
    assert not {"npm_config_ignore_scripts", "npm_config_prefix"} & set(found.env)


def test_what_npm_says_is_told_without_its_ornaments() -> None:
    output = (
        "npm warn old\nnpm error code E404\nnpm error 404 Not Found - GET http://r.test/x\nnpm error 404\n"
        "npm error 404  'x@*' is not in this registry.\nnpm error 404 Note that you can also install from a\n"
        "npm error 404 tarball, folder, http url, or git url.\nnpm error Log files were not written\n"
    )
    assert failure_reason(output, 1) == (
        "nothing has changed: Not Found - GET http://r.test/x; 'x@*' is not in this registry."
    )
    assert "No matching version found for a@^9" in failure_reason(
        "npm error code ETARGET\nnpm error notarget No matching version found for a@^9.\n", 1
    )

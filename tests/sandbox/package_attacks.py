"""Attacks by and on packages that sessions install, and the test that tries each."""

from __future__ import annotations

from attack_index import IndexedAttack

PACKAGE_ATTACKS = [
    IndexedAttack(
        "packages",
        "an option, URL or path in place of a package",
        "names and versions only",
        "sandbox/test_packages.py::test_nothing_but_a_name_with_versions_reaches_the_tool",
    ),
    IndexedAttack(
        "packages",
        "a package whose code runs while it is installed",
        "wheels only",
        "sandbox/test_packages.py::test_a_package_without_a_wheel_is_refused_and_its_code_does_not_run",
    ),
    IndexedAttack(
        "packages",
        "the password of the package index",
        "the installer alone has it",
        "sandbox/test_packages.py::test_the_index_password_is_for_the_installer_alone",
    ),
    IndexedAttack(
        "packages",
        "a change of installed packages, also another session's",
        "read-only mount",
        "sandbox/test_packages.py::test_the_session_can_change_nothing_of_its_packages",
    ),
    IndexedAttack(
        "packages",
        "an approval for other packages than those shown",
        "digest of the request",
        "sandbox/test_packages.py::test_an_agent_may_have_to_ask_or_may_not_install_at_all",
    ),
]

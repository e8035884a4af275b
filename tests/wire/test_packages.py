"""Names of packages: what is one, and that nothing else gets through."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.packages import InvalidPackage, parse_node_package, parse_python_package

HARMLESS = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9._,-]+\])?([<>=!~]=?[A-Za-z0-9.*+!_-]+,?)*")
PIECES = st.lists(
    st.sampled_from(
        ["numpy", "a", "-", "--", "/", "..", ":", "@", " ", ";", "[x]", "==", ">=", "~=", "===", "1.0", "2", "*", ",", "git+",
         "https://h/p", "file:///etc", "\n", "\0", "#", "$(x)", "`x`", "é", "'", '"', "os_name", "-e", "-r"]
    ),
    max_size=6,
)  # fmt: skip


@pytest.mark.parametrize("name", ["numpy", "pandas>=2.2", "a[b,c]==1.*", "A_b.c-d~=1.2", "x (>=1,<2)", "torch!=2.0"])
def test_a_name_with_extras_and_versions_is_a_package(name: str) -> None:
    assert HARMLESS.fullmatch(str(parse_python_package(name)))


@given(PIECES.map("".join) | st.text(max_size=40))
def test_whatever_is_accepted_has_only_names_and_versions(text: str) -> None:
    try:
        found = parse_python_package(text)
    except InvalidPackage:
        return
    assert HARMLESS.fullmatch(str(found)), text
    assert not text.lstrip().startswith("-")
    assert parse_python_package(str(found)) == found


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("lodash", "lodash", "*"),
        ("@types/node@^20", "@types/node", "^20"),
        ("JSONStream@1.x", "JSONStream", "1.x"),
        ("alpha@latest", "alpha", "latest"),
        ("alpha@>=1.2 <3 || 4.x", "alpha", ">=1.2 <3 || 4.x"),
        ("alpha@1.0.0-rc.1+build", "alpha", "1.0.0-rc.1+build"),
    ],
)
def test_a_name_with_a_scope_and_a_version_is_a_package_of_npm(text: str, name: str, version: str) -> None:
    assert parse_node_package(text) == (name, version)
    assert parse_node_package(str(parse_node_package(text))) == (name, version)


@given(PIECES.map("".join) | st.text(max_size=40))
def test_whatever_is_accepted_for_npm_has_no_path_address_or_option(text: str) -> None:
    try:
        found = parse_node_package(text)
    except InvalidPackage:
        return
    assert re.fullmatch(r"(@[\w~-][\w.~-]*/)?[\w~][\w.~-]*", found.name, re.ASCII)
    assert not set(found.version) & set(":/\\@\n\0'\"`$;#")
    assert not found.version.startswith(("-", "."))

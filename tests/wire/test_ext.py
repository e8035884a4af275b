"""Extensions: what may be registered, who owns it, how it is found, and what a hook is told of code."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.config import ConfigError
from replwire.config import load as load_config
from replwire.ext.api import Contribution, Hook, InvalidContribution, Panel
from replwire.ext.contracts import CONTRACTS, IntrospectSource, SessionBackend, fields_of
from replwire.ext.loading import ExtensionLoadError, load
from replwire.ext.registry import ExtensionRegistry
from replwire.ext.verdicts import analyze
from replwire.extensions import Extension


def _nothing(*_: Any) -> None:
    return None


class _Args(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a contribution."""


BACKEND = type("Backend", (), dict.fromkeys(SessionBackend.methods, _nothing))
GIVEN: dict[str, Any] = {
    "before_eval": _nothing,
    "snapshot": _nothing,
    "backend": BACKEND,
    "interpreter": _nothing,
    "identify": _nothing,
    "title": "T",
    "text": "t",
    "args": _Args,
    "run": _nothing,
    "render": _nothing,
    "height": 3,
    "key": "k",
}


def _make(kind: str, name: str = "one", **more: Any) -> Contribution:
    contract = CONTRACTS[kind]
    needed = {
        field: GIVEN[field] for field, (required, _) in fields_of(contract).items() if required and field != "name"
    }
    return contract(name=name, **(needed | more))


@pytest.fixture
def failed() -> list[tuple[str, BaseException]]:
    return []


@pytest.fixture
def registry(failed: list[tuple[str, BaseException]]) -> ExtensionRegistry:
    return ExtensionRegistry(lambda record, error: failed.append((record.label, error)))


def test_all_kinds_have_their_contract() -> None:
    assert sorted(CONTRACTS) == sorted(
        [
            "tool",
            "hook",
            "command",
            "introspect",
            "session-backend",
            "operation",
            "status",
            "panel",
            "control",
            "screen",
            "runtime",
            "identity-backend",
        ]
    )
    for contract in CONTRACTS.values():
        assert contract.__doc__
        assert all(text for _, text in fields_of(contract).values())


@pytest.mark.parametrize("kind", CONTRACTS)
def test_what_keeps_its_contract_is_registered_listed_and_taken_away(registry: ExtensionRegistry, kind: str) -> None:
    contract = CONTRACTS[kind]
    take_away = registry.register("ann", _make(kind, summary="what it is"))
    assert registry.listing() == [{"kind": kind, "name": "one", "owner": "ann", "summary": "what it is"}]
    assert [record.owner for record in registry.by_kind(contract)] == ["ann"]
    assert registry.unregister_owner("bob") == 0
    assert registry.unregister_owner("ann") == 1
    assert registry.by_kind(contract) == ()
    registry.register("eve", _make(kind))
    assert take_away() == 0, "it took away what came after it"
    assert [record.owner for record in registry.by_kind(contract)] == ["eve"]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (kind, field)
        for kind, contract in CONTRACTS.items()
        for field, (required, _) in fields_of(contract).items()
        if required
    ],
)
def test_what_misses_a_required_field_is_refused_when_it_is_registered(
    registry: ExtensionRegistry, kind: str, field: str
) -> None:
    complete = _make(kind)
    with pytest.raises(InvalidContribution, match=f"{kind}"):
        registry.register("ann", dataclasses.replace(complete, **{field: None}))
    with pytest.raises(TypeError):
        CONTRACTS[kind](**{name: value for name, value in vars(complete).items() if name != field})
    assert registry.listing() == []


@pytest.mark.parametrize(
    "wrong",
    [
        _make("hook", "Not-A-Name"),
        _make("hook", "x" * 65),
        _make("hook", ""),
        _make("control", key="kk"),
        _make("control", key="\x1b"),
        _make("panel", height=0),
        _make("panel", height=21),
        _make("panel", height=True),
        _make("hook", order="1"),
        _make("runtime", arguments=["a"]),
        _make("session-backend", backend=type("Half", (), {"open": _nothing})),
        "a text",
        None,
        types.SimpleNamespace(kind="hook", name="x"),
    ],
)
def test_what_is_wrong_in_other_ways_is_refused_too(registry: ExtensionRegistry, wrong: Any) -> None:
    with pytest.raises(InvalidContribution):
        registry.register("ann", wrong)
    assert registry.listing() == []


def test_a_storage_that_misses_methods_is_told_which(registry: ExtensionRegistry) -> None:
    half = type("Half", (), dict.fromkeys([each for each in SessionBackend.methods if each != "lock"], _nothing))
    with pytest.raises(InvalidContribution, match="backend has no lock"):
        registry.register("ann", _make("session-backend", backend=half))


@pytest.mark.parametrize("kind", CONTRACTS)
def test_a_name_is_taken_within_its_owner_and_where_it_must_be_alone_for_all(
    registry: ExtensionRegistry, kind: str
) -> None:
    registry.register("ann", _make(kind))
    with pytest.raises(InvalidContribution, match="ann already has one"):
        registry.register("ann", _make(kind))
    other = {"key": "o"} if kind == "control" else {}
    if CONTRACTS[kind].unique_name:
        with pytest.raises(InvalidContribution, match="ann already has one"):
            registry.register("bob", _make(kind, **other))
    else:
        registry.register("bob", _make(kind, **other))
    registry.register("bob", _make(kind, "two", **other))


def test_two_controls_have_not_the_same_key(registry: ExtensionRegistry) -> None:
    registry.register("ann", _make("control", "one", key="x"))
    with pytest.raises(InvalidContribution, match="with this key"):
        registry.register("bob", _make("control", "two", key="x"))


def test_a_listing_is_frozen_and_the_same_until_something_changes(registry: ExtensionRegistry) -> None:
    registry.register("ann", _make("panel", "a", order=2))
    before = registry.by_kind(Panel)
    assert registry.by_kind(Panel) is before
    with pytest.raises(dataclasses.FrozenInstanceError):
        before[0].contribution.name = "b"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        before[0].owner = "eve"  # type: ignore[misc]
    registry.register("ann", _make("panel", "b", order=1))
    assert [record.contribution.name for record in registry.by_kind(Panel)] == ["b", "a"]
    assert len(before) == 1


def test_one_that_raises_is_told_and_stops_nobody(
    registry: ExtensionRegistry, failed: list[tuple[str, BaseException]]
) -> None:
    for name, snapshot in (("a", lambda: 1), ("b", lambda: 1 // 0), ("c", lambda: 3), ("d", sys.exit)):
        registry.register("ann", IntrospectSource(name=name, snapshot=snapshot))
    records = registry.by_kind(IntrospectSource)
    found = [registry.call_safely(each, each.contribution.snapshot, None) for each in records]  # type: ignore[attr-defined]
    assert found == [1, None, 3, None]
    assert [(label, type(error)) for label, error in failed] == [("ann/b", ZeroDivisionError), ("ann/d", SystemExit)]


# --- loading ---


def _file(directory: Path, text: str, name: str = "guard_one.py") -> Path:
    path = directory / name
    path.write_text("from replctl.ext import Hook, hookimpl\n" + text)
    path.chmod(0o600)
    directory.chmod(0o700)
    return path


GOOD = """
@hookimpl
def replctl_register(register, settings):
    register(Hook(name=settings.get("name", "words"), before_eval=lambda question: None))
"""


def test_a_file_and_a_directory_of_files_are_loaded_by_name(registry: ExtensionRegistry, tmp_path: Path) -> None:
    _file(tmp_path, GOOD, "b.py")
    _file(tmp_path, GOOD, "a.py")
    assert load([Extension(path=str(tmp_path), settings={"name": "w"})], registry) == ["a", "b"]
    assert [record.label for record in registry.by_kind(Hook)] == ["a/w", "b/w"]
    assert not [name for name in sys.modules if name in ("a", "b")]


def test_what_comes_along_is_loaded_by_its_entry_point(registry: ExtensionRegistry) -> None:
    assert load([Extension(name="secrets"), Extension(name="imports", settings={"allow": {}})], registry) == [
        "secrets",
        "imports",
    ]
    assert [record.label for record in registry.by_kind(Hook)] == ["secrets/secrets", "imports/imports"]


HALF = """
@hookimpl
def replctl_register(register, settings):
    register(Hook(name="first", before_eval=lambda question: None))
    {then}
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HALF.format(then="1/0"), "ZeroDivisionError"),
        (HALF.format(then="register(Hook(name='second'))"), "before_eval"),
        (HALF.format(then="register(Hook(name='first', before_eval=print))"), "already has one of this name"),
        ("def replctl_register(register, settings): pass", "no @hookimpl function replctl_register"),
        ("@hookimpl\ndef replctl_register(register, settings, more): pass", "more"),
        ("1/0", "ZeroDivisionError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        (HALF.format(then="raise SystemExit('gone')"), "SystemExit: gone"),
        ("def f(:", "SyntaxError"),
        ("import nothing_like_this", "ModuleNotFoundError"),
    ],
)
def test_one_that_cannot_be_loaded_says_why_and_leaves_nothing_half(
    registry: ExtensionRegistry, tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(ExtensionLoadError, match=why) as refused:
        load([Extension(path=str(_file(tmp_path, text)))], registry)
    assert "guard" in str(refused.value)
    assert registry.listing() == []


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_loaded(registry: ExtensionRegistry, tmp_path: Path, mode: int) -> None:
    path = _file(tmp_path, GOOD)
    path.chmod(mode)
    with pytest.raises(ExtensionLoadError, match="chmod go-w"):
        load([Extension(path=str(path))], registry)


def test_a_directory_that_others_may_write_is_not_loaded(registry: ExtensionRegistry, tmp_path: Path) -> None:
    _file(tmp_path, GOOD)
    tmp_path.chmod(0o777)
    with pytest.raises(ExtensionLoadError, match="chmod go-w"):
        load([Extension(path=str(tmp_path))], registry)


def test_a_file_of_somebody_else_is_not_loaded(
    registry: ExtensionRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path, GOOD)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:
        os.chown(path, 65534, -1)
    with pytest.raises(ExtensionLoadError, match="chown"):
        load([Extension(path=str(path))], registry)


@pytest.mark.parametrize(
    "entry",
    [Extension(), Extension(name="a", path="/b"), Extension(name="no-such-one"), Extension(path="/no/such/one.py")],
)
def test_an_entry_that_names_nothing_or_two_things_is_refused(registry: ExtensionRegistry, entry: Extension) -> None:
    with pytest.raises(ExtensionLoadError):
        load([entry], registry)


def test_importing_the_parts_of_extensions_registers_nothing_and_needs_no_pluggy() -> None:
    code = (
        "import replwire.ext.registry, replwire.ext.contracts, replbroker.app, sys; sys.exit('pluggy' in sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


@pytest.mark.parametrize("text", ["[[extensions]]\nnme = 'x'", "extensions = 3", "[[extensions]]\nname = 3"])
def test_a_config_that_names_extensions_wrongly_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="extensions"):
        load_config(text)


# --- what a hook is told of code ---


def test_imports_calls_and_names_of_code_are_told() -> None:
    facts = analyze(
        "import os.path as p, sys\nfrom a.b import c\nfrom . import x\nfrom m import *\nnp.eig(z)\nawait f()\n"
    )
    assert facts.imports == {"os.path", "sys", "a.b", "a.b.c", ".", ".x", "m"}
    assert facts.calls == {"np.eig", "f"}
    assert {"np", "z", "f"} <= facts.names
    assert facts.error is None


@pytest.mark.parametrize(
    "code",
    [
        "def f(:",
        "(" * 5000,
        "-" * 100_000 + "1",
        "a." * 60_000 + "b",
        "1+" * 60_000 + "1",
        "x = '\0'",
        "\ud800",
        "x" * 300_000,
    ],
    ids=lambda code: code[:8],
)
def test_code_that_cannot_be_parsed_has_an_error_and_no_facts(code: str) -> None:
    facts = analyze(code)
    assert facts.error
    assert not facts.imports | facts.calls | facts.names


@given(st.text(max_size=300))
def test_whatever_the_code_looking_into_it_never_raises(code: str) -> None:
    analyze(code)

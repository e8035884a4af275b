"""Registry of extension contributions, one per process. Its listings are immutable."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec

from replwire.ext.contracts import CONTRACTS, Contribution, ExtensionOperation, SessionBackend
from replwire.ops import OPS

C = TypeVar("C", bound=Contribution)
T = TypeVar("T")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")


class InvalidContribution(ValueError):
    """A contribution violates its contract, or its name is taken."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A contribution and its owner."""

    owner: str
    contribution: Contribution

    @property
    def label(self) -> str:
        """`OWNER/NAME` of the contribution."""
        return f"{self.owner}/{self.contribution.name}"


OnError = Callable[[Registration, BaseException], None]
Register = Callable[[Contribution], Callable[[], int]]


class ExtensionRegistry:
    """Contributions by kind. `on_error` is called for each one that raises; it must not raise itself."""

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._records: list[Registration] = []
        self._listed: dict[str, tuple[Registration, ...]] = {}

    def register(self, owner: str, what: Contribution) -> Callable[[], int]:
        """Register a contribution and return a function that removes it.

        That function removes only this registration and returns how many it removed (0 or 1).

        Raises:
            InvalidContribution: the contract is violated, or the name is taken
        """
        validate(what)
        for other in self.by_kind(type(what)):
            if other.contribution.name == what.name and (what.unique_name or other.owner == owner):
                raise InvalidContribution(f"{what.kind} {what.name}: {other.owner} already has one of this name")
            if _key(what) is not None and _key(other.contribution) == _key(what):
                raise InvalidContribution(f"{what.kind} {what.name}: {other.owner} already has one with this key")
        record = Registration(owner, what)
        self._records.append(record)
        self._listed.clear()
        return lambda: self._remove(lambda each: each is record)

    def unregister_owner(self, owner: str) -> int:
        """Remove all contributions of an extension and return their number."""
        return self._remove(lambda each: each.owner == owner)

    def _remove(self, which: Callable[[Registration], bool]) -> int:
        kept = [each for each in self._records if not which(each)]
        removed = len(self._records) - len(kept)
        self._records = kept
        self._listed.clear()
        return removed

    def by_kind(self, kind: type[Contribution]) -> tuple[Registration, ...]:
        """Return the contributions of a kind in order. The tuple stays the same object until something changes."""
        if kind.kind not in self._listed:
            some = [each for each in self._records if each.contribution.kind == kind.kind]
            self._listed[kind.kind] = tuple(sorted(some, key=lambda each: each.contribution.order))
        return self._listed[kind.kind]

    def find(self, kind: type[C], name: str) -> tuple[Registration, C] | None:
        """Return the contribution with this name, for kinds with unique names."""
        for each in self.by_kind(kind):
            if each.contribution.name == name:
                return each, each.contribution  # type: ignore[return-value]
        return None

    def missing_operations(self) -> list[str]:
        """Return a sentence for each operation that another one requires and nobody has."""
        registrations = self.by_kind(ExtensionOperation)
        known = {*OPS, *(each.contribution.name for each in registrations)}
        return [
            f"extension {each.owner}: operation {each.contribution.name} requires {name}, which nobody has"
            for each in registrations
            if isinstance(each.contribution, ExtensionOperation)
            for name in each.contribution.requires
            if name not in known
        ]

    def listing(self) -> list[dict[str, str]]:
        """Return all contributions as data."""
        return [
            {
                "kind": each.contribution.kind,
                "name": each.contribution.name,
                "owner": each.owner,
                "summary": each.contribution.summary,
            }
            for kind in CONTRACTS.values()
            for each in self.by_kind(kind)
        ]

    def call_safely(self, record: Registration, call: Callable[[], T], otherwise: T) -> T:
        """Call extension code; on an exception report it and return `otherwise`."""
        try:
            return call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's code, whatever it raises
            self._on_error(record, error)
            return otherwise


def validate(what: Any) -> None:
    """Validate a contribution against its contract.

    Raises:
        InvalidContribution: a field is missing or has the wrong type
    """
    contract = CONTRACTS.get(getattr(what, "kind", ""))
    if contract is None or type(what) is not contract:
        raise InvalidContribution(f"{type(what).__name__} is not a contribution: {', '.join(CONTRACTS)}")
    if not isinstance(what.name, str) or not _NAME.match(what.name):
        raise InvalidContribution(
            f"{what.kind}: a name has lower case letters, digits, - and _, at most 64: {what.name!r}"
        )
    for name, kind in get_type_hints(contract).items():
        if name in (each.name for each in fields(contract)) and (why := _type_error(kind, getattr(what, name))):
            raise InvalidContribution(f"{what.kind} {what.name}: {name} {why}")
    if isinstance(what, SessionBackend):
        missing = [each for each in what.methods if not callable(getattr(what.backend, each, None))]
        if missing:
            raise InvalidContribution(f"{what.kind} {what.name}: backend has no {', '.join(missing)}")
    if isinstance(what, ExtensionOperation) and (why := _operation_error(what)) is not None:
        raise InvalidContribution(f"{what.kind} {what.name}: {why}")
    if (key := _key(what)) is not None and not (len(key) == 1 and key.isprintable()):
        raise InvalidContribution(f"{what.kind} {what.name}: key must be one printable character")
    height = getattr(what, "height", 1)
    if not 1 <= height <= 20:
        raise InvalidContribution(f"{what.kind} {what.name}: height must be 1 to 20 lines")


def _operation_error(what: ExtensionOperation) -> str | None:
    if what.name in OPS:
        return "the broker has an operation of this name itself"
    if not issubclass(what.args, msgspec.Struct) or not what.args.__struct_config__.forbid_unknown_fields:
        return "args must be a msgspec.Struct with forbid_unknown_fields"
    if not what.args.__doc__:
        return "args has no docstring"
    return None


def _key(what: Contribution) -> str | None:
    return getattr(what, "key", None)


def _type_error(kind: Any, value: object) -> str | None:
    if get_origin(kind) is Callable or "Callable" in str(kind):
        return None if callable(value) else "is not a function"
    if get_origin(kind) is tuple:
        fine = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
        return None if fine else "is not a tuple of strings"
    if isinstance(kind, type) and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        return f"is not of type {kind.__name__}"
    return None

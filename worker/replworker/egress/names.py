"""Virtual addresses of the names that one sandbox may look up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from replwire.network import VIRTUAL_NETWORK
from replworker.egress.listeners import FIRST_DYNAMIC

_MAX_NAMES = 4096


class NameTable:
    """Addresses of names, and back. The name that was looked up longest ago makes room for a new one.

    Args:
        fixed: Addresses that have sockets of their own, by name.
    """

    def __init__(self, fixed: Mapping[str, str]) -> None:
        self._fixed = dict(fixed)
        self._fixed_names = {address: name for name, address in fixed.items()}
        self._addresses: OrderedDict[str, str] = OrderedDict()
        self._names: dict[str, str] = {}

    def address_of(self, name: str) -> str:
        """Return the address of a name, a new one if it has none."""
        if (fixed := self._fixed.get(name)) is not None:
            return fixed
        if (known := self._addresses.get(name)) is not None:
            self._addresses.move_to_end(name)
            return known
        if len(self._addresses) < _MAX_NAMES:
            address = str(VIRTUAL_NETWORK[FIRST_DYNAMIC + len(self._addresses)])
        else:
            _, address = self._addresses.popitem(last=False)
        self._addresses[name] = address
        self._names[address] = name
        return address

    def name_of(self, address: str) -> str | None:
        """Return the name that an address stands for, or None."""
        return self._fixed_names.get(address) or self._names.get(address)

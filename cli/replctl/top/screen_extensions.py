"""Screen extensions: status words, boxes, keys. No I/O of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from replctl.top.cell_text import Line, cut, one_line
from replwire.ext.contracts import Contribution, Control, Panel, Screen, StatusItem
from replwire.ext.registry import ExtensionRegistry, Registration
from replwire.terminal import escape_control

RESERVED_KEYS = frozenset("qirca/s?SjkgG1234")  # keys of the screen itself
SLOW_SECONDS = 0.05  # rendering time that is reported

Shown = Mapping[str, Any]
C = TypeVar("C", bound=Contribution)


class ScreenExtensions:
    """Extensions of one screen. Failing ones are left out; `warning` has the last failure, for the footer."""

    def __init__(
        self, load: Callable[[Callable[[Registration, BaseException], None]], ExtensionRegistry] | None = None
    ) -> None:
        """Load the extensions. `load` receives an error callback and returns a registry."""
        self.warning = ""
        self._registry = load(self._on_failure) if load is not None else ExtensionRegistry(self._on_failure)
        self.controls: dict[str, tuple[Registration, Control]] = {}
        for record, control in self._of(Control):
            if control.key in RESERVED_KEYS:
                self.warning = f"extension {record.label}: the key {control.key} is reserved"
            else:
                self.controls[control.key] = record, control

    def _of(self, kind: type[C]) -> list[tuple[Registration, C]]:
        """Return the contributions of a kind by order, then owner and name."""
        found = [
            (record, record.contribution)
            for record in self._registry.by_kind(kind)
            if isinstance(record.contribution, kind)
        ]
        return sorted(found, key=lambda each: (each[1].order, each[0].label))

    def _on_failure(self, record: Registration, error: BaseException) -> None:
        self.warning = f"extension {record.label}: {type(error).__name__}: {error}"

    @property
    def needs_snapshot(self) -> bool:
        """True if an extension needs the snapshot."""
        return bool(self._registry.by_kind(StatusItem) or self._registry.by_kind(Panel))

    @property
    def has_statuses(self) -> bool:
        """True if there is a line of status words."""
        return bool(self._registry.by_kind(StatusItem))

    def statuses(self, shown: Shown) -> Line:
        """Return the status words in one line."""
        line: Line = []
        for record, status in self._of(StatusItem):
            text = self._render(record, partial(status.render, shown))
            if text:
                line += [(f" {one_line(text)}  ", "cyan")]
        return line

    def panels(self) -> list[tuple[Registration, Panel]]:
        """Return the boxes."""
        return self._of(Panel)

    def lines(self, record: Registration, panel: Panel, shown_now: Shown, width: int) -> list[Line]:
        """Return the lines of a box, limited to its size and without control sequences."""
        text = self._render(record, partial(panel.render, shown_now, width))
        if text is None:
            return [[("failed", "bold red")]]
        return [[(" " + cut(escape_control(line), width - 1), "")] for line in text.splitlines()[: panel.height]]

    def _render(self, record: Registration, render: Callable[[], str | None]) -> str | None:
        begun = time.monotonic()
        text = self._registry.call_safely(record, lambda: _text(render()), None)
        if (took := time.monotonic() - begun) > SLOW_SECONDS:
            self.warning = f"extension {record.label} blocked the screen for {took * 1000:.0f} ms"
        return text

    def run(self, key: str, client: Any, session: str | None) -> str:
        """Run an extension's key and return text for the footer. Raises ReplError like the client."""
        from replctl.client.errors import ReplError

        record, control = self.controls[key]
        try:
            return one_line(str(control.run(client, session)))
        except ReplError:
            raise
        except BaseException as error:  # noqa: BLE001 - somebody else's code, in a thread of its own, whatever it raises
            return f"extension {record.label}: {type(error).__name__}: {error}"

    def keys(self) -> Sequence[tuple[str, str]]:
        """Return keys and their descriptions, for the help."""
        return [(key, control.summary or control.name) for key, (_, control) in self.controls.items()]

    def find_screen(self, name: str) -> Screen | None:
        """Return the extension's screen with this name, or None."""
        found = self._registry.find(Screen, name)
        return None if found is None else found[1]


def _text(made: object) -> str | None:
    if made is not None and not isinstance(made, str):
        raise TypeError(f"returned {type(made).__name__} instead of text")
    return made

"""Effects and the part of the shell that carries them out."""

from __future__ import annotations

from typing import Any, get_args

from replbroker.core.effects import Effect, Kill, ToClient
from replbroker.core_driver import CoreDriver
from replbroker.guarded_steps import GuardedSteps


def test_every_effect_of_the_core_is_carried_out() -> None:
    nothing: Any = None

    class Targets:
        def __getattr__(self, name: str) -> Any:
            return self

    targets: Any = Targets()
    driver = CoreDriver(nothing, targets, GuardedSteps())
    assert {*get_args(Effect)} == {*driver._handlers, ToClient, Kill}

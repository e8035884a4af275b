"""Effects and the part of the shell that carries them out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import zmq

from replbroker.core.effects import Effect, Kill, ToClient
from replbroker.core_driver import CoreDriver
from replbroker.guarded_steps import GuardedSteps
from replbroker.launch.launcher import StartedWorker
from replbroker.transports.worker_router import WorkerRouter


def test_every_effect_of_the_core_is_carried_out() -> None:
    nothing: Any = None

    class Targets:
        def __getattr__(self, name: str) -> Any:
            return self

    targets: Any = Targets()
    driver = CoreDriver(nothing, targets, GuardedSteps())
    assert {*get_args(Effect)} == {*driver._handlers, ToClient, Kill}


def test_a_worker_that_was_killed_before_its_start_is_reported_is_not_saved() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    workers, saved = WorkerRouter(context), []
    launcher = SimpleNamespace(
        take_started=lambda: [StartedWorker(1, "handle 1"), StartedWorker(2, "handle 2")],
        take_exited=list,
        take_traffic=list,
        take_removed_environments=list,
    )
    journal = SimpleNamespace(set_worker=lambda record: saved.append(record.worker))
    targets: Any = SimpleNamespace(workers=workers, launcher=launcher, journal=journal)
    core: Any = None
    try:
        driver = CoreDriver(core, targets, GuardedSteps())
        for number in (1, 2):
            workers.create_token(number)
        workers.forget(1)
        driver.handle_launcher_results()
        assert saved == [2]
    finally:
        workers.close()
        context.term()

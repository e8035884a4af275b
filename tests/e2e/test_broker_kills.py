"""A broker that is killed at random moments under load: each eval runs once, and no session is lost."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable

from kit import BrokerProcess, processes_with, wait_until

SOAK = os.environ.get("REPLCTL_SOAK") == "1"
ROUNDS = 60 if SOAK else 3
SESSIONS = [f"s{number}" for number in range(30 if SOAK else 6)]
EVALS = 3  # of a session in each round: one runs, the others wait behind it
CODE = "n += 1; n"
Start = Callable[..., BrokerProcess]


def test_each_eval_runs_once_however_often_the_broker_is_killed(start: Start) -> None:
    broker = start("broker.orphan-ttl-ms=60000", "limits.rate-limit-per-min=0")
    seed = random.randrange(2**32) if SOAK else 7
    draw = random.Random(seed)
    with broker.wire() as wire:
        for name in SESSIONS:
            wire.run("n = 0", session=name)
    for count in range(ROUNDS):
        keys = {name: [str(uuid.uuid4()) for _ in range(EVALS)] for name in SESSIONS}
        with broker.wire() as wire:
            for name in SESSIONS:
                for key in keys[name]:
                    wire.send("eval", session=name, code=CODE, idempotency_key=key)
            for _ in range(draw.randrange(len(SESSIONS) * EVALS)):
                wire.receive()
            broker.kill()
        broker.start()
        assert broker.ready["lost"] == [], f"seed {seed}, round {count}"
        with broker.wire() as wire:
            for name in SESSIONS:
                values = [wire.run(CODE, session=name, idempotency_key=key).value for key in keys[name]]
                expected = [str(count * EVALS + each) for each in range(1, EVALS + 1)]
                assert values == expected, f"seed {seed}, round {count}"
    assert broker.stop() == 0
    wait_until(lambda: not processes_with(str(broker.directory)), "the end of every process")

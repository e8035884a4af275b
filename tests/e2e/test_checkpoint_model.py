"""Random checkpoints, rollbacks, branches, crashes and evals, beside a model of what each name must be.

`REPLCTL_SOAK=1` takes a thousand steps, with fresh randomness; a failure prints the seed.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import BrokerProcess, Wire, wait_until

SOAK = os.environ.get("REPLCTL_SOAK") == "1"
STEPS = 1000 if SOAK else 60
MOST_SESSIONS = 4
CRASHES = ("import os; os.abort()", "import os; os._exit(1)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")


@pytest.fixture
def alone() -> Iterator[BrokerProcess]:
    """A broker with sandboxed sessions, whose checkpoints are taken by request alone."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    broker = BrokerProcess(directory, "limits.rate-limit-per-min=0", "session.checkpoints=manual", warm=0, sandbox=True)
    yield broker
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(directory)


class _Model:
    """A session's names as they must be: now, and at each checkpoint."""

    def __init__(self, wire: Wire, dice: random.Random, session: str) -> None:
        self.wire = wire
        self.random = dice
        self.session = session
        self.names: dict[str, list[int]] = {}
        self.copies: dict[int, dict[str, list[int]]] = {}
        self.epoch: int = wire.run("None", session)["epoch"]

    def write(self) -> None:
        name, value = self.random.choice("abcd"), self.random.randrange(1000)
        if name in self.names and self.random.random() < 0.5:
            code = f"{name}.append({value})"
            self.names[name] = [*self.names[name], value]
        else:
            code = f"{name} = [{value}]"
            self.names[name] = [value]
        answer = self.wire.run(code, self.session)
        assert answer.status == ["done"], answer.messages
        self.epoch = answer["epoch"]

    def take(self) -> None:
        answer = self.wire.ask("checkpoint", session=self.session)
        assert answer.status == ["done"], answer.messages
        self.copies[answer["checkpoint"]] = dict(self.names)
        self.forget_dropped()

    def branch(self, to: str) -> _Model:
        """Branch the session, as it is or at one of its checkpoints."""
        number = self.random.choice([None, *self.copies])
        fields = {} if number is None else {"at": number}
        answer = self.wire.ask("branch", session=self.session, name=to, **fields)
        assert answer.status == ["done"], answer.messages
        names = self.names if number is None else self.copies[number]
        self.copies[answer["checkpoint"]] = dict(names)
        self.forget_dropped()
        made = _Model(self.wire, self.random, to)
        made.names, made.copies = dict(names), {1: dict(names)}
        return made

    def forget_dropped(self) -> None:
        left = {each["checkpoint"] for each in self.wire.ask("ls-checkpoints", session=self.session)["checkpoints"]}
        assert left <= self.copies.keys()
        self.copies = {number: names for number, names in self.copies.items() if number in left}

    def go_back(self) -> None:
        if not self.copies:
            return
        number = self.random.choice(sorted(self.copies))
        answer = self.wire.ask("rollback", session=self.session, to=number)
        assert (answer["state"], answer["checkpoint"]) == ("rolled-back", number), answer.messages
        self.arrive(number, answer)

    def crash(self) -> None:
        answer = self.wire.run(self.random.choice(CRASHES), self.session)
        assert answer.status == ["done", "error", "worker-lost"], answer.messages
        if not self.copies:
            assert answer["state"] == "lost"
            self.names, self.epoch = {}, answer["epoch"]
            return
        assert answer["state"] == "rolled-back", answer.messages
        assert answer["checkpoint"] in self.copies
        self.arrive(answer["checkpoint"], answer)

    def arrive(self, number: int, answer: Any) -> None:
        assert answer["epoch"] > self.epoch, "an epoch came twice"
        self.epoch, self.names = answer["epoch"], dict(self.copies[number])

    def drop(self) -> None:
        if self.copies:
            number = self.random.choice(sorted(self.copies))
            assert self.wire.ask("drop-checkpoint", session=self.session, checkpoint=number).status == ["done"]
            del self.copies[number]

    def check(self) -> None:
        code = "{n: list(globals()[n]) for n in 'abcd' if n in globals()}"
        answer = self.wire.run(code, self.session)
        assert answer.value == repr({name: self.names[name] for name in "abcd" if name in self.names})
        assert answer["epoch"] == self.epoch


class _Family:
    """Sessions and branches of branches. What happens to one leaves the others as they are."""

    def __init__(self, wire: Wire, seed: int) -> None:
        self.wire = wire
        self.random = random.Random(seed)
        self.models = [_Model(wire, self.random, "s0")]
        self.count = 1

    def step(self) -> None:
        model = self.random.choice(self.models)
        steps = [model.write] * 4 + [model.take] * 3 + [model.go_back] * 2 + [model.crash, model.drop]
        if len(self.models) < MOST_SESSIONS:
            steps.append(lambda: self.branch(model))
        if len(self.models) > 1:
            steps.append(lambda: self.close(model))
        self.random.choice(steps)()
        for each in {model, self.random.choice(self.models)} & {*self.models}:
            each.check()

    def branch(self, model: _Model) -> None:
        self.models.append(model.branch(f"s{self.count}"))
        self.count += 1

    def close(self, model: _Model) -> None:
        self.wire.ask(self.random.choice(["close", "reset"]), session=model.session)
        self.wire.ask("close", session=model.session)
        self.models.remove(model)


def test_whatever_is_undone_kept_or_crashed_each_name_is_what_it_must_be(alone: BrokerProcess) -> None:
    seed = random.randrange(1 << 32) if SOAK else 14
    with alone.wire() as wire:
        wire.run("1", session="other")  # what the broker starts once has started
        wire.ask("close", session="other")
        wait_until(lambda: len(alone.process_tree()) < 5, "that session has ended")
        before = alone.process_tree()
        family = _Family(wire, seed)
        for step in range(STEPS):
            try:
                family.step()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error
        for model in family.models:
            wire.ask("close", session=model.session)
        wait_until(lambda: alone.process_tree() <= before, "every copy has ended")

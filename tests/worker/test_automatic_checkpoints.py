"""Times of automatic checkpoints, by a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from replwire.deadlines import Deadlines
from replwire.link import FrameKind
from replworker.checkpoints import automatic
from replworker.checkpoints.automatic import AutomaticCheckpoints
from replworker.checkpoints.reports import CheckpointReports
from replworker.checkpoints.taker import TakenCheckpoint
from replworker.checkpoints.tree import CheckpointTree


class SlowTaker:
    """Takes `takes_s` for a checkpoint."""

    def __init__(self, session: MovedSession) -> None:
        self.tree: Any = SimpleNamespace(changed=False)
        self.is_busy = False
        self.takes_s = 0.002
        self.begun: list[float] = []
        self._session = session

    def take(self, then: Any, *, automatic: bool) -> Any:
        assert automatic
        self.begun.append(self._session.now)
        self.is_busy, self.tree.changed = True, False

        def finish(_: float) -> None:
            self.is_busy = False
            then(TakenCheckpoint(None, []))

        self._session.timers.call_at(self._session.now + self.takes_s, finish)
        return SimpleNamespace(number=len(self.begun))


class MovedSession:
    """A session whose evals take a millisecond, with pauses between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(automatic.time, "monotonic", lambda: self.now)
        self.timers = Deadlines()
        self.taker: Any = SlowTaker(self)
        self.streams: Any = SimpleNamespace(evals=SimpleNamespace(running=None))
        self.reported: list[float] = []
        reports: Any = SimpleNamespace(add=self.reported.append)
        self.automatic = AutomaticCheckpoints(self.taker, self.streams, self.timers, reports)
        self.automatic.is_on = True

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.timers.next_due()) is not None and due <= end:
            self.now = due
            self.timers.run_due(due)
        self.now = end

    def eval(self, pause: float) -> None:
        self.automatic.on_eval_start(self.now)
        self.streams.evals.running = object()
        self.taker.tree.changed = True
        self.wait(0.001)
        self.streams.evals.running = None
        self.automatic.on_eval_end(self.now)
        self.wait(pause)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> MovedSession:
    return MovedSession(monkeypatch)


def test_each_eval_before_a_pause_gets_one(session: MovedSession) -> None:
    for _ in range(20):
        session.eval(0.005)
    assert len(session.taker.begun) == 20


def test_one_from_before_the_session_that_outlasts_the_first_eval_is_followed_by_another(
    session: MovedSession,
) -> None:
    session.taker.takes_s = 0.01
    session.automatic.take_first(session.now)
    session.eval(0.1)
    assert len(session.taker.begun) == 2


def test_one_from_before_the_session_is_not_told(session: MovedSession) -> None:
    session.automatic.is_on = False
    session.automatic.take_first(session.now)
    session.wait(1)
    assert session.reported == []


def test_the_broker_is_told_once_a_second_with_their_number(session: MovedSession) -> None:
    tree, sent = CheckpointTree(), []
    replies: Any = SimpleNamespace(send_control=lambda kind, body: sent.append((kind, msgspec.json.decode(body))))
    reports = CheckpointReports(tree, replies, session.timers)
    for number in range(1, 301):
        tree.note_eval(number)
        tree.add("", automatic=True)
        reports.add(session.now)
        session.wait(0.01)
    session.wait(2)
    assert [body["count"] for _, body in sent] == [1, 100, 100, 99]
    assert sent[-1] == (FrameKind.CHECKPOINTED, {"checkpoint": 300, "eval": 300, "count": 99})


def test_evals_at_once_get_one_in_a_hundred(session: MovedSession) -> None:
    for _ in range(2500):
        session.eval(0.0)
        session.taker.begun = [each for each in session.taker.begun if each > session.now - 2.4]
    gaps = [later - earlier for earlier, later in zip(session.taker.begun, session.taker.begun[1:], strict=False)]
    assert gaps
    assert max(gaps) <= 0.12  # a hundred evals take that long here


def test_a_checkpoint_that_takes_longer_than_the_pauses_waits_for_a_longer_one(session: MovedSession) -> None:
    session.taker.takes_s = 0.02
    for _ in range(50):
        session.eval(0.005)
    assert len(session.taker.begun) <= 3
    session.eval(0.1)
    assert session.taker.tree.changed is False
    assert session.taker.begun[-1] > session.now - 0.1


def test_an_eval_during_a_checkpoint_gets_one_of_its_own_after(session: MovedSession) -> None:
    session.taker.takes_s = 0.02
    session.eval(0.005)
    session.eval(0.2)
    assert session.taker.tree.changed is False
    assert len(session.taker.begun) == 2


def test_without_a_change_there_is_none(session: MovedSession) -> None:
    session.eval(0.1)
    session.automatic.on_eval_end(session.now)
    session.wait(1)
    assert len(session.taker.begun) == 1

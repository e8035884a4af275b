"""Steps of the loop that lack memory or descriptors: see replbroker.guarded_steps."""

from __future__ import annotations

import errno

import pytest

from replbroker.guarded_steps import GuardedSteps

ERRORS = [MemoryError(), OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENFILE, "Too many open files")]


class Faulty:
    """A step that is always due, and fails while it has an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.ran: list[float] = []

    def due(self) -> float | None:
        return 0.0

    def step(self, now: float) -> None:
        self.ran.append(now)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", ERRORS, ids=["memory", "process", "machine"])
def test_a_step_that_fails_waits_longer_each_time_and_the_others_run(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    steps, faulty, sound = GuardedSteps(), Faulty(error), Faulty()
    for each in (faulty, sound):
        steps.add(each.due, each.step)
    now = 0.0
    for millisecond in range(4000):
        now = millisecond / 1000
        steps.run_due(now)
    assert len(sound.ran) == 4000
    gaps = [later - earlier for earlier, later in zip(faulty.ran, faulty.ran[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(1.0, abs=0.002)
    assert len(caplog.messages) == 1
    assert steps.failures == len(faulty.ran)
    faulty.error = None
    steps.run_due(now + 1)
    steps.run_due(now + 1)
    assert faulty.ran[-2:] == [now + 1, now + 1]


def test_a_step_that_is_paused_is_not_due_before_its_pause_ends() -> None:
    steps, faulty = GuardedSteps(), Faulty(MemoryError())
    steps.add(faulty.due, faulty.step)
    assert steps.next_due() == 0.0
    steps.run_due(10.0)
    assert steps.next_due() == pytest.approx(10.005)


def test_a_defect_is_not_taken_for_a_lack() -> None:
    steps = GuardedSteps()
    steps.add(lambda: 0.0, Faulty(KeyError("x")).step)
    with pytest.raises(KeyError):
        steps.run_due(0.0)

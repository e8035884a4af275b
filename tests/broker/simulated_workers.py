"""Workers of a simulated broker: what each of them has been asked, and its answers, each given once."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine

from core_invariants import CheckedHarness
from fake_worker import FakeWorker
from replwire.link import FrameKind, Outcome


class SimulatedWorkers(RuleBasedStateMachine):
    """The state of all workers, beside what the harness has of them.

    Attributes:
        harness: The broker.
        ready: Numbers of workers that are ready.
        answered: What has its answer: worker and route, or -1 for the assignment.
        adopted: How many adoptions a worker has answered.
        paths: Files of snapshots.
    """

    harness: CheckedHarness

    def __init__(self) -> None:
        super().__init__()
        self.ready: set[int] = set()
        self.answered: set[tuple[int, int]] = set()
        self.adopted: dict[int, int] = {}
        self.paths: set[str] = set()

    def _waiting_asks(self) -> list[tuple[FakeWorker, str, int]]:
        return [
            (worker, body["id"], header.route)
            for worker in self.harness.workers.values()
            for header, body in worker.frames(FrameKind.REQUEST)
            if (worker.number, header.route) not in self.answered
        ]

    def _assigns(self) -> list[FakeWorker]:
        return [
            w
            for w in self.harness.workers.values()
            if w.frames(FrameKind.ASSIGN) and (w.number, -1) not in self.answered
        ]

    def _unready(self) -> list[FakeWorker]:
        return [worker for worker in self.harness.workers.values() if worker.number not in self.ready]

    def _assigned(self) -> list[FakeWorker]:
        return [worker for worker in self.harness.workers.values() if worker.frames(FrameKind.ASSIGN)]

    def _adopting(self) -> list[FakeWorker]:
        return [
            worker
            for worker in self.harness.workers.values()
            if len(worker.frames(FrameKind.ADOPT)) > self.adopted.get(worker.number, 0)
        ]

    def _become_ready(self, worker: FakeWorker) -> None:
        self.ready.add(worker.number)
        worker.send_ready()

    def _assign(self, worker: FakeWorker, error: str | None = None) -> None:
        self.answered.add((worker.number, -1))
        worker.send_assigned(error)

    def _be_adopted(self, worker: FakeWorker) -> None:
        self.adopted[worker.number] = len(worker.frames(FrameKind.ADOPT))
        worker.send_adopted()

    def _answer(self, ask: tuple[FakeWorker, str, int], outcome: int) -> None:
        worker, request_id, route = ask
        self.answered.add((worker.number, route))
        if outcome == Outcome.OK and worker.op_of(request_id) in ("clone", "hibernate"):
            path = f"/shelf/{len(self.answered)}"
            if self.harness.effects_left is None:  # else nobody may have heard of it: it is swept with its worker
                self.paths.add(path)
            worker.send_snapshot(request_id, path)
        elif outcome == Outcome.OK and worker.op_of(request_id) == "save":
            worker.reply(request_id, snapshot="0", count=1, bytes=9)
        elif outcome == Outcome.OK and worker.op_of(request_id) == "branch":
            worker.send_branched(request_id, route % 3 + 1)
        elif outcome == Outcome.OK and worker.op_of(request_id) == "rollback":
            self._roll_back(worker, request_id, None, 0)
        else:
            taken = {"checkpoint": 1} if worker.op_of(request_id) == "checkpoint" else {}
            worker.reply(request_id, outcome, **taken)

    def _roll_back(self, worker: FakeWorker, request_id: str | None, cause: str | None, missed: int) -> None:
        """Let a worker undo the last two evals that it has got, except for so many that it has not begun."""
        got = [header.eval for header, body in worker.frames(FrameKind.REQUEST) if body["op"] == "eval"]
        begun = got[: len(got) - missed]
        undone, last = begun[-2:], max(begun, default=0)
        worker.send_rolled_back(request_id, last=last, undone=undone, redone=begun[-3:-2], cause=cause)

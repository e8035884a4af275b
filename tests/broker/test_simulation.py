"""Clients, agents and workers that do anything at any moment, late, twice or never. See core_invariants for the invariants.

`REPLCTL_SOAK=1` runs many more examples, with fresh randomness; a failure prints the steps that lead to it.
"""

from __future__ import annotations

import base64
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from core_invariants import CheckedHarness, check
from replbroker.core.limits.memory_totals import AvailableMemory
from replwire.ext.verdicts import Allow, Block, RequireApproval, Verdict
from replwire.link import FrameKind, HeartbeatBody, Outcome
from simulated_workers import SimulatedWorkers
from test_saved_snapshots import build_file

SOAK = os.environ.get("REPLCTL_SOAK") == "1"
NAMES = st.sampled_from(["a", "b", "c"])
AGENTS = st.sampled_from([None, "ada", "bob", "eve"])
PEERS = st.integers(0, 3)
IDENTITIES = ("self", "self", "uid:1", "uid:2")
PICK = st.integers(0, 99)
WAITS = st.sampled_from([None, None, 0, 2000])
LIMITS_MS = st.sampled_from([500, 5000])
KEYS = st.sampled_from(["k", "l", "m", "n"])
ENV_ACTIONS = st.sampled_from(["activate", "activate", "deactivate", "show", "add"])
ENDINGS = st.sampled_from([Outcome.OK, Outcome.ERROR, Outcome.INTERRUPTED, Outcome.TIMEOUT])
VERDICTS = st.sampled_from([Allow(), Allow(), Allow(), Block("no"), RequireApproval("really?", "because")])
COMMON = ("info", "stdin", "read", "jobs", "clear-bindings", "ls-sessions", "stats", "describe", "history", "stack")


class BrokerMachine(SimulatedWorkers):
    """The life of one broker."""

    @initialize()
    def begin(self) -> None:
        self.harness = CheckedHarness()
        self.peers = [b"p0", b"p1", b"p2", b"p3"]
        self.count = len(self.peers)
        for peer, identity in zip(self.peers, IDENTITIES, strict=True):
            self.harness.core.on_connect(peer, identity, self.harness.now)

    # --- clients ---

    def _eval(self, peer: int, session: str | None, agent: str | None, wait_ms: int | None, **more: Any) -> None:
        self.harness.eval(session, peer=self.peers[peer], agent=agent, wait_ms=wait_ms, **more)

    # What is most of an agent's life stands here more than once, to come more often.
    first = rule(peer=PEERS, session=NAMES, agent=AGENTS, wait_ms=WAITS)(_eval)
    second = rule(peer=PEERS, session=NAMES, agent=AGENTS, wait_ms=WAITS)(_eval)
    ephemeral_eval = rule(peer=PEERS, session=st.none(), agent=AGENTS, wait_ms=WAITS)(_eval)
    brief = rule(peer=PEERS, session=NAMES, agent=AGENTS, wait_ms=WAITS, timeout_ms=LIMITS_MS)(_eval)
    keyed = rule(peer=PEERS, session=NAMES, agent=AGENTS, wait_ms=WAITS, idempotency_key=KEYS)(_eval)
    exact = rule(peer=PEERS, session=NAMES, agent=AGENTS, wait_ms=WAITS, expect_epoch=st.integers(1, 2))(_eval)

    def _some_session(self, pick: int) -> str:
        ids = [session.id for session in self.harness.state.sessions]  # ephemeral ones too
        return ids[pick % len(ids)] if ids else "none"

    @rule(peer=PEERS, pick=PICK, op=st.sampled_from(COMMON), eval_id=st.integers(0, 6))
    def asks(self, peer: int, pick: int, op: str, eval_id: int) -> None:
        session = self._some_session(pick)
        self.harness.send(op, self.peers[peer], session=session, eval_id=eval_id, input="x", wait_ms=eval_id * 1000)

    @precondition(lambda self: list(self.harness.state.sessions))
    @rule(peer=PEERS, pick=PICK, back=st.integers(0, 2), wait_ms=st.sampled_from([0, 100, 2000]))
    def reads(self, peer: int, pick: int, back: int, wait_ms: int) -> None:
        sessions = list(self.harness.state.sessions)
        session = sessions[pick % len(sessions)]
        self.harness.send(
            "read", self.peers[peer], session=session.id, eval_id=session.eval_count - back, wait_ms=wait_ms
        )

    @rule(peer=PEERS, pick=PICK | st.none(), since=st.none() | st.integers(0, 9), output=st.booleans())
    def subscribes(self, peer: int, pick: int | None, since: int | None, output: bool) -> None:
        session = None if pick is None else self._some_session(pick)
        self.harness.send("subscribe", self.peers[peer], session=session, since_seq=since, output=output)

    @rule(peer=PEERS, pick=PICK)
    def unsubscribes(self, peer: int, pick: int) -> None:
        ids = [each.request_id for each in self.harness.state.bus.subscriptions_of(self.peers[peer])]
        self.harness.send("unsubscribe", self.peers[peer], subscription=ids[pick % len(ids)] if ids else "none")

    @rule(peer=PEERS, name=NAMES | st.none(), reuse=st.booleans())
    def opens(self, peer: int, name: str | None, reuse: bool) -> None:
        self.harness.send("new-session", self.peers[peer], name=name, if_exists="reuse" if reuse else "error")

    @rule(peer=PEERS, pick=PICK, name=NAMES, op=st.sampled_from(["clone", "branch"]), timeout_ms=st.none() | LIMITS_MS)
    def copies(self, peer: int, pick: int, name: str, op: str, timeout_ms: int | None) -> None:
        session = self._some_session(pick)
        self.harness.send(op, self.peers[peer], session=session, name=name, timeout_ms=timeout_ms)

    @rule(peer=PEERS, pick=PICK)
    def saves(self, peer: int, pick: int) -> None:
        self.harness.send("save", self.peers[peer], session=self._some_session(pick))

    @rule(peer=PEERS, pick=PICK)
    def hibernates(self, peer: int, pick: int) -> None:
        self.harness.send("hibernate", self.peers[peer], session=self._some_session(pick))

    @rule(peer=PEERS, cut=st.integers(0, 3), name=NAMES | st.none())
    def opens_a_saved_session(self, peer: int, cut: int, name: str | None) -> None:
        file = build_file()
        part = base64.b64encode(file[: len(file) - cut]).decode()
        asked = self.harness.send("put-snapshot", self.peers[peer], data=part, last=cut < 3)
        snapshot = self.harness.replies.get(asked, [{}])[-1].get("snapshot", "none")
        self.harness.send("new-session", self.peers[peer], name=name, snapshot=snapshot)

    @rule(peer=PEERS, pick=PICK, action=ENV_ACTIONS, path=st.sampled_from(["/v", "/w", "v"]))
    def moves(self, peer: int, pick: int, action: str, path: str) -> None:
        session = self._some_session(pick)
        self.harness.send("env", self.peers[peer], session=session, action=action, path=path, packages=["six"])

    @rule(peer=PEERS, pick=PICK, reload=st.booleans())
    def loads(self, peer: int, pick: int, reload: bool) -> None:
        session = self._some_session(pick)
        self.harness.send("reload-file" if reload else "load-file", self.peers[peer], session=session, file="/f")

    @rule(peer=PEERS, op=st.sampled_from(["complete", "lookup"]))
    def query_broker(self, peer: int, op: str) -> None:
        """Without a session an ephemeral one answers."""
        self.harness.send(op, self.peers[peer], code="a", pos=1, symbol="a")

    @rule(peer=PEERS, pick=PICK, to=st.sampled_from(["plan", "normal", "normal"]))
    def sets_mode(self, peer: int, pick: int, to: str) -> None:
        self.harness.send("set-mode", self.peers[peer], session=self._some_session(pick), to=to)

    @rule(peer=PEERS, pick=PICK, who=st.sampled_from(["*", "uid:1"]), level=st.sampled_from(["write", "write", "none"]))
    def shares(self, peer: int, pick: int, who: str, level: str) -> None:
        self.harness.send("share", self.peers[peer], session=self._some_session(pick), who=who, level=level)

    @rule(peer=PEERS, pick=PICK, who=st.sampled_from(["self", "uid:1", "uid:2"]))
    def hands_over(self, peer: int, pick: int, who: str) -> None:
        self.harness.send("transfer", self.peers[peer], session=self._some_session(pick), who=who)

    @rule(peer=PEERS, pick=PICK, op=st.sampled_from(["reset", "reset", "close"]))
    def ends_session(self, peer: int, pick: int, op: str) -> None:
        self.harness.send(op, self.peers[peer], session=self._some_session(pick))

    @rule(peer=PEERS, pick=PICK, number=st.none() | st.integers(1, 9), everything=st.booleans())
    def interrupts(self, peer: int, pick: int, number: int | None, everything: bool) -> None:
        session = self._some_session(pick)
        self.harness.send("interrupt", self.peers[peer], session=session, interrupt_id=number, all=everything)

    @rule(peer=PEERS, pick=PICK)
    def interrupts_request(self, peer: int, pick: int) -> None:
        self.harness.send("interrupt", self.peers[peer], request_id=f"r{pick}")

    @rule(peer=PEERS)
    def vanishes(self, peer: int) -> None:
        self.harness.disconnected.add(self.peers[peer])
        self.harness.disconnect(self.peers[peer])
        self.peers[peer] = b"p%d" % self.count
        self.harness.core.on_connect(self.peers[peer], IDENTITIES[peer], self.harness.now)
        self.count += 1

    # --- hooks ---

    @precondition(lambda self: self.harness.hook_requests)
    @rule(verdict=VERDICTS)
    def judges(self, verdict: Verdict) -> None:
        self.harness.answer_hook(verdict)

    # --- workers ---

    @precondition(lambda self: self._assigned())
    @rule(pick=PICK, missed=st.sampled_from([0, 0, 1]))
    def crashes_and_goes_on(self, pick: int, missed: int) -> None:
        workers = self._assigned()
        self._roll_back(workers[pick % len(workers)], None, "killed by SIGKILL", missed)

    @rule(peer=PEERS, pick=PICK, name=st.none() | NAMES)
    def takes_checkpoint(self, peer: int, pick: int, name: str | None) -> None:
        self.harness.send("checkpoint", self.peers[peer], session=self._some_session(pick), name=name)

    @rule(peer=PEERS, pick=PICK, op=st.sampled_from(["rollback", "rollback", "ls-checkpoints", "drop-checkpoint"]))
    def rolls_back(self, peer: int, pick: int, op: str) -> None:
        more = {"checkpoint": 1} if op == "drop-checkpoint" else {}
        self.harness.send(op, self.peers[peer], session=self._some_session(pick), **more)

    @precondition(lambda self: self._unready())
    @rule(pick=PICK)
    def becomes_ready(self, pick: int) -> None:
        workers = self._unready()
        self._become_ready(workers[pick % len(workers)])

    @precondition(lambda self: self._assigned())
    @rule(pick=PICK, used=st.sampled_from([10, 300, 600, 900]))
    def uses_memory(self, pick: int, used: int) -> None:
        workers = self._assigned()
        workers[pick % len(workers)].send(FrameKind.HEARTBEAT, HeartbeatBody(1.0, used))

    @rule(left=st.sampled_from([20, 70, 5000, 5000]))
    def memory_of_the_machine_changes(self, left: int) -> None:
        self.harness.memory_reading = AvailableMemory(10_000, left)

    @precondition(lambda self: self._assigns())
    @rule(pick=PICK, error=st.sampled_from([None, None, None, "no such directory"]))
    def assigns(self, pick: int, error: str | None) -> None:
        workers = self._assigns()
        self._assign(workers[pick % len(workers)], error)

    @precondition(lambda self: self._unready() or self._assigns())
    @rule()
    def workers_come_up(self) -> None:
        for worker in self._unready():
            self._become_ready(worker)
        for worker in self._assigns():
            self._assign(worker)

    @precondition(lambda self: self._waiting_asks())
    @rule(pick=PICK, outcome=ENDINGS)
    def answers(self, pick: int, outcome: int) -> None:
        asks = self._waiting_asks()
        self._answer(asks[pick % len(asks)], outcome)

    @precondition(lambda self: self._waiting_asks())
    @rule()
    def workers_answer(self) -> None:
        for ask in self._waiting_asks():
            self._answer(ask, Outcome.OK)

    @precondition(lambda self: self._waiting_asks())
    @rule(pick=PICK, kind=st.sampled_from([FrameKind.OUTPUT, FrameKind.REPLY]))
    def prints(self, pick: int, kind: int) -> None:
        asks = self._waiting_asks()
        worker, request_id, _ = asks[pick % len(asks)]
        worker.reply(request_id, Outcome.NONE, kind, out="x")

    @precondition(lambda self: self.harness.frames)
    @rule(pick=PICK)
    def repeats(self, pick: int) -> None:
        """Send a frame again, or late: its worker may be dead."""
        self.harness.send_worker_frame(*self.harness.frames[pick % len(self.harness.frames)])

    @precondition(lambda self: self._waiting_asks())
    @rule(pick=PICK, by=PICK, shift=st.sampled_from([-1, 0, 1]))
    def lies(self, pick: int, by: int, shift: int) -> None:
        """Send a false final reply: of another epoch, or from another worker."""
        asks, workers = self._waiting_asks(), list(self.harness.workers.values())
        worker, request_id, _ = asks[pick % len(asks)]
        liar = workers[by % len(workers)]
        true = worker.header_of(request_id)
        where = {"eval": true.eval, "route": true.route, "epoch": true.epoch + (shift or (liar is worker))}
        liar.send(FrameKind.REPLY, {"id": request_id, "status": ["done"], "lie": True}, outcome=Outcome.OK, **where)

    @precondition(lambda self: self.harness.workers)
    @rule(pick=PICK, how=st.sampled_from(["dies", "gone", "babbles"]))
    def is_lost(self, pick: int, how: str) -> None:
        workers = list(self.harness.workers.values())
        worker = workers[pick % len(workers)]
        if how == "dies":
            worker.exit()
        elif how == "gone":
            worker.send_interpreter_exited("exit code 1")
        else:
            self.harness.apply(self.harness.core.handle_worker_frame(worker.number, b"eh", self.harness.now))

    # --- other brokers ---

    @rule(
        peer=PEERS,
        pick=PICK,
        cut=st.sampled_from([None, None, 0, 1, 2, 3]),
        last=st.sampled_from(["eval", "eval", "answer", "crash", "reset", "close", "clone", "exit"]),
        back=st.booleans(),
    )
    def broker_is_replaced(self, peer: int, pick: int, cut: int | None, last: str, back: bool) -> None:
        """Kill the broker, in the middle of what it does for a last frame or request, and start the next."""
        self.harness.effects_left = cut
        if cut is not None:
            self._do_last(last, peer, pick)
        self.harness.disconnected.update(self.peers)
        self.harness.restart(come_back=back)
        self.ready &= self.harness.workers.keys()
        for at, identity in enumerate(IDENTITIES):
            self.peers[at] = b"p%d" % self.count
            self.count += 1
            self.harness.core.on_connect(self.peers[at], identity, self.harness.now)

    def _do_last(self, last: str, peer: int, pick: int) -> None:
        asks, workers = self._waiting_asks(), self._assigned()
        if last == "eval":
            self._eval(peer, ["a", "b", "c"][pick % 3], None, None, idempotency_key="k")
        elif last == "answer" and asks:
            self._answer(asks[pick % len(asks)], Outcome.OK)
        elif last == "crash" and workers:
            self._roll_back(workers[pick % len(workers)], None, "killed by SIGKILL", 0)
        elif last == "exit" and workers:
            workers[pick % len(workers)].exit()
        elif last in ("reset", "close"):
            self.harness.send(last, self.peers[peer], session=self._some_session(pick))
        elif last == "clone":
            self.harness.send("clone", self.peers[peer], session=self._some_session(pick), name="c")

    @precondition(lambda self: self.harness.workers)
    @rule()
    def workers_come_back(self) -> None:
        self.harness.come_back()

    @precondition(lambda self: self._adopting())
    @rule(pick=PICK)
    def is_adopted(self, pick: int) -> None:
        workers = self._adopting()
        self._be_adopted(workers[pick % len(workers)])

    # --- time ---

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0, 7.0, 25.0]), beats=st.booleans())
    def time_passes(self, seconds: float, beats: bool) -> None:
        self.harness.wait(seconds, beats=beats)

    @rule(seconds=st.sampled_from([5, 100]), noticed=st.booleans())
    def broker_is_stopped(self, seconds: float, noticed: bool) -> None:
        self.harness.now += seconds
        if noticed:
            self.harness.core.on_suspended(seconds)
            self.harness.memory_reported_at += seconds  # what is due is put off
        self.harness.apply(self.harness.core.tick(self.harness.now))

    # --- what must hold ---

    @invariant()
    def holds(self) -> None:
        check(self.harness)

    def teardown(self) -> None:
        """Drive everything to rest in one of three ways: nothing is left, and every request has its reply."""
        harness = self.harness
        way = len(harness.received) % 3
        if way == 0:
            self._obey()
        elif way == 1:
            harness.send("shutdown", self.peers[0])
        harness.wait(150, beats=False)  # workers that say nothing any more
        check(harness)
        assert harness.is_idle()
        expected = {request_id for request_id, peer in harness.senders.items() if peer not in harness.disconnected}
        listening = {each.request_id for each in harness.state.bus.all()}
        assert expected - harness.done == listening
        assert way != 1 or not listening
        assert len(harness.exits) == (way == 1)
        assert self.paths | harness.written.keys() <= set(harness.discarded), "a snapshot's file stayed"
        assert way != 1 or not harness.workers
        assert len(harness.state.sessions) == 0  # swept, closed, or never had

    def _obey(self) -> None:
        """Let hooks allow every eval, and every worker answer at once."""
        self.harness.come_back()
        while (
            (judges := self.harness.hook_requests)
            or (adopting := self._adopting())
            or (unready := self._unready())
            or (assigns := self._assigns())
            or (asks := self._waiting_asks())
        ):
            if judges:
                self.harness.answer_hook(Allow())
            elif adopting:
                self._be_adopted(adopting[0])
            elif unready:
                self._become_ready(unready[0])
            elif assigns:
                self._assign(assigns[0])
            else:
                self._answer(asks[0], Outcome.OK)
            self.holds()
        assert not any(session.is_occupied for session in self.harness.state.sessions)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Freeze objects of other tests, so that the many collections here do not visit them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("small_heap")
def test_whatever_happens_nothing_is_lost_leaked_or_said_twice() -> None:
    run_state_machine_as_test(
        BrokerMachine,
        settings=settings(
            max_examples=5000 if SOAK else 150,
            stateful_step_count=200 if SOAK else 120,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Events: declared, numbered, sent to subscribers that may receive them, and not built without a listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness
from replbroker.core.operations.settings_reload import LiveSettings, RereadResult
from replwire import events
from replwire.agents import AgentRules
from replwire.events import EVENTS, Event
from replwire.limits import Limits
from replwire.link import CheckpointedBody, FrameKind, Outcome
from replwire.network import TrafficRecord
from test_saved_snapshots import build_file, put_whole

OTHER = b"p2"
RULES = '[[agents]]\nname = "bob"\nenabled = false\n'


def _received_events(harness: CoreHarness, request_id: str) -> list[dict[str, Any]]:
    """Return the events that a subscription got, in order."""
    return [answer["event"] for answer in harness.replies[request_id] if "event" in answer]


def _types(found: list[dict[str, Any]]) -> list[str]:
    return [each["type"] for each in found]


def _last_event(harness: CoreHarness, kind: type[Event]) -> Any:
    return next(event for event in reversed(harness.events) if isinstance(event, kind))


def test_an_eval_is_accepted_started_and_finished_once(harness: CoreHarness) -> None:
    harness.open()
    sent = harness.eval(code="6*7", agent="ada")
    worker = harness.worker_running(sent)
    assert worker is not None
    worker.reply(sent, Outcome.NONE, FrameKind.OUTPUT, out="hi\n")
    value = b'{"id":"%b","value":"42","ns":"__main__"}' % sent.encode()
    last = b'{"id":"%b","status":["done"],"state":"kept"}' % sent.encode()
    header = worker.header_of(sent)
    worker.send(
        FrameKind.REPLY,
        value + last,
        outcome=Outcome.OK,
        epoch=header.epoch,
        eval=1,
        route=header.route,
        first=len(value),
    )
    session = harness.session()
    assert harness.event_types(of=session.id) == ["session/created", "eval/accepted", "eval/started", "eval/finished"]
    assert [event.seq for event in harness.events if event.session] == [1, 2, 3, 4]
    accepted, finished = _last_event(harness, events.EvalAccepted), _last_event(harness, events.EvalFinished)
    assert (accepted.code, accepted.agent, accepted.op, accepted.request_id) == ("6*7", "ada", "eval", sent)
    assert (finished.status, finished.reply_status, finished.out, finished.value) == ("ok", ["done"], "hi\n", "42")
    assert (finished.state, finished.truncated, finished.eval) == ("kept", False, 1)
    assert session.state == "idle"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(Outcome.OK, "ok"), (Outcome.ERROR, "error"), (Outcome.INTERRUPTED, "cancelled"), (Outcome.TIMEOUT, "timeout")],
)
def test_an_end_has_one_word(harness: CoreHarness, outcome: Outcome, status: str) -> None:
    sent = harness.eval()
    harness.finish(sent, outcome, err="boom")
    finished = _last_event(harness, events.EvalFinished)
    assert (finished.status, finished.error) == (status, "boom")


def test_what_died_with_its_worker_and_what_was_queued_behind_it_are_told(harness: CoreHarness) -> None:
    running, queued = harness.eval(), harness.eval()
    harness.worker().exit("killed by SIGKILL")
    assert [harness.final_reply(each)["status"][-1] for each in (running, queued)] == ["worker-lost"] * 2
    ends = [event for event in harness.events if isinstance(event, events.EvalFinished)]
    assert [(each.status, each.state, each.cause, each.eval) for each in ends] == [
        ("died", "lost", "killed by SIGKILL", 2),
        ("died", "lost", "killed by SIGKILL", 1),
    ]
    lost = _last_event(harness, events.SessionLost)
    assert (lost.why, lost.epoch) == ("killed by SIGKILL", 2)


def test_a_throw_away_session_says_that_it_is_one_and_no_transcript_gets_it(harness: CoreHarness) -> None:
    sent = harness.eval(None)
    harness.finish(sent)
    created, closed = _last_event(harness, events.SessionCreated), _last_event(harness, events.SessionClosed)
    assert created.ephemeral
    assert closed.reason == "ephemeral"
    assert harness.event_types(of=created.session)[-1] == "session/closed"


def test_what_an_event_keeps_of_code_and_output_is_bounded(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(event_text_bytes=256)
    sent = harness.eval(code="x" * 1000)
    worker = harness.worker_running(sent)
    assert worker is not None
    for number in range(200):
        worker.reply(sent, Outcome.NONE, FrameKind.OUTPUT, out=f"line {number} é\n")
    worker.reply(sent, Outcome.NONE, mime={"image/png": "A" * 5000})
    worker.reply(sent)
    accepted, finished = _last_event(harness, events.EvalAccepted), _last_event(harness, events.EvalFinished)
    assert (accepted.code, accepted.code_truncated) == ("x" * 256, True)
    assert finished.out.endswith("line 199 é\n")
    assert len(finished.out.encode()) <= 256
    assert finished.truncated
    assert finished.images == []


def test_a_figure_that_fits_is_kept(harness: CoreHarness) -> None:
    sent = harness.eval()
    worker = harness.worker_running(sent)
    assert worker is not None
    worker.reply(sent, Outcome.NONE, mime={"image/png": "AAAA"})
    worker.reply(sent)
    assert _last_event(harness, events.EvalFinished).images == [{"image/png": "AAAA"}]


def test_nothing_is_built_while_nobody_listens_but_numbers_go_on(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(record=False)
    harness.open()
    harness.finish(harness.eval())
    assert harness.events == []
    answer = harness.replies[harness.send("subscribe", session="work", since_seq=1)][0]
    assert (answer["status"], answer["seq"], answer["missed"], answer["events"]) == (["subscribed"], 4, 3, [])


def test_a_subscriber_hears_what_it_asked_for_until_it_unsubscribes(harness: CoreHarness) -> None:
    harness.open()
    harness.open("other")
    sent = harness.send("subscribe", session="work", types=["eval/", "session/idle"])
    harness.finish(harness.eval())
    harness.finish(harness.eval("other"))
    found = _received_events(harness, sent)
    assert _types(found) == ["eval/accepted", "eval/started", "eval/finished", "session/idle"]
    assert {each["session"] for each in found} == {harness.session().id}
    assert harness.is_pending(sent)
    assert harness.request("unsubscribe", subscription=sent)["status"] == ["done"]
    assert harness.final_reply(sent)["status"] == ["done"]
    harness.finish(harness.eval())
    assert len(_received_events(harness, sent)) == 4


def test_live_output_is_for_those_who_ask_for_it(harness: CoreHarness) -> None:
    harness.open()
    plain, live = harness.send("subscribe"), harness.send("subscribe", output=True, types=["log/"])
    sent = harness.eval()
    worker = harness.worker_running(sent)
    assert worker is not None
    worker.reply(sent, Outcome.NONE, FrameKind.OUTPUT, out="hi")
    worker.reply(sent)
    assert "eval/output" not in _types(_received_events(harness, plain))
    output, end = _received_events(harness, live)
    assert (output["type"], output["reply"]["out"], output["eval"]) == ("eval/output", "hi", 1)
    assert "seq" not in output
    assert (end["type"], end["messages"]) == ("eval/output-end", 1)


def test_somebody_else_hears_only_of_what_it_may_read(harness: CoreHarness) -> None:
    harness.core.set_identity(OTHER, "uid:1001")
    harness.open("mine")
    sent = harness.send("subscribe", OTHER)
    harness.request("new-session", OTHER, name="theirs")
    harness.finish(harness.eval("mine"))
    found = _received_events(harness, sent)
    assert _types(found) == ["session/created"]  # neither the other session nor the broker's own events
    harness.request("share", session="mine", who="uid:1001", level="read")
    harness.finish(harness.eval("mine"))
    assert _types(_received_events(harness, sent))[1:] == [
        "eval/accepted",
        "eval/started",
        "session/busy",
        "eval/finished",
        "session/idle",
    ]


def test_a_subscription_of_a_name_that_was_revoked_ends(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness()
    harness.core.set_identity(OTHER, "laptop")
    sent = harness.send("subscribe", OTHER)
    harness.state.access._credentials_of = lambda _: frozenset()
    harness.apply(harness.core.on_identities_changed(harness.now))
    assert harness.final_reply(sent)["status"] == ["done", "error", "unauthorized"]


def test_missed_events_are_caught_up_with_by_number(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(event_ring=3)
    harness.open()
    for _ in range(3):
        harness.finish(harness.eval())
    answer = harness.replies[harness.send("subscribe", session="work", since_seq=5, types=["eval/finished"])][0]
    assert (answer["seq"], answer["missed"]) == (10, 2)
    assert [each["seq"] for each in answer["events"]] == [10]
    whole = harness.replies[harness.send("subscribe", session="work", since_seq=7)][0]
    assert [each["seq"] for each in whole["events"]] == [8, 9, 10]
    assert whole["missed"] == 0


def test_the_ring_is_bounded_in_bytes_too(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(event_ring_bytes=600)
    harness.open()
    for _ in range(5):
        harness.finish(harness.eval())
    kept = harness.session().event_buffer.after(0)
    assert kept[-1].seq == 16
    assert sum(len(each.body) for each in kept) <= 600


def test_a_subscription_to_a_session_ends_with_it(harness: CoreHarness) -> None:
    harness.open()
    sent = harness.send("subscribe", session="work")
    harness.request("close", session="work")
    assert _types(_received_events(harness, sent)) == ["session/closed"]
    assert harness.final_reply(sent)["status"] == ["done", "session-closed"]


def test_every_subscription_ends_with_the_broker(harness: CoreHarness) -> None:
    sent = harness.send("subscribe", types=["broker/"])
    harness.send("shutdown")
    harness.wait(10)
    assert _types(_received_events(harness, sent)) == ["broker/shutdown"]
    assert harness.final_reply(sent)["status"] == ["done", "error", "shutdown"]


def test_a_peer_that_is_gone_has_no_subscriptions(harness: CoreHarness) -> None:
    harness.send("subscribe", OTHER)
    harness.disconnect(OTHER)
    assert len(harness.state.bus) == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"types": ["eval/", "evil/"]}, "unknown event type evil/"),
        ({"since_seq": 1}, "needs a session"),
        ({"types": [""]}, "types"),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(harness: CoreHarness, fields: dict[str, Any], why: str) -> None:
    answer = harness.request("subscribe", **fields)
    assert answer["status"] == ["done", "error", "invalid-request"]
    assert why in answer["err"]
    assert len(harness.state.bus) == 0


def test_one_connection_has_a_bounded_number_of_subscriptions(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_subscriptions=1)
    first = harness.send("subscribe")
    refused = harness.request("subscribe")
    assert refused["limit"] == "max-subscriptions"
    assert "invalid-request" in harness.request("unsubscribe", subscription="nope")["status"]
    harness.request("unsubscribe", subscription=first)
    assert harness.is_pending(harness.send("subscribe"))


def test_refusals_by_a_limit_and_by_a_rule_are_told_at_most_once_a_second(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(agents=RULES, max_sessions=1)
    harness.open()
    for _ in range(3):
        harness.request("new-session", agent="ada")
        harness.request("ping", agent="bob")
    harness.now += 2
    harness.request("new-session", agent="ada")
    results = [event for event in harness.events if isinstance(event, events.AdmissionRefused)]
    assert [(each.limit, each.count, each.agent) for each in results] == [
        ("max-sessions", 1, "ada"),
        ("max-sessions", 3, "ada"),
    ]
    policy = [event for event in harness.events if isinstance(event, events.PolicyDecision)]
    assert [(each.code, each.verdict, each.agent) for each in policy] == [("forbidden", "block", "bob")]


def test_every_event_that_is_declared_happens(
    new_harness: Callable[..., CoreHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a broker through everything that emits an event."""
    harness = new_harness(agents=RULES, runtimes=("python",), max_sessions=3)
    watcher = harness.send("subscribe", output=True)
    harness.open()
    running = harness.eval(agent="ada")
    harness.eval()
    harness.wait(0.1)  # the second one waits
    worker = harness.worker_running(running)
    assert worker is not None
    worker.reply(running, Outcome.NONE, FrameKind.OUTPUT, out="hi")
    harness.send("interrupt", session="work")
    worker.send_rolled_back(cause="SIGABRT", last=1)
    worker.send(FrameKind.CHECKPOINTED, CheckpointedBody(checkpoint=1, eval=1, count=1), epoch=harness.session().epoch)
    taken = harness.send("checkpoint", session="work")
    harness.finish(taken, checkpoint=2)
    saved = harness.send("save", session="work")
    harness.finish(saved, snapshot="0", count=2, bytes=9)
    branch = harness.send("branch", session="work", name="try")
    harness.worker().send_branched(branch)
    harness.request("close", session="try")
    put = harness.send("put-file", session="work", file="a")
    harness.worker("work").reply(put, Outcome.OK, status=["done"], file="/w/a", bytes=0, offset=0, sha256="0" * 64)
    asleep = harness.send("hibernate", session="work")
    harness.worker("work").send_snapshot(asleep)
    harness.finish(harness.eval())
    harness.request("reset", session="work")
    harness.request("env", session="work", action="activate", path="/venv")
    clone = harness.send("clone", session="work", name="copy")
    harness.worker().send_snapshot(clone)
    harness.worker("copy").exit()
    harness.request("new-session", name="later", snapshot=put_whole(harness, build_file()))
    harness.request("close", session="later")
    harness.request("ping", agent="bob")
    harness.send("new-session")
    harness.request("new-session")
    with monkeypatch.context() as patch:
        patch.setattr(harness.state.access, "is_admin", lambda _: 1 / 0)
        harness.request("introspect")
    for outcome in ("reached", "refused"):
        record = TrafficRecord(harness.session().id, "pypi.org", 443, outcome)
        harness.apply(harness.core.on_traffic(record, harness.now))
    harness.allow_and_end("a.test")
    harness.core.on_extension_loaded("guard", ["hook words"], harness.now)
    harness.apply(harness.core.on_extension_failed("guard", "hook words", "ValueError: no", harness.now))
    harness.reread_result = RereadResult(
        live=LiveSettings(
            limits=Limits(), agents=AgentRules([]), identities=(), admins=frozenset(), warm_workers=0, idle_exit_ms=0
        )
    )
    harness.request("reload-config")
    found = set(_types(_received_events(harness, watcher)))
    harness.restart()
    harness.request("shutdown")
    harness.wait(10)
    found |= set(harness.event_types())
    assert found | {"bus/lagged"} == set(EVENTS)  # the transports make that one
    decoded = events.decode(events.build_lagged(3))
    assert isinstance(decoded, events.BusLagged)
    assert decoded.missed == 3


def test_an_event_that_cannot_be_made_ends_nothing(harness: CoreHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.open()
    with monkeypatch.context() as patch:
        patch.setattr(events, "encode", lambda _: 1 / 0)
        sent = harness.eval()
        harness.finish(sent)
    assert "an event could not be made" in harness.log_lines[-1]
    harness.finish(harness.eval())
    assert harness.event_types()[-1] == "eval/finished"


def test_snapshots_are_for_admins_and_one_that_fails_spares_the_others(harness: CoreHarness) -> None:
    harness.open()
    harness.state.introspectors["broken"] = lambda: 1 / 0
    found = harness.request("introspect")["snapshots"]
    assert found["broken"] == {"error": "ZeroDivisionError: division by zero"}
    assert found["sessions"]["total"] == 1
    assert found["workers"]["rows"][0]["state"] == "assigned"
    assert list(harness.request("introspect", name="eval-semaphore")["snapshots"]) == ["eval-semaphore"]
    assert "no snapshot nope" in harness.request("introspect", name="nope")["err"]
    harness.core.set_identity(OTHER, "uid:1001")
    assert harness.request("introspect", OTHER)["status"][-1] == "forbidden"


def test_an_agents_processor_time_is_added_up_over_its_workers(harness: CoreHarness) -> None:
    harness.request("new-session", name="work", agent="ada")
    harness.worker().send(FrameKind.HEARTBEAT, {"cpu_seconds": 2.0, "memory_bytes": 1000})
    harness.worker().send(FrameKind.HEARTBEAT, {"cpu_seconds": 2.5, "memory_bytes": 1000})
    harness.request("reset", session="work")
    harness.worker().send(FrameKind.HEARTBEAT, {"cpu_seconds": 1.0, "memory_bytes": 500})
    assert harness.request("introspect", name="metrics")["snapshots"]["metrics"]["cpu-seconds"] == {"ada": 3.5}


def test_many_readers_are_served_in_parts_and_each_hears_everything_once_and_in_order(harness: CoreHarness) -> None:
    harness.open()
    readers = [b"q%d" % number for number in range(50)]
    sent = {peer: harness.send("subscribe", peer, types=["eval/"]) for peer in readers}
    worker = harness.worker()
    core, bus = harness.core, harness.state.bus
    effects = core.handle_request(b"p1", b'{"id":"e","op":"eval","session":"work","code":"1"}', harness.now)
    parts = []
    while core.pending_events:
        parts.append(core.flush_events(20))
        if len(parts) == 1:
            bus.forget_peer(readers[-1])  # goes while the first event is half told
    assert len(parts) > 4
    assert max(map(len, parts)) <= 21
    harness.apply([*effects, *(effect for part in parts for effect in part)])
    worker.reply("e")
    results = [_types(_received_events(harness, sent[peer])) for peer in readers]
    assert results == [["eval/accepted", "eval/started", "eval/finished"]] * 49 + [[]]


def test_who_subscribes_while_an_event_is_half_told_hears_nothing_of_it(harness: CoreHarness) -> None:
    harness.open()
    first = [harness.send("subscribe", b"q%d" % number, types=["eval/"]) for number in range(10)]
    core = harness.core
    effects = core.handle_request(
        b"p1", b'{"id":"e","op":"eval","session":"work","code":"1"}', harness.now
    ) + core.flush_events(5)
    late = b'{"id":"late","op":"subscribe","types":["eval/"]}'
    core.set_identity(OTHER, "self")
    harness.apply(effects + core.handle_request(OTHER, late, harness.now))
    assert _received_events(harness, "late") == []
    assert [_types(_received_events(harness, each)) for each in first] == [["eval/accepted", "eval/started"]] * 10

"""Every operation once, where nothing prevents it."""

from __future__ import annotations

from collections.abc import Callable

from core_harness import CoreHarness
from replwire.limits import Limits, limit_rows
from replwire.link import FrameKind, Outcome, pack
from replwire.ops import OPS


def test_ping_is_answered_with_pong(harness: CoreHarness) -> None:
    assert harness.request("ping") == {"id": "r1", "status": ["done", "pong"]}


def test_describe_names_every_operation_limit_and_version(harness: CoreHarness) -> None:
    answer = harness.request("describe")
    assert answer["ops"].keys() == OPS.keys()
    assert answer["limits"] == {bound.name: bound.default for bound in limit_rows()}
    assert answer["versions"] == {"replctl": "1.2.3"}
    assert (answer["encodings-available"], answer["encoding-current"]) == (["json"], "json")


def test_new_session_is_answered_when_its_worker_has_it(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    asked = harness.send("new-session", name="work", cwd="/src", env=["A=1"], agent="ada")
    worker = harness.workers[1]
    worker.send_ready()
    assert harness.is_pending(asked)
    assignment = worker.frames(FrameKind.ASSIGN)[0][1]
    assert (assignment["session"], assignment["name"], assignment["cwd"], assignment["env"]) == (
        "id-1",
        "work",
        "/src",
        ["A=1"],
    )
    worker.send_assigned()
    expected = {"id": asked, "status": ["done"], "session": "id-1", "name": "work", "epoch": 1, "created": True}
    assert harness.final_reply(asked) == expected | {"trusted": False, "cwd": "/src"}


def test_a_session_may_have_no_name_and_is_found_by_its_id(harness: CoreHarness) -> None:
    answer = harness.request("new-session")
    assert "name" not in answer
    harness.finish(harness.send("eval", code="1", session=answer["session"]))


def test_a_session_that_exists_is_reused_when_asked_for(harness: CoreHarness) -> None:
    first = harness.open()
    again = harness.request("new-session", name="work", if_exists="reuse")
    assert (again["session"], again["created"]) == (first["session"], False)
    assert len(harness.state.sessions) == 1


def test_sessions_are_listed_with_what_they_do(harness: CoreHarness) -> None:
    harness.open("idle")
    harness.eval("work", agent="ada", cwd="/src")
    queued = harness.eval("work")
    idle, work = harness.request("ls-sessions")["sessions"]
    assert (idle["name"], idle["state"], idle["running"], idle["queued"]) == ("idle", "idle", None, 0)
    assert (work["name"], work["state"], work["running"], work["queued"]) == ("work", "busy", 1, 1)
    assert (work["agent"], work["cwd"], work["eval-count"], work["runtime"]) == ("ada", "/src", 2, "python")
    assert work["created"] == "2023-11-14T22:30:00.000+00:00"
    assert work["created-at"] == 1_700_001_000.0
    assert harness.is_pending(queued)


def test_throw_away_sessions_are_not_listed(harness: CoreHarness) -> None:
    harness.eval(None)
    assert harness.request("ls-sessions")["sessions"] == []


def test_an_eval_is_passed_on_untouched_and_so_is_its_answer(harness: CoreHarness) -> None:
    harness.open()
    body = b'{"op":"eval", "id":"x","session":"work","code":"6*7" , "mime":["image/png"], "unheard-of":1}'
    harness.send_raw(body)
    worker = harness.worker()
    header, result = worker.frames(FrameKind.REQUEST)[0]
    assert result == {"op": "eval", "id": "x", "session": "work", "code": "6*7", "mime": ["image/png"], "unheard-of": 1}
    assert (header.epoch, header.eval) == (1, 1)
    worker.reply("x", Outcome.NONE, FrameKind.OUTPUT, out="hello")
    worker.reply("x", Outcome.NONE, value="42")
    worker.reply("x")
    assert [answer.get("out") or answer.get("value") for answer in harness.replies["x"]] == ["hello", "42", None]
    assert harness.final_reply("x")["status"] == ["done"]


def test_a_large_answer_arrives_whole(harness: CoreHarness) -> None:
    asked = harness.eval()
    assert harness.finish(asked, out="é" * 50_000)["out"] == "é" * 50_000


def test_a_value_and_the_end_that_came_as_one_frame_leave_as_two_messages(harness: CoreHarness) -> None:
    asked = harness.eval()
    worker = harness.worker()
    route = worker.header_of(asked).route
    value, end = b'{"id":"%s","value":"42"}' % asked.encode(), b'{"id":"%s","status":["done"]}' % asked.encode()
    worker.send(FrameKind.REPLY, value + end, outcome=Outcome.OK, epoch=1, route=route, first=len(value))
    assert harness.replies[asked][-2]["value"] == "42"
    assert harness.final_reply(asked)["status"] == ["done"]


def test_live_output_is_marked_with_its_request(harness: CoreHarness) -> None:
    asked = harness.eval()
    worker = harness.worker()
    header = worker.header_of(asked)
    effects = harness.core.handle_worker_frame(worker.number, _frame(FrameKind.OUTPUT, header.route), harness.now)
    effects += harness.core.handle_worker_frame(worker.number, _frame(FrameKind.REPLY, header.route), harness.now)
    assert [effect.output_of for effect in effects] == [asked, None]


def _frame(kind: int, route: int) -> bytes:
    return pack(kind, b"{}", epoch=1, route=route)


def test_an_eval_opens_its_session_and_says_so(harness: CoreHarness) -> None:
    asked = harness.eval("work", agent="ada")
    assert harness.replies[asked] == [
        {"id": asked, "created": True, "session": "id-1", "name": "work", "epoch": 1},
    ]
    harness.finish(asked)
    again = harness.eval("work")
    assert again not in harness.replies
    assert harness.session().agent == "ada"


def test_an_eval_without_a_session_leaves_nothing_behind(harness: CoreHarness) -> None:
    asked = harness.eval(None)
    worker = harness.worker_running(asked)
    assert worker is not None
    assert worker.frames(FrameKind.ASSIGN)[0][1]["ephemeral"] is True
    harness.finish(asked)
    assert len(harness.state.sessions) == 0
    assert harness.killed == [worker.number]
    assert harness.core.export() == (0, [])


def test_code_may_be_empty(harness: CoreHarness) -> None:
    harness.finish(harness.eval(code=""))


def test_worker_operations_are_passed_on_and_their_answers_back(harness: CoreHarness) -> None:
    harness.open()
    harness.finish(harness.eval())
    for op, fields in (("stdin", {"input": "x\n"}), ("clear-bindings", {}), ("read", {"eval_id": 1})):
        asked = harness.send(op, session="work", **fields)
        harness.worker().reply(asked, count=3)
        assert harness.final_reply(asked)["count"] == 3
    assert harness.is_idle()


def test_read_of_eval_zero_is_what_the_session_printed_by_itself(harness: CoreHarness) -> None:
    harness.open()
    asked = harness.send("read", session="work", eval_id=0)
    harness.worker().reply(asked, out="tick")
    assert harness.final_reply(asked)["out"] == "tick"


def test_info_is_completed_by_the_worker_from_what_the_broker_knows(harness: CoreHarness) -> None:
    harness.open(env=["A=1", "B=2"])
    asked = harness.send("info", session="work", variables=False)
    result = harness.worker().frames(FrameKind.REQUEST)[0][1]
    base = result["base"]
    assert result["variables"] is False
    assert (base["name"], base["state"], base["epoch"], base["sandbox"]) == ("work", "idle", 1, "none")
    assert base["env"] == ["A", "B"]
    assert base["limits"]["max-sessions"] == Limits().max_sessions
    harness.worker().reply(asked, info={"pid": 7})
    assert harness.final_reply(asked)["info"] == {"pid": 7}


def test_info_of_a_session_without_a_worker_starts_none(harness: CoreHarness) -> None:
    harness.open()
    harness.worker().exit()
    spawned = len(harness.spawned)
    info = harness.request("info", session="work")["info"]
    assert (info["state"], info["pid"], info["epoch"]) == ("vacant", None, 2)
    assert len(harness.spawned) == spawned


def test_jobs_lists_running_queued_and_finished_evals(harness: CoreHarness) -> None:
    harness.finish(harness.eval(code="first", agent="ada"))
    harness.eval(code="second" * 100)
    harness.wait(2)
    harness.eval(code="third")
    one, two, three = harness.request("jobs", session="work")["jobs"]
    assert (one["state"], one["status"], one["agent"], one["code"]) == ("done", ["done"], "ada", "first")
    assert (two["state"], two["duration-ms"], len(two["code"])) == ("running", 2000.0, 80)
    assert (three["state"], three["started"], three["duration-ms"]) == ("queued", None, None)
    assert three["submitted"] == "2023-11-14T22:30:02.000+00:00"


def test_stats_count(harness: CoreHarness) -> None:
    for peer in (b"p1", b"p2", b"p3"):
        harness.core.on_connect(peer, "self", harness.now)
    harness.finish(harness.eval(), Outcome.ERROR)
    harness.eval(agent="ada")
    harness.eval(agent="ada")
    harness.wait(1.5)
    harness.request("close", session="nowhere")
    stats = harness.request("stats")["stats"]
    assert (stats["sessions"], stats["connections"], stats["uptime-ms"]) == (1, 3, 1500)
    assert stats["slots"] == {"taken": 1, "of": 10}
    assert stats["queued"] == {"total": 1, "by-agent": {"ada": 1}}
    assert stats["counts"] == {"evals.error": 1, "refused.session-not-found": 1}
    assert stats["workers"] == {"starting": 0, "warm": 0, "assigned": 1}


def test_every_session_is_saved_until_it_ends(harness: CoreHarness) -> None:
    harness.open("a")
    harness.eval("b")
    harness.eval(None)
    nameless = harness.request("new-session")["session"]
    harness.request("close", session="a")
    ephemeral = next(each.id for each in harness.state.sessions if each.ephemeral)
    assert harness.saved_sessions() == ["b", ephemeral, nameless]

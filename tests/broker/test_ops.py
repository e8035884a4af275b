"""Every operation, once, when nothing stands in its way."""

from __future__ import annotations

from collections.abc import Callable

from core_harness import CoreHarness
from replwire.limits import Limits, limit_rows
from replwire.link import FrameKind, Outcome, pack
from replwire.ops import OPS


def test_ping_is_answered_with_pong(table: CoreHarness) -> None:
    assert table.request("ping") == {"id": "r1", "status": ["done", "pong"]}


def test_describe_names_every_operation_limit_and_version(table: CoreHarness) -> None:
    answer = table.request("describe")
    assert answer["ops"].keys() == OPS.keys()
    assert answer["limits"] == {bound.name: bound.default for bound in limit_rows()}
    assert answer["versions"] == {"replctl": "1.2.3"}
    assert (answer["encodings-available"], answer["encoding-current"]) == (["json"], "json")


def test_new_session_is_answered_when_its_worker_has_it(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    asked = table.send("new-session", name="work", cwd="/src", env=["A=1"], agent="ada")
    worker = table.workers[1]
    worker.send_ready()
    assert table.is_pending(asked)
    claim = worker.frames(FrameKind.ASSIGN)[0][1]
    assert (claim["session"], claim["name"], claim["cwd"], claim["env"]) == ("id-1", "work", "/src", ["A=1"])
    worker.send_assigned()
    expected = {"id": asked, "status": ["done"], "session": "id-1", "name": "work", "epoch": 1, "created": True}
    assert table.final_reply(asked) == expected | {"trusted": False, "cwd": "/src"}


def test_a_session_may_have_no_name_and_is_found_by_its_id(table: CoreHarness) -> None:
    answer = table.request("new-session")
    assert "name" not in answer
    table.finish(table.send("eval", code="1", session=answer["session"]))


def test_a_session_that_exists_is_reused_when_asked_for(table: CoreHarness) -> None:
    first = table.open()
    again = table.request("new-session", name="work", if_exists="reuse")
    assert (again["session"], again["created"]) == (first["session"], False)
    assert len(table.state.sessions) == 1


def test_sessions_are_listed_with_what_they_do(table: CoreHarness) -> None:
    table.open("idle")
    table.eval("work", agent="ada", cwd="/src")
    queued = table.eval("work")
    idle, work = table.request("ls-sessions")["sessions"]
    assert (idle["name"], idle["state"], idle["running"], idle["queued"]) == ("idle", "idle", None, 0)
    assert (work["name"], work["state"], work["running"], work["queued"]) == ("work", "busy", 1, 1)
    assert (work["agent"], work["cwd"], work["eval-count"], work["runtime"]) == ("ada", "/src", 2, "python")
    assert work["created"] == "2023-11-14T22:30:00.000+00:00"
    assert work["created-at"] == 1_700_001_000.0
    assert table.is_pending(queued)


def test_throw_away_sessions_are_not_listed(table: CoreHarness) -> None:
    table.eval(None)
    assert table.request("ls-sessions")["sessions"] == []


def test_an_eval_is_passed_on_untouched_and_so_is_its_answer(table: CoreHarness) -> None:
    table.open()
    body = b'{"op":"eval", "id":"x","session":"work","code":"6*7" , "mime":["image/png"], "unheard-of":1}'
    table.send_raw(body)
    worker = table.worker()
    header, told = worker.frames(FrameKind.REQUEST)[0]
    assert told == {"op": "eval", "id": "x", "session": "work", "code": "6*7", "mime": ["image/png"], "unheard-of": 1}
    assert (header.epoch, header.eval) == (1, 1)
    worker.reply("x", Outcome.NONE, FrameKind.OUTPUT, out="hello")
    worker.reply("x", Outcome.NONE, value="42")
    worker.reply("x")
    assert [answer.get("out") or answer.get("value") for answer in table.replies["x"]] == ["hello", "42", None]
    assert table.final_reply("x")["status"] == ["done"]


def test_a_large_answer_arrives_whole(table: CoreHarness) -> None:
    asked = table.eval()
    assert table.finish(asked, out="é" * 50_000)["out"] == "é" * 50_000


def test_a_value_and_the_end_that_came_as_one_frame_leave_as_two_messages(table: CoreHarness) -> None:
    asked = table.eval()
    worker = table.worker()
    route = worker.header_of(asked).route
    value, end = b'{"id":"%s","value":"42"}' % asked.encode(), b'{"id":"%s","status":["done"]}' % asked.encode()
    worker.send(FrameKind.REPLY, value + end, outcome=Outcome.OK, epoch=1, route=route, first=len(value))
    assert table.replies[asked][-2]["value"] == "42"
    assert table.final_reply(asked)["status"] == ["done"]


def test_live_output_is_marked_with_its_request(table: CoreHarness) -> None:
    asked = table.eval()
    worker = table.worker()
    header = worker.header_of(asked)
    effects = table.core.handle_worker_frame(worker.number, _frame(FrameKind.OUTPUT, header.route), table.now)
    effects += table.core.handle_worker_frame(worker.number, _frame(FrameKind.REPLY, header.route), table.now)
    assert [effect.output_of for effect in effects] == [asked, None]


def _frame(kind: int, route: int) -> bytes:
    return pack(kind, b"{}", epoch=1, route=route)


def test_an_eval_opens_its_session_and_says_so(table: CoreHarness) -> None:
    asked = table.eval("work", agent="ada")
    assert table.replies[asked] == [
        {"id": asked, "created": True, "session": "id-1", "name": "work", "epoch": 1},
    ]
    table.finish(asked)
    again = table.eval("work")
    assert again not in table.replies
    assert table.session().agent == "ada"


def test_an_eval_without_a_session_leaves_nothing_behind(table: CoreHarness) -> None:
    asked = table.eval(None)
    worker = table.worker_running(asked)
    assert worker is not None
    assert worker.frames(FrameKind.ASSIGN)[0][1]["ephemeral"] is True
    table.finish(asked)
    assert len(table.state.sessions) == 0
    assert table.killed == [worker.number]
    assert table.saved == []


def test_code_may_be_empty(table: CoreHarness) -> None:
    table.finish(table.eval(code=""))


def test_worker_operations_are_passed_on_and_their_answers_back(table: CoreHarness) -> None:
    table.open()
    table.finish(table.eval())
    for op, fields in (("stdin", {"input": "x\n"}), ("clear-bindings", {}), ("read", {"eval_id": 1})):
        asked = table.send(op, session="work", **fields)
        table.worker().reply(asked, count=3)
        assert table.final_reply(asked)["count"] == 3
    assert table.is_idle()


def test_read_of_eval_zero_is_what_the_session_printed_by_itself(table: CoreHarness) -> None:
    table.open()
    asked = table.send("read", session="work", eval_id=0)
    table.worker().reply(asked, out="tick")
    assert table.final_reply(asked)["out"] == "tick"


def test_info_is_completed_by_the_worker_from_what_the_broker_knows(table: CoreHarness) -> None:
    table.open(env=["A=1", "B=2"])
    asked = table.send("info", session="work", variables=False)
    told = table.worker().frames(FrameKind.REQUEST)[0][1]
    base = told["base"]
    assert told["variables"] is False
    assert (base["name"], base["state"], base["epoch"], base["sandbox"]) == ("work", "idle", 1, "none")
    assert base["env"] == ["A", "B"]
    assert base["limits"]["max-sessions"] == Limits().max_sessions
    table.worker().reply(asked, info={"pid": 7})
    assert table.final_reply(asked)["info"] == {"pid": 7}


def test_info_of_a_session_without_a_worker_starts_none(table: CoreHarness) -> None:
    table.open()
    table.worker().exit()
    spawned = len(table.spawned)
    info = table.request("info", session="work")["info"]
    assert (info["state"], info["pid"], info["epoch"]) == ("vacant", None, 2)
    assert len(table.spawned) == spawned


def test_jobs_lists_running_queued_and_finished_evals(table: CoreHarness) -> None:
    table.finish(table.eval(code="first", agent="ada"))
    table.eval(code="second" * 100)
    table.wait(2)
    table.eval(code="third")
    one, two, three = table.request("jobs", session="work")["jobs"]
    assert (one["state"], one["status"], one["agent"], one["code"]) == ("done", ["done"], "ada", "first")
    assert (two["state"], two["duration-ms"], len(two["code"])) == ("running", 2000.0, 80)
    assert (three["state"], three["started"], three["duration-ms"]) == ("queued", None, None)
    assert three["submitted"] == "2023-11-14T22:30:02.000+00:00"


def test_stats_count(table: CoreHarness) -> None:
    for peer in (b"p1", b"p2", b"p3"):
        table.core.on_connect(peer, "self", table.now)
    table.finish(table.eval(), Outcome.ERROR)
    table.eval(agent="ada")
    table.eval(agent="ada")
    table.wait(1.5)
    table.request("close", session="nowhere")
    stats = table.request("stats")["stats"]
    assert (stats["sessions"], stats["connections"], stats["uptime-ms"]) == (1, 3, 1500)
    assert stats["slots"] == {"taken": 1, "of": 10}
    assert stats["queued"] == {"total": 1, "by-agent": {"ada": 1}}
    assert stats["counts"] == {"evals.error": 1, "refused.session-not-found": 1}
    assert stats["workers"] == {"starting": 0, "warm": 0, "claimed": 1}


def test_every_session_that_is_not_throw_away_is_saved(table: CoreHarness) -> None:
    table.open("a")
    table.eval("b")
    table.eval(None)
    nameless = table.request("new-session")["session"]
    table.request("close", session="a")
    assert [(each.name, each.open) for each in table.saved] == [("a", True), ("b", True), (None, True), ("a", False)]
    assert table.saved_sessions() == ["b", nameless]

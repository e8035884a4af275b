"""Every operation, once, when nothing stands in its way."""

from __future__ import annotations

from collections.abc import Callable

from broker_kit import Table
from replwire.limits import Limits, bounds
from replwire.link import Kind, Outcome, pack
from replwire.ops import OPS


def test_ping_is_answered_with_pong(table: Table) -> None:
    assert table.said("ping") == {"id": "r1", "status": ["done", "pong"]}


def test_describe_names_every_operation_limit_and_version(table: Table) -> None:
    answer = table.said("describe")
    assert answer["ops"].keys() == OPS.keys()
    assert answer["limits"] == {bound.name: bound.default for bound in bounds()}
    assert answer["versions"] == {"replctl": "1.2.3"}
    assert (answer["encodings-available"], answer["encoding-current"]) == (["json"], "json")


def test_new_session_is_answered_when_its_worker_has_it(new_table: Callable[..., Table]) -> None:
    table = new_table(auto=False)
    asked = table.ask("new-session", name="work", cwd="/src", env=["A=1"], agent="ada")
    worker = table.workers[1]
    worker.ready()
    assert table.pending(asked)
    claim = worker.heard(Kind.CLAIM)[0][1]
    assert (claim["session"], claim["name"], claim["cwd"], claim["env"]) == ("id-1", "work", "/src", ["A=1"])
    worker.claimed()
    expected = {"id": asked, "status": ["done"], "session": "id-1", "name": "work", "epoch": 1, "created": True}
    assert table.end(asked) == expected | {"trusted": False, "cwd": "/src"}


def test_a_session_may_have_no_name_and_is_found_by_its_id(table: Table) -> None:
    answer = table.said("new-session")
    assert "name" not in answer
    table.finish(table.ask("eval", code="1", session=answer["session"]))


def test_a_session_that_exists_is_reused_when_asked_for(table: Table) -> None:
    first = table.open()
    again = table.said("new-session", name="work", if_exists="reuse")
    assert (again["session"], again["created"]) == (first["session"], False)
    assert len(table.state.sessions) == 1


def test_sessions_are_listed_with_what_they_do(table: Table) -> None:
    table.open("idle")
    table.eval("work", agent="ada", cwd="/src")
    queued = table.eval("work")
    idle, work = table.said("ls-sessions")["sessions"]
    assert (idle["name"], idle["state"], idle["running"], idle["queued"]) == ("idle", "idle", None, 0)
    assert (work["name"], work["state"], work["running"], work["queued"]) == ("work", "busy", 1, 1)
    assert (work["agent"], work["cwd"], work["eval-count"], work["runtime"]) == ("ada", "/src", 2, "python")
    assert work["created"] == "2023-11-14T22:30:00.000+00:00"
    assert work["created-at"] == 1_700_001_000.0
    assert table.pending(queued)


def test_throw_away_sessions_are_not_listed(table: Table) -> None:
    table.eval(None)
    assert table.said("ls-sessions")["sessions"] == []


def test_an_eval_is_passed_on_untouched_and_so_is_its_answer(table: Table) -> None:
    table.open()
    body = b'{"op":"eval", "id":"x","session":"work","code":"6*7" , "mime":["image/png"], "unheard-of":1}'
    table.hear(body)
    worker = table.worker()
    header, told = worker.heard(Kind.ASK)[0]
    assert told == {"op": "eval", "id": "x", "session": "work", "code": "6*7", "mime": ["image/png"], "unheard-of": 1}
    assert (header.epoch, header.eval) == (1, 1)
    worker.answers("x", Outcome.NONE, Kind.OUT, out="hello")
    worker.answers("x", Outcome.NONE, value="42")
    worker.answers("x")
    assert [answer.get("out") or answer.get("value") for answer in table.answers["x"]] == ["hello", "42", None]
    assert table.end("x")["status"] == ["done"]


def test_a_large_answer_arrives_whole(table: Table) -> None:
    asked = table.eval()
    assert table.finish(asked, out="é" * 50_000)["out"] == "é" * 50_000


def test_a_value_and_the_end_that_came_as_one_frame_leave_as_two_messages(table: Table) -> None:
    asked = table.eval()
    worker = table.worker()
    route = worker.asked(asked).route
    value, end = b'{"id":"%s","value":"42"}' % asked.encode(), b'{"id":"%s","status":["done"]}' % asked.encode()
    worker.says(Kind.SAY, value + end, outcome=Outcome.OK, epoch=1, route=route, first=len(value))
    assert table.answers[asked][-2]["value"] == "42"
    assert table.end(asked)["status"] == ["done"]


def test_live_output_is_marked_with_its_request(table: Table) -> None:
    asked = table.eval()
    worker = table.worker()
    header = worker.asked(asked)
    effects = table.core.worker_said(worker.number, _frame(Kind.OUT, header.route), table.now)
    effects += table.core.worker_said(worker.number, _frame(Kind.SAY, header.route), table.now)
    assert [effect.output_of for effect in effects] == [asked, None]


def _frame(kind: int, route: int) -> bytes:
    return pack(kind, b"{}", epoch=1, route=route)


def test_an_eval_opens_its_session_and_says_so(table: Table) -> None:
    asked = table.eval("work", agent="ada")
    assert table.answers[asked] == [
        {"id": asked, "created": True, "session": "id-1", "name": "work", "epoch": 1},
    ]
    table.finish(asked)
    again = table.eval("work")
    assert again not in table.answers
    assert table.session().agent == "ada"


def test_an_eval_without_a_session_leaves_nothing_behind(table: Table) -> None:
    asked = table.eval(None)
    worker = table.runner(asked)
    assert worker is not None
    assert worker.heard(Kind.CLAIM)[0][1]["ephemeral"] is True
    table.finish(asked)
    assert len(table.state.sessions) == 0
    assert table.killed == [worker.number]
    assert table.saved == []


def test_code_may_be_empty(table: Table) -> None:
    table.finish(table.eval(code=""))


def test_worker_operations_are_passed_on_and_their_answers_back(table: Table) -> None:
    table.open()
    table.finish(table.eval())
    for op, fields in (("stdin", {"input": "x\n"}), ("clear-bindings", {}), ("read", {"eval_id": 1})):
        asked = table.ask(op, session="work", **fields)
        table.worker().answers(asked, count=3)
        assert table.end(asked)["count"] == 3
    assert table.quiet()


def test_read_of_eval_zero_is_what_the_session_printed_by_itself(table: Table) -> None:
    table.open()
    asked = table.ask("read", session="work", eval_id=0)
    table.worker().answers(asked, out="tick")
    assert table.end(asked)["out"] == "tick"


def test_info_is_completed_by_the_worker_from_what_the_broker_knows(table: Table) -> None:
    table.open(env=["A=1", "B=2"])
    asked = table.ask("info", session="work", variables=False)
    told = table.worker().heard(Kind.ASK)[0][1]
    base = told["base"]
    assert told["variables"] is False
    assert (base["name"], base["state"], base["epoch"], base["sandbox"]) == ("work", "idle", 1, "none")
    assert base["env"] == ["A", "B"]
    assert base["limits"]["max-sessions"] == Limits().max_sessions
    table.worker().answers(asked, info={"pid": 7})
    assert table.end(asked)["info"] == {"pid": 7}


def test_info_of_a_session_without_a_worker_starts_none(table: Table) -> None:
    table.open()
    table.worker().dies()
    spawned = len(table.spawned)
    info = table.said("info", session="work")["info"]
    assert (info["state"], info["pid"], info["epoch"]) == ("vacant", None, 2)
    assert len(table.spawned) == spawned


def test_jobs_lists_running_queued_and_finished_evals(table: Table) -> None:
    table.finish(table.eval(code="first", agent="ada"))
    table.eval(code="second" * 100)
    table.wait(2)
    table.eval(code="third")
    one, two, three = table.said("jobs", session="work")["jobs"]
    assert (one["state"], one["status"], one["agent"], one["code"]) == ("done", ["done"], "ada", "first")
    assert (two["state"], two["duration-ms"], len(two["code"])) == ("running", 2000.0, 80)
    assert (three["state"], three["started"], three["duration-ms"]) == ("queued", None, None)
    assert three["submitted"] == "2023-11-14T22:30:02.000+00:00"


def test_stats_count(table: Table) -> None:
    for peer in (b"p1", b"p2", b"p3"):
        table.core.connected(peer, "self", table.now)
    table.finish(table.eval(), Outcome.ERROR)
    table.eval(agent="ada")
    table.eval(agent="ada")
    table.wait(1.5)
    table.said("close", session="nowhere")
    stats = table.said("stats")["stats"]
    assert (stats["sessions"], stats["connections"], stats["uptime-ms"]) == (1, 3, 1500)
    assert stats["slots"] == {"taken": 1, "of": 10}
    assert stats["queued"] == {"total": 1, "by-agent": {"ada": 1}}
    assert stats["counts"] == {"evals.error": 1, "refused.session-not-found": 1}
    assert stats["workers"] == {"starting": 0, "warm": 0, "claimed": 1}


def test_every_session_that_is_not_throw_away_is_saved(table: Table) -> None:
    table.open("a")
    table.eval("b")
    table.eval(None)
    nameless = table.said("new-session")["session"]
    table.said("close", session="a")
    assert [(each.name, each.open) for each in table.saved] == [("a", True), ("b", True), (None, True), ("a", False)]
    assert table.listed() == ["b", nameless]

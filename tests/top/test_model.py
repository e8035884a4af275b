"""The model, fed by hand: events and answers in, rows out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.top import snapshot, tables
from replctl.top.cell_text import plain_text
from replctl.top.feed import BrokerFeed
from replctl.top.formatting import Rate, format_bytes, format_number, format_span
from replctl.top.model import MAX_RECENT, TopModel
from replctl.top.polling import PollRequest, poll_broker
from replwire.replies import JobEntry, Reply, SessionEntry
from top_kit import STARTED, fixed_model, moment

EmitEvent = Callable[..., None]


@pytest.fixture
def model() -> TopModel:
    """A broker with one session, `s`, called work; the clock shows the seconds since its start."""
    model = TopModel("ipc:///b.sock")
    model.update_stats({"started": STARTED, "uptime-ms": 0}, 0.0)
    model.apply_event(
        {
            "type": "session/created",
            "session": "s",
            "name": "work",
            "runtime": "python",
            "agent": "ada",
            "time": moment(0),
        },
        0,
    )
    return model


@pytest.fixture
def emit(model: TopModel) -> EmitEvent:
    """An event of that session."""

    def emit(type: str, at: float = 0.0, **fields: Any) -> None:
        fields = {key.replace("_", "-"): value for key, value in fields.items()}
        model.apply_event({"type": type, "session": "s", "time": moment(at), **fields}, at)

    return emit


def cells(model: TopModel, now: float = 0.0) -> dict[str, str]:
    """The one session's row, by the heads of its columns."""
    [row] = tables.session_rows(model, now)
    return {column.head: text for column, (text, _) in zip(tables.SESSIONS, row.cells, strict=True)}


def jobs(model: TopModel, now: float = 0.0) -> list[tuple[str, ...]]:
    return [tuple(text for text, _ in row.cells) for row in tables.job_rows(model, now)]


def printed(model: TopModel) -> list[str]:
    return [plain_text(line) for line in model.sessions["s"].output.backwards(200)][::-1]


def test_an_eval_is_queued_runs_and_ends(model: TopModel, emit: EmitEvent) -> None:
    emit("eval/accepted", 1, eval=1, agent="ada", code="x = 1\nx")
    assert (cells(model)["WAIT"], jobs(model, 3)) == ("1", [("queued", "2.0s", "work", "1", "ada", "x = 1 x")])
    emit("eval/queued", 1, eval=1, position=2)
    assert jobs(model, 3)[0][0] == "queued 2"
    emit("eval/started", 4, eval=1)
    row = cells(model, 14)
    assert [row[head] for head in ("STATE", "WAIT", "FOR", "RUNS", "AGENT")] == ["busy", "-", "10s", "x = 1 x", "ada"]
    emit("eval/finished", 64, eval=1, status="ok", value="1", duration_ms=60_000.0)
    assert (cells(model)["STATE"], cells(model)["RUNS"]) == ("idle", "")
    assert jobs(model, 99) == [("ok", "1m00s", "work", "1", "ada", "x = 1 x")]
    assert printed(model) == ["[1] x = 1 x", "= 1"]


def test_an_eval_that_was_asked_to_stop_says_so(model: TopModel, emit: EmitEvent) -> None:
    emit("eval/accepted", eval=1, code="loop()")
    emit("eval/started", eval=1)
    emit("eval/interrupt-requested", eval=1, by="ada")
    assert jobs(model)[0][0] == "stopping"
    emit("eval/finished", eval=1, status="cancelled", state="kept", duration_ms=5.0)
    assert jobs(model)[0][:2] == ("cancelled", "5ms")


def test_a_loss_a_reset_and_an_error_stand_in_the_output(model: TopModel, emit: EmitEvent) -> None:
    emit("eval/accepted", eval=1, code="f()")
    emit("eval/started", eval=1)
    emit("eval/output", eval=1, reply={"out": "half a li"})
    emit(
        "eval/finished", eval=1, status="error", traceback="Traceback:\nValueError: \x1b[31mno", error="ValueError: no"
    )
    emit("session/lost", why="killed\x07", epoch=2)
    emit("session/reset", reason="reset by ada", epoch=3)
    assert printed(model) == [
        "[1] f()",
        "half a li",
        "Traceback:",
        "ValueError: \\x1b[31mno",
        "-- worker lost, epoch 2: killed\\x07",
        "-- reset, epoch 3: reset by ada",
    ]
    assert (cells(model)["EPOCH"], cells(model)["STATE"]) == ("3", "starting")


def test_figures_and_a_wish_for_input_are_told(model: TopModel, emit: EmitEvent) -> None:
    emit("eval/output", eval=1, reply={"mime": {"image/png": "…"}})
    emit("eval/output", eval=1, reply={"status": ["need-input"]})
    assert printed(model) == ["-- a figure: image/png", '-- waits for input: replctl stdin work "text"']


def test_a_session_that_is_closed_takes_its_evals_along_but_not_what_has_ended(
    model: TopModel, emit: EmitEvent
) -> None:
    for eval in (1, 2):
        emit("eval/accepted", eval=eval, agent="ada", code="1")
    emit("eval/finished", eval=1, status="ok", duration_ms=1.0)
    emit("session/closed", reason="closed by ada")
    assert (tables.session_rows(model, 0), [row[:3] for row in jobs(model)]) == ([], [("ok", "1ms", "work")])


def test_events_of_sessions_that_are_not_known_change_nothing(model: TopModel) -> None:
    for kind in ("eval/started", "eval/output", "eval/finished", "session/idle", "session/closed", "worker/exited"):
        model.apply_event({"type": kind, "session": "other", "eval": 1, "time": STARTED}, 0)
    assert list(model.sessions) == ["s"]


def test_what_was_missed_is_asked_for_again(model: TopModel, emit: EmitEvent) -> None:
    emit("eval/accepted", eval=1, code="1")
    model.apply_event({"type": "session/created", "session": "once", "ephemeral": True, "time": STARTED}, 0)
    model.apply_event({"type": "bus/lagged", "missed": 17}, 0)
    assert list(model.sessions) == ["s"]
    assert (model.sessions["s"].jobs_known, model.warning) == (False, "too many events at once: 17 were missed")


def test_a_refusal_is_told(model: TopModel) -> None:
    model.apply_event(
        {"type": "admission/refused", "agent": "ada", "err": "Too many\nevals", "code": "rate-limited"}, 0
    )
    assert model.warning == "ada was refused: Too many evals"


def test_what_ended_is_bounded(model: TopModel, emit: EmitEvent) -> None:
    for eval in range(1, MAX_RECENT + 50):
        emit("eval/accepted", eval=eval, code="1")
        emit("eval/finished", eval=eval, status="ok", duration_ms=1.0)
    assert (len(model.recent), model.recent[0].eval_id, model.active) == (MAX_RECENT, MAX_RECENT + 49, {})


def test_a_list_takes_away_what_has_gone_and_brings_what_is_new(model: TopModel) -> None:
    model.update_sessions([entry("t", name="new", queued=1, running=3, state="busy")], include_ephemeral=True)
    assert [row.key for row in tables.session_rows(model, 0)] == ["t"]
    assert not model.sessions["t"].jobs_known
    model.update_jobs("t", [job(2, "done", ["done", "error", "timeout"], 70.0), job(3, "running"), job(4, "queued")])
    assert [row[0] for row in jobs(model)] == ["running", "queued", "timeout"]
    model.update_sessions([entry("t", name="new", queued=1, running=3, state="busy")], include_ephemeral=True)
    assert model.sessions["t"].jobs_known


def test_sessions_are_sorted_and_filtered() -> None:
    model = fixed_model()

    def names(**how: Any) -> list[str]:
        return [row.cells[0][0] for row in tables.session_rows(model, 90, **how)]

    assert names() == ["build", "etl", "plots", "train", "s5"]
    assert names(sort="cpu")[:2] == ["train", "etl"]
    assert names(sort="mem", backwards=True)[-1] == "train"
    assert names(sort="for")[0] == "train"
    assert names(sort="state")[:2] == ["etl", "train"]
    assert names(filter="GRACE py") == ["plots", "train"]
    assert names(filter="nothing") == []
    for sort in tables.SORTS:
        assert len(names(sort=sort)) == 5


def test_agents_have_what_their_sessions_have() -> None:
    [grace] = [each for each in tables.agents(fixed_model()) if each.name == "grace"]
    assert (grace.sessions, grace.running, grace.queued, grace.memory_bytes) == (2, 1, 0, 1_596_400_000)
    assert grace.cpu_seconds == 150.2


def test_a_rate_forgets_what_is_older_than_its_window() -> None:
    rate = Rate(60)
    for at, total in ((0, 0), (10, 100), (60, 100), (120, 100)):
        rate.record(at, total)
    assert rate.per_second() == 0.0
    rate.record(121, 3)  # it began anew
    assert rate.per_second() == 0.0


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        (format_span(0.0034), "3ms"),
        (format_span(9.94), "9.9s"),
        (format_span(59.7), "1m00s"),
        (format_span(7500), "2h05m"),
        (format_span(90_000), "1d01h"),
        (format_bytes(0), "0"),
        (format_bytes(999), "999"),
        (format_bytes(1000), "1.0K"),
        (format_bytes(150_000_000), "143M"),
        (format_bytes(9e12), "8.2T"),
        (format_number(99.94), "99.9"),
        (format_number(312.4), "312"),
    ],
)
def test_figures_are_short(expected: str, wanted: str) -> None:
    assert expected == wanted


def answered(model: TopModel, answers: dict[str, Reply | ReplError], most: int = 5) -> list[PollRequest]:
    """Drive a survey with prepared answers; what was asked."""
    asked: list[PollRequest] = []
    steps: Generator[PollRequest, Any, None] = poll_broker(model, lambda: 1.0, most)
    ask = next(steps, None)
    while ask is not None:
        asked.append(ask)
        try:
            ask = steps.send(answers[ask.op])
        except StopIteration:
            ask = None
    return asked


def test_who_may_not_look_inside_is_asked_less_and_sees_the_own_sessions() -> None:
    model = TopModel("ipc:///b.sock")
    answers: dict[str, Reply | ReplError] = {
        "introspect": ReplError("forbidden", "only admins"),
        "stats": Reply(id="1", stats={"started": STARTED}),
        "ls-sessions": Reply(id="1", sessions=[entry("t", state="idle")]),
        "jobs": Reply(id="1", jobs=[]),
        "info": Reply(id="1", info={"session": "t", "epoch": 1, "cpu-seconds": 2.0, "memory-bytes": 3}),
    }
    assert [ask.op for ask in answered(model, answers)] == ["introspect", "ls-sessions", "stats", "jobs", "info"]
    assert (model.may_introspect, model.sessions["t"].usage.memory_bytes) == (False, 3)
    assert [ask.op for ask in answered(model, answers)] == ["ls-sessions", "stats"]


def test_a_round_asks_of_few_sessions_and_the_next_of_others() -> None:
    model = TopModel("ipc:///b.sock")
    model.may_introspect = False
    listed = Reply(id="1", sessions=[entry(f"t{n}", name=f"t{n}", running=1, state="busy") for n in range(4)])
    answers: dict[str, Reply | ReplError] = {
        "ls-sessions": listed,
        "stats": Reply(id="1", stats={}),
        "jobs": Reply(id="1", jobs=[job(1, "running")]),
        "info": ReplError("timeout", "no answer"),
    }
    rounds = [[ask.fields["session"] for ask in answered(model, answers, 2) if ask.op == "info"] for _ in range(2)]
    assert sorted(each for one in rounds for each in one) == ["t0", "t1", "t2", "t3"]
    assert model.warning == "no answer"


def test_a_snapshot_as_data_has_what_the_tables_have() -> None:
    result = snapshot.snapshot_data(fixed_model(), 90.0)
    assert [each["name"] for each in result["sessions"]] == ["build", "etl", "plots", "train", None]
    assert (result["sessions"][1]["running"], result["sessions"][1]["running-ms"]) == (1, 20_000)
    assert [(each["name"], each["state"], each["end"]) for each in result["jobs"]][-1] == ("train", "done", "ok")
    assert result["time"] == "2026-01-02T03:05:30.000+00:00"


def entry(key: str, **more: Any) -> SessionEntry:
    facts: dict[str, Any] = {
        "name": None,
        "state": "busy",
        "runtime": "python",
        "epoch": 1,
        "eval_count": 4,
        "queued": 0,
        "running": None,
        "owner": "uid:1000",
        "agent": "ada",
        "cwd": None,
        "ref": key,
    }
    return SessionEntry(session=key, created=STARTED, created_at=0.0, last_activity=STARTED, **(facts | more))


def job(number: int, state: str, status: list[str] | None = None, took: float | None = None) -> JobEntry:
    return JobEntry(
        eval_id=number,
        state=state,
        status=status or [],
        epoch=1,
        agent="ada",
        submitted=STARTED,
        started=None if state == "queued" else STARTED,
        duration_ms=took,
        code=f"code {number}",
    )


def test_an_end_that_is_heard_before_the_answer_of_a_read_is_shown_after_its_output(
    model: TopModel, emit: EmitEvent
) -> None:
    emit("eval/accepted", eval=1, code="loop()")
    emit("eval/started", eval=1)
    session, reads = model.sessions["s"], 0

    class EndingReader:
        async def read(self, _session: str, _eval: int, *, on_output: Callable[[str, str], None], **_: Any) -> Result:
            nonlocal reads
            reads += 1
            on_output("out", "x\n" * reads)
            if reads == 1:  # the eval ends while this answer is on its way
                emit("eval/finished", eval=1, status="cancelled")
                return Result(status=["done", "running"])
            return Result(status=["done", "interrupted"])

    feed = BrokerFeed(model, EndingReader, 1.0)  # type: ignore[arg-type]
    feed.client = EndingReader()  # type: ignore[assignment]
    session.output_known = False
    job = model.last_job("s")
    assert job is not None
    asyncio.run(feed.load_earlier_output(session, job))
    shown = [plain_text(line) for line in session.output.backwards(80)]
    assert shown[0].startswith("-- cancelled")
    assert (shown.count("x"), reads) == (2, 2)


def test_an_end_that_an_answer_told_first_still_stands_once_in_the_output(model: TopModel, emit: EmitEvent) -> None:
    emit("eval/accepted", eval=1, code="loop()")
    emit("eval/started", eval=1)
    emit("eval/accepted", eval=2, code="2")
    model.update_jobs("s", [job(1, "done", ["done", "interrupted"], 1.0), job(2, "done", ["done"], 5.0)])
    emit("eval/finished", eval=1, status="cancelled")
    emit("eval/started", eval=2, code="2")
    emit("eval/finished", eval=2, status="ok", value="2")
    assert printed(model) == ["[1] loop()", "-- cancelled", "[2] code 2", "= 2"]
    before = model.last_job("s")
    assert before is not None
    model.update_output(before, [("out", "x\n")], 0, {"status": "ok", "value": "2"})
    emit("eval/finished", eval=2, status="ok", value="2")
    assert printed(model) == ["[2] code 2", "x", "= 2"]


def test_a_look_back_takes_nothing_from_an_eval_that_has_begun_since(model: TopModel, emit: EmitEvent) -> None:
    emit("eval/accepted", eval=1, code="loop()")
    emit("eval/started", eval=1)
    session, first = model.sessions["s"], model.last_job("s")
    assert first is not None

    class SwitchingReader:
        async def read(self, *_: Any, on_output: Callable[[str, str], None], **__: Any) -> Result:
            on_output("out", "x\n")
            if "s:2" in model.active:
                return Result(status=["done", "interrupted"])
            model.update_jobs("s", [job(1, "running")])  # which makes its entry anew
            emit("eval/finished", eval=1, status="cancelled")
            emit("eval/accepted", eval=2, code="2")
            emit("eval/started", eval=2)
            return Result(status=["done", "running"])

    feed = BrokerFeed(model, SwitchingReader, 1.0)  # type: ignore[arg-type]
    feed.client = SwitchingReader()  # type: ignore[assignment]
    session.output_known = False
    asyncio.run(feed.load_earlier_output(session, first))
    assert printed(model) == ["[1] loop()", "-- cancelled", "[2] 2"]

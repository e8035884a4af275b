"""Evals over the real wire, against the long-lived broker."""

from __future__ import annotations

from pathlib import Path

from kit import Wire, wait_until


def test_the_value_of_the_last_expression_comes_back(wire: Wire) -> None:
    answer = wire.run("6*7")
    assert answer.value == "42"
    assert answer.status == ["done"]
    assert (answer["eval-id"], answer["state"]) == (1, "kept")


def test_state_persists_between_evals_and_clients(wire: Wire, broker) -> None:
    wire.run("x = 41")
    with broker.wire() as other:
        assert other.run("x + 1").value == "42"


def test_sessions_do_not_see_each_other(wire: Wire) -> None:
    wire.run("x = 10", session="a")
    wire.run("x = 20", session="b")
    assert (wire.run("x", session="a").value, wire.run("x", session="b").value) == ("10", "20")


def test_a_session_that_an_eval_opened_is_announced(wire: Wire) -> None:
    first = wire.run("1", session="fresh").messages[0]
    assert first["created"] is True
    assert first["name"] == "fresh"


def test_an_eval_without_a_session_is_ephemeral_and_says_so(wire: Wire) -> None:
    answer = wire.run("   ", session=None)
    assert [message.get("value") for message in answer.messages] == ["None", None]
    assert answer["ephemeral"] is True
    assert wire.ask("ls-sessions")["sessions"] == []


def test_output_is_streamed_while_the_code_runs(wire: Wire) -> None:
    request = wire.send("eval", code="print('first')\ninput()\nprint('second')", session="s", if_missing="create")
    seen = []
    for message in wire.messages(request):
        seen.append(message)
        if message.get("status") == ["need-input"]:
            break
    assert "".join(m.get("out", "") for m in seen) == "first\n"
    assert wire.ask("stdin", session="s", input="go\n")["delivered"] == ["s"]
    assert wire.answer(request).out == "second\n"


def test_stdout_stderr_and_subprocess_output_are_captured(wire: Wire) -> None:
    code = "import sys, subprocess\nprint('o')\nprint('e', file=sys.stderr)\nsubprocess.run('echo sub; echo sube >&2', shell=True)"
    answer = wire.run(code + "\nNone")
    assert answer.out == "o\nsub\n"
    assert answer.err == "e\nsube\n"


def test_an_exception_has_type_message_and_only_the_users_frames(wire: Wire) -> None:
    answer = wire.run("def f():\n    return 1/0\nf()", session="trace")
    assert answer.status == ["done", "error"]
    assert answer["ex"] == {"type": "ZeroDivisionError", "message": "division by zero"}
    assert [(frame["func"], frame["line"]) for frame in answer["stacktrace"]] == [("<module>", 3), ("f", 2)]
    assert "return 1/0" in answer["traceback"]
    assert "harness" not in answer["traceback"]


def test_input_given_before_it_is_asked_for_is_kept(wire: Wire) -> None:
    wire.run("1")
    assert wire.ask("stdin", session="s", input="early\n")["buffered"] == ["s"]
    assert wire.run("input()").value == "'early'"


def test_what_threads_print_after_an_eval_belongs_to_the_session(wire: Wire) -> None:
    wire.run(
        "import threading\ngo = threading.Event()\ndef f():\n    go.wait()\n    print('late')\nt = threading.Thread(target=f)\nt.start()"
    )
    answer = wire.run("go.set()\nt.join()\nprint('mine')")
    assert answer.out == "mine\n"
    assert answer["background-bytes"] == 5
    assert wire.ask("read", session="s", eval_id=0).out == "late\n"


def test_a_late_answer_is_awaited_and_read_by_another_client(wire: Wire, broker) -> None:
    answer = wire.run("print('began')\nx = input()\nx * 2", wait_ms=1)
    assert answer.status == ["done", "running"]
    with broker.wire() as other:
        reading = other.send("read", session="s", eval_id=answer["eval-id"], wait_ms=20_000)
        other.ask("stdin", session="s", input="ab\n")
        read = other.answer(reading)
    assert (read.out, read.value, read.status) == ("began\n", "'abab'", ["done"])


def test_an_interrupt_ends_a_busy_loop_and_keeps_the_state(wire: Wire) -> None:
    wire.run("x = 5")
    request = wire.send("eval", code="print('in', flush=True)\nwhile True: pass", session="s")
    assert next(wire.messages(request))["out"] == "in\n"
    assert wire.ask("interrupt", session="s")["interrupted"] == ["s"]
    answer = wire.answer(request)
    assert answer.status == ["done", "interrupted"]
    assert answer["state"] == "kept"
    assert wire.run("x").value == "5"


def test_an_interrupt_by_request_id_reaches_a_throw_away_eval(wire: Wire) -> None:
    request = wire.send("eval", code="print('in', flush=True)\nwhile True: pass")
    next(wire.messages(request))
    wire.ask("interrupt", request_id=request)
    assert wire.answer(request).status == ["done", "interrupted"]


def test_a_timeout_keeps_partial_output_and_the_state(wire: Wire) -> None:
    wire.run("x = 1")
    answer = wire.run("print('partial')\nwhile True: pass", timeout_ms=200)
    assert answer.out == "partial\n"
    assert answer.status == ["done", "error", "timeout"]
    assert (answer["state"], answer["max-eval-time-ms"]) == ("kept", 200)
    assert wire.run("x").value == "1"


def test_code_that_ignores_its_interrupt_is_killed_after_the_grace(wire: Wire) -> None:
    code = "import time\nprint('deaf', flush=True)\nwhile True:\n    try:\n        while True: time.sleep(0.01)\n    except KeyboardInterrupt: pass"
    before = wire.run("1")["epoch"]
    answer = wire.run(code, timeout_ms=200)
    assert answer.out == "deaf\n"
    assert answer.status == ["done", "error", "timeout"]
    assert (answer["state"], answer["epoch"]) == ("lost", before + 1)
    assert "ignored the interrupt" in answer["cause"]
    assert wire.run("1+1").value == "2"


def test_output_until_the_moment_of_the_kill_is_in_the_answer(wire: Wire, tmp_path: Path) -> None:
    code = f"""
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
fd, n = os.open({str(tmp_path / "printed")!r}, os.O_RDWR | os.O_CREAT), 0
while True:
    n += 1
    print(n, flush=True)
    os.pwrite(fd, b"%6d" % n, 0)
    time.sleep(0.0005)
"""
    answer = wire.run(code, timeout_ms=200)
    assert (answer.status, answer["state"]) == (["done", "error", "timeout"], "lost")
    printed = int((tmp_path / "printed").read_text())
    assert int(answer.out.split()[-1]) >= printed - 1  # one more may be printed while the kill is on its way


def test_evals_of_one_session_run_in_the_order_they_were_sent(wire: Wire) -> None:
    wire.run("seen = []")
    requests = [wire.send("eval", code=f"seen.append({n})", session="s") for n in range(15)]
    for request in requests:
        assert wire.answer(request).status == ["done"]
    assert wire.run("seen").value == str(list(range(15)))


def test_truncated_output_is_marked_counted_and_its_end_can_be_read(wire: Wire) -> None:
    answer = wire.run("print('x' * 1_200_000 + 'END')")
    assert answer.out.endswith("…[truncated]")
    assert answer["truncated"] is True
    assert answer["dropped-bytes"] == 200_004
    tail = wire.ask("read", session="s", eval_id=answer["eval-id"], offset=1_199_000)
    assert tail.out.endswith("END\n")


def test_info_tells_variables_without_running_the_users_code(wire: Wire) -> None:
    wire.run(
        "class Evil:\n    def __len__(self): print('ran'); return 1\n    __repr__ = __len__\nevil = Evil()\nx = [1, 2]"
    )
    info = wire.ask("info", session="s")["info"]
    names = {variable["name"]: variable for variable in info["variables"]}
    assert names["x"]["type"] == "list"
    assert names["evil"]["type"] == "Evil"
    assert wire.run("None").out == ""
    assert info["sandbox"] == "none"


def test_info_of_a_busy_session_answers_at_once(wire: Wire) -> None:
    request = wire.send("eval", code="print('in', flush=True)\ninput()", session="s", if_missing="create")
    wire.until(request, "need-input")
    info = wire.ask("info", session="s")["info"]
    assert (info["state"], info["variables"]) == ("busy", None)
    wire.ask("stdin", session="s", input="\n")
    assert wire.answer(request).status == ["done"]


def test_idempotency_never_runs_the_code_twice(wire: Wire) -> None:
    wire.run("n = 0")
    for _ in range(2):
        answer = wire.run("n += 1\nprint('ran')\nn", idempotency_key="k1")
        assert (answer.value, answer.out) == ("1", "ran\n")
    assert wire.run("n").value == "1"
    assert wire.run("n += 2", idempotency_key="k1").status == ["done", "error", "idempotency-conflict"]


def test_a_reset_forgets_everything_and_counts_the_epoch(wire: Wire) -> None:
    before = wire.run("x = 1")["epoch"]
    assert wire.ask("reset", session="s")["epoch"] == before + 1
    answer = wire.run("x")
    assert answer["ex"]["type"] == "NameError"
    assert (answer["epoch"], answer["state"]) == (before + 1, "kept")


def test_a_reset_in_the_middle_tells_the_running_and_the_queued_eval(wire: Wire) -> None:
    running = wire.send("eval", code="print('in', flush=True)\nwhile True: pass", session="s", if_missing="create")
    assert "created" in next(wire.messages(running))
    next(wire.messages(running))
    queued = wire.send("eval", code="1", session="s")
    wire.until(queued, "queued")
    wire.ask("reset", session="s")
    for request in (running, queued):
        answer = wire.answer(request)
        assert answer.status == ["done", "error", "session-reset"]
        assert answer["state"] == "lost"


def test_expect_epoch_refuses_instead_of_running_in_a_fresh_namespace(wire: Wire) -> None:
    before = wire.run("x = 1")["epoch"]
    wire.ask("reset", session="s")
    answer = wire.run("x", expect_epoch=before)
    assert answer.status == ["done", "error", "epoch-conflict"]
    assert answer["epoch"] == before + 1


def test_clear_bindings_keeps_the_process(wire: Wire) -> None:
    pid = wire.run("import os\nx = 1\nos.getpid()").value
    assert wire.ask("clear-bindings", session="s")["count"] >= 1
    assert wire.run("x")["ex"]["type"] == "NameError"
    assert wire.run("import os; os.getpid()").value == pid


def test_a_working_directory_that_is_not_there_leaves_nothing_half_made(wire: Wire) -> None:
    answer = wire.ask("new-session", name="nowhere", cwd="/does/not/exist")
    assert answer.status == ["done", "error", "invalid-request"]
    assert wire.ask("eval", code="1", session="nowhere").status == ["done", "error", "session-not-found"]


def test_close_frees_the_name_and_ends_the_running_eval(wire: Wire) -> None:
    request = wire.send("eval", code="print('in', flush=True)\nwhile True: pass", session="s", if_missing="create")
    assert next(message for message in wire.messages(request) if "out" in message)
    assert wire.ask("close", session="s").status == ["done", "session-closed"]
    assert wire.answer(request).status == ["done", "interrupted", "session-closed"]
    assert wire.run("1+1")["eval-id"] == 1


def test_jobs_lists_running_queued_and_finished_evals(wire: Wire) -> None:
    wire.run("1")
    running = wire.send("eval", code="input()", session="s")
    wire.until(running, "need-input")
    queued = wire.send("eval", code="2", session="s")
    wire.until(queued, "queued")
    jobs = wire.ask("jobs", session="s")["jobs"]
    assert [(job["eval-id"], job["state"]) for job in jobs] == [(1, "done"), (2, "running"), (3, "queued")]
    wire.ask("stdin", session="s", input="\n")
    assert wire.answer(queued).value == "2"
    wait_until(lambda: wire.ask("stats")["stats"]["slots"]["taken"] == 0, "slots come back")

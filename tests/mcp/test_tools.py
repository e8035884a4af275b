"""The tool sets over a scripted broker: what is asked of it, and what a model is told."""

from __future__ import annotations

from typing import Any

import pytest

from replctl.tools import Tools, toolset
from replctl.tools.render import error_result
from stub_broker import Send, send_done
from tools_kit import PICTURE, Start, call_tool, scripted_replies


def test_an_eval_says_what_the_model_asked_for(stub: Start) -> None:
    broker = stub(scripted_replies(eval={"value": "42"}))
    asked = {"code": "6*7", "session": "lab", "timeout": "2.5", "wait": 7, "runtime": "node"}
    call_tool(broker, "eval", asked, cwd="/tmp")
    result = broker.next_request()
    assert {
        "code": "6*7",
        "session": "lab",
        "if-missing": "create",
        "timeout-ms": 2500,
        "wait-ms": 7000,
        "runtime": "node",
        "cwd": "/tmp",
        "agent": "ada",
    }.items() <= result.items()
    assert "image/png" in result["mime"]


def test_an_ephemeral_eval_names_no_session(stub: Start) -> None:
    broker = stub(scripted_replies())
    call_tool(broker, "eval", {"code": "1", "ephemeral": True})
    assert "session" not in broker.next_request()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "either `code` or `file`"),
        ({"code": 5}, "code"),
        ({"code": "1", "sesion": "x"}, "unknown field `sesion`"),
        ({"code": "1", "wait": "soon"}, "wait"),
        ({"code": "1", "timeout": -1}, "timeout"),
        ({"code": "1", "wait": float("nan")}, "wait"),
    ],
)
def test_bad_arguments_are_an_answer_that_says_which(stub: Start, arguments: dict[str, Any], words: str) -> None:
    answer = call_tool(stub(scripted_replies()), "eval", arguments)
    assert answer.error
    assert words in answer.text
    assert answer.structured == {"status": "bad-arguments"}


def test_a_word_that_is_none_of_those_there_are_is_answered_with_them(stub: Start) -> None:
    text = call_tool(stub(scripted_replies()), "info", {"what": "vars"}).text
    assert "'vars' in `what`: checkpoints, complete, diff, jobs, lookup, session, stack, variables" in text


def test_a_time_without_end_is_a_long_time(stub: Start) -> None:
    broker = stub(scripted_replies())
    forever = float("inf")
    assert not call_tool(broker, "eval", {"code": "1", "timeout": forever, "wait": forever}).error
    result = broker.next_request()
    assert result["timeout-ms"] == result["wait-ms"] == 2**53


def test_null_is_the_same_as_absent(stub: Start) -> None:
    assert not call_tool(stub(scripted_replies()), "eval", {"code": "1", "wait": None, "session": None}).error


def test_an_unknown_tool_lists_those_there_are(stub: Start) -> None:
    answer = call_tool(stub(scripted_replies()), "evall", {})
    assert answer.error
    assert "eval, read" in answer.text


def test_the_result_comes_before_the_output(stub: Start) -> None:
    def script(_: dict[str, Any], say: Send) -> None:
        say(out="printed\n")
        say(err="warned\n")
        say(value="42", ns="__main__")
        send_done(say)

    answer = call_tool(stub(script), "eval", {"code": "x"})
    assert answer.text.splitlines()[:5] == ["42", "output:", "printed", "stderr:", "warned"]
    assert answer.structured["value"] == "42"
    assert answer.structured["out"] == "printed"


def test_everything_together_keeps_the_budget(stub: Start) -> None:
    def script(_: dict[str, Any], say: Send) -> None:
        say(out="o" * 30_000)
        say(err="e\n" * 30_000)
        send_done(say, value="v" * 9000)

    answer = call_tool(stub(script), "eval", {"code": "x"}, budget=3000)
    assert len(answer.text) < 3000 + 300
    assert "left out" in answer.text


def test_an_output_that_was_cut_at_its_source_has_its_end(stub: Start) -> None:
    def script(request: dict[str, Any], say: Send) -> None:
        if request["op"] == "eval":
            say(out="begin\n" + "x\n" * 1000 + "…[truncated]")
            send_done(say, **{"truncated": True, "dropped-bytes": 500_000})
        else:
            say(out="…\nthe last line\n")
            send_done(say, offset=502_006)

    broker = stub(script)
    answer = call_tool(broker, "eval", {"code": "x"})
    assert broker.next_request()["op"] == "eval"
    assert broker.next_request()["offset"] > 490_000
    assert answer.text.startswith("begin\n")
    assert "the last line" in answer.text
    assert (
        "…[the middle of 502020 bytes left out; page or search it: read(eval_id=1, offset=0 or grep=…)]…" in answer.text
    )


def test_a_value_that_was_never_made_whole_is_counted_as_such(stub: Start) -> None:
    end = {"value": "[1, 2, …[truncated]", "truncated": True, "dropped-bytes": 1}
    assert "[at least 1 bytes were not sent]" in call_tool(stub(scripted_replies(eval=end)), "eval", {"code": "x"}).text


def test_pictures_are_images_within_their_bounds(stub: Start) -> None:
    bundles = [{"image/png": PICTURE}, {"image/jpeg": PICTURE}, {"image/png": "A" * 5000}, {"image/png": PICTURE}]

    def script(_: dict[str, Any], say: Send) -> None:
        for bundle in bundles:
            say(mime=bundle)
        send_done(say, value="<Figure>", mime={"image/png": PICTURE}, **{"images-dropped": 2})

    broker = stub(script)
    answer = call_tool(broker, "eval", {"code": "fig"}, images=3, image_bytes=1000)
    assert [image.mime for image in answer.images] == ["image/png", "image/png", "image/jpeg"]
    assert answer.images[0].data == PICTURE
    assert "4 more picture(s)" in answer.text


def test_a_value_in_markdown_is_preferred(stub: Start) -> None:
    mime = {"text/markdown": "| a |\n|---|\n| 1 |"}
    answer = call_tool(stub(scripted_replies(eval={"value": "   a\n0  1", "mime": mime})), "eval", {"code": "df"})
    assert answer.text.startswith("| a |")


def test_what_was_over_a_bound_is_told_and_its_file_named(stub: Start) -> None:
    file = "application/vnd.replctl.file"

    def script(_: dict[str, Any], say: Send) -> None:
        for n in range(5):
            say(mime={file: f"/tmp/{n}.png", "text/plain": f"image/png of 9 bytes in /tmp/{n}.png"})
        shrunk = {"image/png": PICTURE, file: "/tmp/v.png", "text/plain": "shown as 9x9; the whole in /tmp/v.png"}
        send_done(say, value="<Image>", mime=shrunk)

    answer = call_tool(stub(script), "eval", {"code": "x"})
    assert answer.text.splitlines() == [
        "<Image>",
        "[picture: shown as 9x9; the whole in /tmp/v.png]",
        "[picture: image/png of 9 bytes in /tmp/0.png]",
        "[picture: image/png of 9 bytes in /tmp/1.png]",
        "[picture: and 3 more]",
    ]
    assert answer.structured["files"] == ["/tmp/v.png", *(f"/tmp/{n}.png" for n in range(5))]
    assert len(answer.images) == 1


def test_running_code_says_how_to_get_at_it(stub: Start) -> None:
    def script(_: dict[str, Any], say: Send) -> None:
        say(out="so far\n")
        send_done(say, **{"status": ["done", "running"], "eval-id": 7, "name": "lab", "state": None})

    answer = call_tool(stub(script), "eval", {"code": "long()", "session": "lab", "wait": 3})
    assert not answer.error
    assert answer.text.startswith("so far\n")
    assert "still running after 3 s as eval 7" in answer.text
    assert "wait for more: read(session='lab', eval_id=7, offset=7)]" in answer.text
    assert answer.structured["status"] == "running"


def test_queued_code_says_so_and_what_is_before_it(stub: Start) -> None:
    end = {"status": ["done", "running"], "eval-id": 7, "name": "lab", "state": None, "queue-position": 2}
    answer = call_tool(stub(scripted_replies(eval=end)), "eval", {"code": "1", "session": "lab", "wait": 1})
    assert answer.text.startswith("[eval 7 is queued, 2 before it; wait for more: read(session='lab', eval_id=7)]")
    assert "still running" not in answer.text


def test_a_cut_says_how_to_get_the_rest_also_of_one_line_and_of_a_value(stub: Start) -> None:
    more = "page or search it: read(session='lab', eval_id=7, offset=0 or grep=…)"

    def script(request: dict[str, Any], say: Send) -> None:
        if request["code"] == "line":
            say(out="y" * 3000)
        send_done(say, **{"eval-id": 7, "name": "lab", "value": "v" * 3000 if request["code"] == "value" else None})

    broker = stub(script)
    for code, way in (("line", more), ("value", "print a part of it")):
        assert call_tool(broker, "eval", {"code": code, "session": "lab"}).text.endswith(f"\n[truncated; {way}]")


def test_nothing_found_is_not_told_as_no_output(stub: Start) -> None:
    broker = stub(scripted_replies())
    found = call_tool(broker, "read", {"eval_id": 1, "grep": "x"}).text
    page = call_tool(broker, "read", {"eval_id": 1, "offset": 900}).text
    assert (found.splitlines()[0], page.splitlines()[0]) == (
        "[no line of its output contains 'x']",
        "[no output from byte 900 on]",
    )


def test_a_value_whose_repr_fails_is_not_told_as_no_value(stub: Start) -> None:
    answer = call_tool(stub(scripted_replies(eval={"repr-error": "RuntimeError"})), "eval", {"code": "x"})
    assert answer.text.startswith("[the value cannot be shown: its repr raised RuntimeError]")


def test_code_that_waits_for_input_is_told_at_once(stub: Start) -> None:
    def script(request: dict[str, Any], say: Send) -> None:
        if request["op"] == "eval":
            say(out="who? ")
            say(**{"status": ["need-input"], "eval-id": 3, "session": "u-1", "name": "lab"})

    answer = call_tool(stub(script), "eval", {"code": "input()", "session": "lab", "wait": 3600})
    assert answer.structured == {
        "status": "waiting-for-input",
        "session": "lab",
        "eval_id": 3,
        "out": "who? ",
        "offset": 5,
    }
    assert "stdin(session='lab', text=…)" in answer.text
    assert not answer.error


def test_lost_state_is_told_with_its_cause(stub: Start) -> None:
    end = {
        "status": ["done", "error", "worker-lost"],
        "err": "worker lost: killed by SIGKILL",
        "state": "lost",
        "cause": "the interpreter was killed by SIGKILL (signal 9)",
        "epoch": 2,
    }
    answer = call_tool(stub(scripted_replies(eval=end)), "eval", {"code": "x"})
    assert answer.error
    assert answer.structured["state"] == "lost"
    assert "state lost: the interpreter was killed by SIGKILL (signal 9)" in answer.text
    assert "epoch 2" in answer.text


def test_a_refusal_has_word_hint_and_when_to_try_again(stub: Start) -> None:
    end = {"status": ["done", "error", "concurrency-limit-reached"], "err": "Too many", "retry-after-ms": 1500}
    answer = call_tool(stub(scripted_replies(eval=end)), "eval", {"code": "x"})
    assert answer.error
    assert answer.text == "concurrency-limit-reached: Too many\n[try again in 1.5 s]"
    assert answer.structured == {"status": "concurrency-limit-reached", "error": "Too many", "retry_after_ms": 1500}


def test_a_page_is_whole_and_says_where_the_next_begins(stub: Start) -> None:
    def script(_: dict[str, Any], say: Send) -> None:
        say(out="y" * 2000)
        send_done(say, **{"eval-id": 5, "name": "lab"}, offset=2000, truncated=True)

    broker = stub(script)
    answer = call_tool(broker, "read", {"eval_id": 5, "session": "lab", "offset": 0}, budget=2000, line=100)
    assert broker.next_request()["max-bytes"] == 2000
    assert "y" * 2000 in answer.text
    assert answer.text.endswith("[more: read(session='lab', eval_id=5, offset=2000)]")


def test_a_search_is_handed_to_the_broker(stub: Start) -> None:
    broker = stub(scripted_replies())
    call_tool(broker, "read", {"eval_id": 5, "grep": "ERROR", "wait": 0})
    result = broker.next_request()
    assert result["grep"] == "ERROR"
    assert "max-bytes" not in result


def test_a_lookup_is_told(stub: Start) -> None:
    found = {
        "found": True,
        "name": "math.sin",
        "type": "function",
        "signature": "(x, /)",
        "doc": "Sine.",
        "file": "/x.py",
        "line": 3,
        "methods": ["one", "two"],
    }
    broker = stub(scripted_replies(lookup=found))
    answer = call_tool(broker, "info", {"what": "lookup", "name": "math.sin", "session": "lab"})
    assert {"op": "lookup", "symbol": "math.sin", "session": "lab"}.items() <= broker.next_request().items()
    assert answer.text.splitlines() == ["math.sin(x, /): function (/x.py:3)", "Sine.", "one", "two"]


def test_completions_are_listed_and_the_cursor_is_the_end_unless_said(stub: Start) -> None:
    broker = stub(scripted_replies(complete={"completions": [{"text": "sin", "type": "function"}]}))
    answer = call_tool(broker, "info", {"what": "complete", "code": "math.s"})
    assert broker.next_request()["pos"] == 6
    assert answer.text == "sin: function"


def test_stacks_of_running_code_are_shown(stub: Start) -> None:
    broker = stub(
        scripted_replies(
            stack={"threads": [{"name": "main", "frames": [{"func": "f", "file": "x.py", "line": 3}]}], "processes": []}
        )
    )
    assert "f x.py:3" in call_tool(broker, "info", {"what": "stack"}).text


def test_a_branch_says_what_it_does_not_have(stub: Start) -> None:
    reply = {"name": "try", "checkpoint": 4, "not-restored": ["threads were not copied: ticker"]}
    broker = stub(scripted_replies(branch=reply))
    answer = call_tool(broker, "sessions", {"action": "branch", "session": "lab", "to": "try"})
    assert {"op": "branch", "session": "lab", "name": "try"}.items() <= broker.next_request().items()
    assert answer.text.startswith("session try begins as a copy of lab")
    assert "[not copied: threads were not copied: ticker]" in answer.text
    assert (answer.structured["session"], answer.structured["checkpoint"]) == ("try", 4)


def test_a_clone_says_what_stayed_behind(stub: Start) -> None:
    reply = {
        "new-session": "u-2",
        "name": "try",
        "count": 3,
        "skipped": [{"name": "lock", "why": "cannot be copied"}],
    }
    broker = stub(scripted_replies(clone=reply))
    answer = call_tool(broker, "sessions", {"action": "clone", "session": "lab", "to": "try"})
    assert {"op": "clone", "session": "lab", "name": "try"}.items() <= broker.next_request().items()
    assert answer.text == "session try is a copy of lab: 3 names; not copied: lock (cannot be copied)"


def test_activating_an_environment_tells_that_the_variables_are_gone(stub: Start) -> None:
    broker = stub(scripted_replies(env={"environment": "/p/.venv", "epoch": 4}))
    answer = call_tool(broker, "env", {"action": "activate", "path": "/p"})
    assert {"op": "env", "action": "activate", "path": "/p"}.items() <= broker.next_request().items()
    assert "/p/.venv" in answer.text
    assert "variables are lost" in answer.text


def test_adding_packages_is_followed_like_an_eval(stub: Start) -> None:
    def script(_: dict[str, Any], say: Send) -> None:
        say(out="Downloading 1%\rDownloading 100%\nInstalled x\n")
        send_done(say)

    broker = stub(script)
    answer = call_tool(broker, "env", {"action": "add", "packages": ["x"]})
    assert {"action": "add", "packages": ["x"]}.items() <= broker.next_request().items()
    assert "Downloading 100%\nInstalled x" in answer.text
    assert "progress bar updates folded: 1" in answer.text


@pytest.mark.parametrize(("reload", "op"), [(False, "load-file"), (True, "reload-file")])
def test_a_file_is_loaded(stub: Start, reload: bool, op: str) -> None:
    broker = stub(scripted_replies())
    call_tool(broker, "eval", {"file": "a.py", "reload": reload})
    assert {"op": op, "file": "a.py"}.items() <= broker.next_request().items()


@pytest.mark.parametrize("arguments", [{}, {"code": "1", "file": "a.py"}])
def test_an_eval_is_of_code_or_of_a_file(stub: Start, arguments: dict[str, Any]) -> None:
    answer = call_tool(stub(scripted_replies()), "eval", arguments)
    assert (answer.error, answer.text) == (True, "bad arguments: eval takes either `code` or `file`")


def test_an_eval_stops_what_runs_before_it_if_asked_to(stub: Start) -> None:
    broker = stub(scripted_replies(eval={"value": "2"}))
    call_tool(broker, "eval", {"code": "1+1", "session": "lab", "interrupt": True})
    assert {"op": "interrupt", "session": "lab", "all": True}.items() <= broker.next_request().items()
    assert broker.next_request()["op"] == "eval"


def test_an_answer_with_nothing_new_is_the_value_alone(stub: Start) -> None:
    assert call_tool(stub(scripted_replies(eval={"value": "42"})), "eval", {"code": "6*7"}).text == "42"
    assert call_tool(stub(scripted_replies()), "eval", {"code": "x = 1"}).text == "done"


def test_a_copy_without_a_name_is_asked_for_one(stub: Start) -> None:
    answer = call_tool(stub(scripted_replies()), "sessions", {"action": "clone", "session": "lab"})
    assert (answer.error, answer.text) == (True, "clone needs `to`, the name of the copy")


def test_a_session_that_must_be_named_is_asked_for(stub: Start) -> None:
    answer = call_tool(stub(scripted_replies()), "sessions", {"action": "close"})
    assert (answer.error, answer.text) == (True, "close needs `session`")


def test_the_only_tool_of_a_set_needs_no_name(stub: Start) -> None:
    with Tools("nexo", endpoint=stub(scripted_replies(ls_sessions={"sessions": []})).endpoint) as tools:
        assert tools.call({"action": "list"}).structured == {"sessions": [], "count": 0}
    with pytest.raises(ValueError, match="which tool"):
        toolset().call({"code": "1"})


def test_a_broker_that_goes_away_is_told(stub: Start) -> None:
    def script(_: dict[str, Any], __: Send) -> None:
        raise ConnectionAbortedError

    answer = call_tool(stub(script), "eval", {"code": "x"})
    assert answer.error
    assert answer.structured["status"] == "broker-lost"
    assert "the code may run on; the list of jobs shows what ran: look there before sending it again" in answer.text


def test_a_broker_that_cannot_be_had_is_an_answer() -> None:
    with toolset(endpoint="tcp://127.0.0.1:9") as tools:
        assert tools.call("eval", {"code": "1"}).structured["status"] == "no-broker"


def test_a_hint_of_the_wire_becomes_one_for_tools() -> None:
    from replctl.client.errors import error_from_reply as error_of
    from replwire.replies import Reply

    reply = Reply(
        id="1", status=["done", "error", "session-not-found"], err="Session not found: a", hint="send `if-missing`"
    )
    assert "if-missing" not in error_result(error_of(reply)).text


def test_reset_with_a_checkpoint_goes_back_and_says_what_was_undone(stub: Start) -> None:
    back = {"checkpoint": 3, "epoch": 2, "state": "rolled-back", "undone-evals": [4, 5], "not-restored": ["a thread"]}
    broker = stub(scripted_replies(rollback=back))
    answer = call_tool(broker, "reset", {"session": "s", "to": "last"})
    assert "back at checkpoint 3 (epoch 2); undone evals: 4, 5" in answer.text
    assert "[not restored: a thread]" in answer.text
    assert answer.structured["undone_evals"] == [4, 5]
    assert "to" not in broker.next_request()
    call_tool(broker, "reset", {"session": "s", "to": "clean"})
    assert broker.next_request()["to"] == "clean"


def test_a_crash_that_cost_one_eval_is_no_loss(stub: Start) -> None:
    crashed = {
        "status": ["done", "error", "worker-lost"],
        "err": "worker lost: killed by SIGABRT",
        "cause": "killed by SIGABRT",
        "state": "rolled-back",
        "checkpoint": 3,
        "undone-evals": [4],
        "eval-id": 4,
        "epoch": 2,
    }
    answer = call_tool(stub(scripted_replies(eval=crashed)), "eval", {"code": "1", "session": "s"})
    assert answer.structured["status"] == answer.structured["state"] == "rolled-back"
    assert "state rolled-back to checkpoint 3; undone evals: 4" in answer.text
    assert "state lost" not in answer.text


def test_checkpoints_are_listed_by_info(stub: Start) -> None:
    entry = {"checkpoint": 3, "checkpoint-name": "clean", "eval-id": 2, "created": "2026-11-23T04:00:00+00:00"}
    listed = {"checkpoints": [entry | {"current": True, "parent": None, "automatic": False, "memory-bytes": 5}]}
    broker = stub(scripted_replies(ls_checkpoints=listed))
    assert "3 (clean): after eval 2" in call_tool(broker, "info", {"what": "checkpoints"}).text

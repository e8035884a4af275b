"""`replctl attach` over a real broker: blocks that the runtime judges, busy sessions, leaving, completion."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replctl import Client
from replctl.commands.attach_prompt import status_line
from stub_broker import TIMEOUT_S
from test_attach import AttachTerminal

if TYPE_CHECKING:
    from conftest import Shell

Attach = Callable[[], AttachTerminal]


@pytest.fixture
def attach(live: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attach]:
    """Open a terminal on session `work`."""
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")
    monkeypatch.setenv("TERM", "xterm")
    opened: list[AttachTerminal] = []

    def attach() -> AttachTerminal:
        opened.append(AttachTerminal(live, f"ipc://{live.state}/run/broker.sock"))
        return opened[-1]

    yield attach
    for each in opened:
        each.process.kill()
        each.process.wait()
        os.close(each.ours)
    live.run("close", "work")


def jobs(live: Shell) -> Any:
    return json.loads(live.run("jobs", "work", "--json").stdout)["jobs"]


_BASH = (
    b"for i in 1 2; do\n  echo item $i\ndone\nf() {\n  echo from f\n}\nf\ncat <<end\nan\n\nempty line\nend\necho last\n"
)
_NODE = b"function g(x) {\n  return x * 2\n}\ng(\n  21\n)\n`a\nb`\n"


@pytest.mark.parametrize(
    ("runtime", "lines", "shown"),
    [("bash", _BASH, "item 1\nitem 2\nfrom f\nan\n\nempty line\nlast\n"), ("node", _NODE, "42\n'a\\nb'\n")],
)
def test_a_block_goes_on_until_the_runtime_takes_it(live: Shell, runtime: str, lines: bytes, shown: str) -> None:
    ran = live.run("attach", f"blocks-{runtime}", "--runtime", runtime, input=lines)
    assert (ran.returncode, ran.stdout, "SyntaxError" in ran.stderr) == (0, shown, False)


def test_a_block_that_ends_too_early_is_an_error_at_the_end(live: Shell) -> None:
    ran = live.run("attach", "early", "--runtime", "bash", input=b"if true; then\n  echo lost\n")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "unexpected end of file" in ran.stderr


def test_a_script_falls_into_its_blocks_and_a_leaving_word_ends_it(live: Shell) -> None:
    lines = b"x = input()\ntaken\nfor i in range(2):\n    print(i, x)\n\nexit()\nprint('never')\n"
    ran = live.run("attach", "piped", input=lines)
    assert (ran.returncode, ran.stdout) == (0, "0 taken\n1 taken\n")


def test_an_eval_has_the_limit_of_a_job_and_goes_on_without_its_terminal(live: Shell, attach: Attach) -> None:
    live.run("new", "work")
    first = attach()
    first.sees("work>")
    first.types("print('be' + 'gun', flush=True); line = input(); print('got ' + line); 'finis' + 'hed'\r")
    first.sees("begun")
    first.types("\x1c")
    first.sees("detached; the eval goes on in session 'work'")
    assert first.process.wait(TIMEOUT_S) == 0
    [job] = jobs(live)
    assert job["state"] == "running"
    events = map(json.loads, live.run("export", "work", "--format", "jsonl").stdout.splitlines())
    limits = json.loads(live.run("info", "work", "--json").stdout)["info"]["limits"]
    assert [each["limit-ms"] for each in events if each.get("type") == "eval/accepted"] == [limits["max-job-time-ms"]]

    again = attach()
    again.sees("eval 1 of cli is running: print(")
    again.sees("begun")
    live.run("stdin", "work", "back")
    again.sees("got back")
    again.sees("'finished'")
    again.sees("work>")
    again.types("exit()\r")
    again.sees("session 'work' keeps running with its variables")
    assert again.process.wait(TIMEOUT_S) == 0


def test_ctrl_c_interrupts_an_eval_that_somebody_else_has_sent(live: Shell, attach: Attach) -> None:
    live.run("eval", "-s", "work", "--agent", "ada", "--wait", "0", "while True: pass")
    terminal = attach()
    terminal.sees("eval 1 of ada is running: while True: pass")
    terminal.sees("leaves it running")
    terminal.types("\x03")
    terminal.sees("interrupted, state kept")
    terminal.sees("work>")


def test_names_are_completed_by_the_session_as_they_are_typed(live: Shell, attach: Attach) -> None:
    live.run("eval", "-s", "work", "remarkable_name = 1")
    terminal = attach()
    terminal.sees("work>")
    terminal.types("remark")
    terminal.sees("remarkable_name")
    terminal.types("\t")
    terminal.sees("able_name")  # the rest of the name in the line, or its row of the menu chosen
    terminal.types(" + 41\r")
    terminal.sees("42")
    terminal.types("/va")
    terminal.sees("/vars")
    terminal.types("\x03")
    terminal.sees("work>")


def test_the_bottom_line_says_where_the_session_stands(live: Shell) -> None:
    live.run("eval", "-s", "line", "1")
    live.run("mode", "line", "plan")
    with Client(f"ipc://{live.state}/run/broker.sock", start=False) as client:
        parts = status_line(client, "line").split("  ")
        assert status_line(client, "nobody") == ""
    assert parts[:5] == ["line", "python", os.getcwd(), "idle", "eval 1, epoch 1"]
    assert (parts[5].endswith(" MiB"), parts[6]) == (True, "plan mode")


def test_a_question_mark_shows_signature_docs_and_source(live: Shell) -> None:
    lines = b'def area(width, height=2):\n    """The area."""\n    return width * height\n\narea?\narea??\n?nothing\n'
    ran = live.run("attach", "asking", input=lines)
    head = "area(width, height=2): function"
    assert ran.stdout.count(head) == ran.stdout.count("The area.\n") == 2
    assert ran.stdout.count("    return width * height") == 1
    assert "name 'nothing' is not defined in session 'asking'" in ran.stderr
    assert len(json.loads(live.run("history", "asking", "--json").stdout)["history"]) == 1


def test_shell_commands_run_in_the_session_and_show_their_status(live: Shell) -> None:
    ran = live.run("attach", "shelling", input=b"!echo from $((40 + 2)); exit 3\n!echo 'a  b'\n")
    assert (ran.returncode, ran.stdout) == (0, "from 42\n3\na  b\n")
    assert live.run("vars", "shelling").stdout == ""


def test_time_shows_how_long_the_code_took(live: Shell) -> None:
    ran = live.run("attach", "timing", input=b"%time 6 * 7\n")
    assert ran.stdout == "42\n"
    assert re.search(r"^replctl: took \d+ ms$", ran.stderr, re.M)


def test_load_puts_a_file_into_the_prompt(live: Shell, attach: Attach, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("loaded = 41\nprint('lo' + 'aded', loaded)\n")
    terminal = attach()
    terminal.sees("work>")
    terminal.types(f"%load {file}\r")
    terminal.sees("'aded'")
    terminal.types("\r")
    terminal.sees("loaded 41")
    terminal.sees("work>")
    assert live.run("attach", "piped-load", input=f"%load {file}\nloaded + 1\n".encode()).stdout == "loaded 41\n42\n"
    missing = live.run("attach", "piped-load", input=b"%load /nowhere/at.all\n")
    assert "cannot read /nowhere/at.all" in missing.stderr


def test_an_eval_of_somebody_else_is_shown_above_the_prompt(live: Shell, attach: Attach) -> None:
    terminal = attach()
    terminal.sees("work>")
    terminal.types("'mi' + 'ne'\r")
    terminal.sees("'mine'")
    terminal.sees("work>")
    with Client(f"ipc://{live.state}/run/broker.sock", "ada", start=False) as client:
        deadline = time.monotonic() + TIMEOUT_S
        while "[ada, eval" not in terminal.shown:  # the first may come before the prompt follows events
            assert time.monotonic() < deadline
            client.eval("print('he' + 'llo'); 40 + 2", "work")
            terminal.reads(0.2)
    terminal.sees("print('he' + 'llo'); 40 + 2")
    terminal.sees("hello")
    terminal.sees("42")
    assert "[cli, eval 1]" not in terminal.shown

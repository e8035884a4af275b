"""`replctl attach` on a terminal: a pty, a real prompt, a scripted broker."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from replctl import Client
from stub_broker import TIMEOUT_S, Script, Send, StubBroker, send_done

if TYPE_CHECKING:
    from conftest import Shell

Start = Callable[[Script], StubBroker]


class AttachTerminal:
    """The far side of a pty: a person who types and reads."""

    def __init__(self, shell: Shell, endpoint: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process: subprocess.Popen[bytes] = shell.start(
            "attach",
            "work",
            "--endpoint",
            endpoint,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_controlling,
        )
        os.close(theirs)
        self._seen = self.shown = ""
        self.endpoint = endpoint

    def sees(self, text: str) -> None:
        """Wait until this was shown, after what was seen before."""
        while text not in self._seen:
            assert self.reads(TIMEOUT_S), f"never shown: {text!r}; shown was {self._seen!r}"
        self._seen = self._seen.partition(text)[2]

    def reads(self, seconds: float) -> bool:
        """Take what is shown next, and return whether anything was within this time."""
        ready, _, _ = select.select([self.ours], [], [], seconds)
        more = os.read(self.ours, 65536).decode() if ready else ""
        self._seen, self.shown = self._seen + more, self.shown + more
        return bool(ready)

    def types(self, text: str) -> None:
        os.write(self.ours, text.encode())


def _controlling() -> None:
    """Make the pty the controlling terminal, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def session(request: dict[str, Any], say: Send, waiting: list[Send]) -> None:
    """A session whose code is a word: `ask` waits for input, `loop` runs until it is interrupted."""
    if request["op"] == "stdin":
        say(status=["done"])
        send_done(waiting.pop(), value=repr(request["input"]))
    elif request["op"] == "interrupt":
        send_done(waiting.pop(), status=["done", "interrupted"])
    elif request["op"] != "eval":
        say(status=["done"], session="u-1", name="work", epoch=2, created=True, jobs=[], info={"runtime": "python"})
    elif request["code"] in ("ask", "loop"):
        waiting.append(say)
        say(out=f"{request['code']}ing\n", **({"status": ["need-input"]} if request["code"] == "ask" else {}))
    else:
        send_done(say, value=f"<{json.dumps(request['code'])}>")


@pytest.fixture
def terminal(stub: Start, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttachTerminal]:
    """A prompt on session `work`."""
    monkeypatch.setenv("PROMPT_TOOLKIT_NO_CPR", "1")  # nobody here answers where the cursor is
    monkeypatch.setenv("TERM", "xterm")
    waiting: list[Send] = []
    at = AttachTerminal(shell, stub(lambda request, say: session(request, say, waiting)).endpoint)
    at.sees("work>")
    yield at
    at.process.kill()
    at.process.wait()
    os.close(at.ours)


def test_a_line_runs_and_its_value_is_shown(terminal: AttachTerminal) -> None:
    terminal.types("6*7\r")
    terminal.sees('<"6*7">')
    terminal.sees("work>")


def test_a_block_runs_after_its_empty_line(terminal: AttachTerminal) -> None:
    terminal.types("def f():\r")
    terminal.sees("....")
    terminal.types("return 1\r")
    terminal.sees("....")
    terminal.types("\r")
    terminal.sees('<"def f():\\n    return 1\\n')


def test_ctrl_c_interrupts_the_code_and_not_the_prompt(terminal: AttachTerminal) -> None:
    terminal.types("loop\r")
    terminal.sees("looping")
    terminal.types("\x03")
    terminal.sees("interrupted, state kept")
    terminal.sees("work>")


def test_ctrl_c_at_the_prompt_clears_the_line(terminal: AttachTerminal) -> None:
    terminal.types("wrong")
    terminal.sees("wrong")
    terminal.types("\x03")
    terminal.sees("work>")
    terminal.types("right\r")
    terminal.sees('<"right">')


def test_input_in_the_code_reads_a_line_of_the_terminal(terminal: AttachTerminal) -> None:
    terminal.types("ask\r")
    terminal.sees("asking")
    terminal.types("yes\n")
    terminal.sees(r"'yes\n'")


def test_ctrl_c_ends_input_that_the_code_waits_for(terminal: AttachTerminal) -> None:
    terminal.types("ask\r")
    terminal.sees("asking")
    terminal.types("\x03")
    terminal.sees("interrupted, state kept")


def test_input_that_somebody_else_gave_needs_no_line_here(terminal: AttachTerminal) -> None:
    terminal.types("ask\r")
    terminal.sees("asking")
    with Client(terminal.endpoint) as other:
        other.stdin("work", "theirs")
    terminal.sees("'theirs'")
    terminal.sees("work>")


def test_slash_commands_act_on_the_session(terminal: AttachTerminal) -> None:
    for command, shown in (
        ("/reset", "epoch 2"),
        ("/info", "python"),
        ("/jobs", "no evals"),
        ("/help", "/quit"),
        ("/nope", "unknown command /nope"),
    ):
        terminal.types(command + "\r")
        terminal.sees(shown)
        terminal.sees("work>")


@pytest.mark.parametrize("leave", ["\x04", "/quit\r"])
def test_leaving_says_that_the_session_lives_on_and_keeps_the_history_private(
    terminal: AttachTerminal, short: Path, leave: str
) -> None:
    terminal.types("secret\r")
    terminal.sees('<"secret">')
    terminal.sees("work>")
    terminal.types(leave)
    terminal.sees("session 'work' keeps running")
    assert terminal.process.wait(TIMEOUT_S) == 0
    assert "secret" in (short / "history").read_text()
    assert (short / "history").stat().st_mode & 0o777 == 0o600


def test_the_driver_is_usable_where_prompt_toolkit_is_not_loaded() -> None:
    code = "import sys, replctl.commands.attach; sys.exit('prompt_toolkit' in sys.modules)"
    paths = os.pathsep.join(sys.path)
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": paths}, check=False).returncode == 0

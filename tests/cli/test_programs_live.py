"""Scripts with arguments, exit statuses and piped input, through the installed command and a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stub_broker import TIMEOUT_S, command_environment

if TYPE_CHECKING:
    from conftest import Shell

_PYTHON = "import sys\nprint(sys.argv)\nlast = input()\nprint('got', last)\nsys.exit(int(sys.argv[1]))\n"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a script per runtime, and some that end badly."""
    directory = tmp_path_factory.mktemp("scripts")
    for name, text in {
        "s.py": _PYTHON,
        "s.sh": 'read x; echo "$# $1 $2 $x"; exit 5\n',
        "s.js": "console.log(process.argv.slice(2)); process.exit(6)\n",
        "words.py": "import sys\nsys.exit('no luck')\n",
        "raises.py": "from __future__ import annotations\n1/0\n",
        "plain.py": "x = 1\nx\n",
    }.items():
        (directory / name).write_text(text)
    return directory


def test_a_script_has_its_arguments_its_input_and_its_exit_code(live: Shell, scripts: Path) -> None:
    ran = live.run("run", "-s", "py", f"{scripts}/s.py", "3", "-s", "--x y", input=b"one\ntwo\n")
    assert (ran.returncode, ran.stdout) == (3, f"{[f'{scripts}/s.py', '3', '-s', '--x y']}\ngot one\n")
    assert "SystemExit" not in ran.stderr
    assert live.run("eval", "-s", "py", "last").stdout == "'one'\n"
    assert live.run("history", "py").stdout.count("\n# ") == 1  # what sets the arguments is in no history


def test_each_runtime_finds_its_arguments(live: Shell, scripts: Path) -> None:
    ran = live.run("run", "-s", "sh", f"{scripts}/s.sh", "one", "two words", input=b"piped\n")
    assert (ran.returncode, ran.stdout) == (5, "2 one two words piped\n")
    ran = live.run("run", "--ephemeral", f"{scripts}/s.js", "q")
    assert (ran.returncode, ran.stdout) == (6, "[ 'q' ]\n")
    assert len(json.loads(live.run("ls", "--runtime", "node", "--json").stdout)["sessions"]) == 0


def test_a_script_prints_no_value_and_ends_as_a_program_does(live: Shell, scripts: Path) -> None:
    ran = live.run("run", f"{scripts}/plain.py")
    assert (ran.returncode, ran.stdout) == (0, "")
    ran = live.run("run", f"{scripts}/words.py")
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", "no luck\n")
    ran = live.run("run", f"{scripts}/raises.py")
    assert (ran.returncode, ran.stderr.rstrip().endswith("ZeroDivisionError: division by zero")) == (1, True)
    assert json.loads(live.run("run", "--json", f"{scripts}/words.py").stdout)["exit"] == 1


def test_a_script_of_another_runtime_is_refused(live: Shell, scripts: Path) -> None:
    live.run("new", "other")
    ran = live.run("run", "-s", "other", f"{scripts}/s.sh")
    assert (ran.returncode, "is for bash, and the session runs python" in ran.stderr) == (2, True)
    ran = live.run("run", f"{scripts}/none.py")
    assert (ran.returncode, "No such file" in ran.stderr) == (2, True)


def test_a_script_may_run_for_the_time_of_a_job(live: Shell, scripts: Path) -> None:
    live.run("run", "-s", "limit", f"{scripts}/plain.py")
    limits = json.loads(live.run("info", "limit", "--json").stdout)["info"]["limits"]
    [started] = [
        each["limit-ms"]
        for each in map(json.loads, live.run("export", "limit", "--format", "jsonl").stdout.splitlines())
        if each.get("type") == "eval/accepted" and each.get("code", "").startswith("x = 1")
    ]
    assert started == limits["max-job-time-ms"]


def test_eval_of_a_file_takes_arguments(live: Shell, scripts: Path) -> None:
    (scripts / "argv.py").write_text("import sys; sys.argv[1:]\n")
    assert live.run("eval", "-f", f"{scripts}/argv.py", "a", "b c").stdout == "['a', 'b c']\n"
    for wrong in (("eval", "1", "2"), ("eval",), ("eval", "--ephemeral", "-f", f"{scripts}/argv.py", "a")):
        assert live.run(*wrong).returncode == 2


def test_a_status_is_the_exit_code_only_if_wanted(live: Shell) -> None:
    live.run("new", "status", "--runtime", "bash")
    assert live.run("eval", "-s", "status", "grep -q x /dev/null").returncode == 0
    ran = live.run("eval", "-s", "status", "--fail", "(exit 7)")
    assert (ran.returncode, ran.stderr) == (7, "replctl: exit status 7\n")
    assert live.run("eval", "-s", "status", "--fail", "true").returncode == 0
    assert json.loads(live.run("eval", "-s", "status", "--fail", "--json", "(exit 7)").stdout)["exit"] == 7
    assert live.run("eval", "--fail", "import sys; sys.exit(9)").returncode == 9
    assert live.run("eval", "--fail", "1/0").returncode == 1


def test_a_pipe_answers_line_by_line_and_keeps_the_rest(live: Shell) -> None:
    command = f'{sys.executable} -m replctl eval -s pipe "input() + input()"; cat'
    ran = subprocess.run(
        ["/bin/sh", "-c", command],
        input="é\ntwo\nleft\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=command_environment(live.state),
        check=False,
    )
    assert ran.stdout == "'étwo'\nleft\n"


def test_a_pipe_that_ends_too_early_leaves_the_answer_to_others(live: Shell) -> None:
    process = live.start("eval", "-s", "early", "input() + input()", stdin=subprocess.PIPE)
    out, err = b"", b""
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"one\n")
    process.stdin.close()
    process.stdin = None
    while b"replctl stdin early" not in err:
        err += process.stderr.readline()
    live.run("stdin", "early", "two")
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (0, b"'onetwo'\n")

"""Robustness against code that damages its shell: the session survives, or ends with the true cause, and never hangs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from replworker.runtimes.codec import ProtocolError

EXIT = "`exit` ends the eval, not the session"
ERREXIT = "`set -e` ended the eval at the first command that failed, not the session"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("exit", "0"),
        ("false; exit", "1"),
        ("exit 3", "3"),
        ("exit 08", "8"),
        ("exit -1", "255"),
        ("exit 256", "0"),
        ("f() { echo in; exit 4; }; f", "4"),
        ("for i in 1 2; do while :; do exit 5; done; done", "5"),
        ("eval 'exit 6'", "6"),
        ("exit x", "2"),
        ("trap 'exit 9' USR1; kill -USR1 $$; sleep 1", "9"),
        ("{ exit 3; } >/dev/null 2>&1", "3"),
    ],
)
def test_exit_ends_the_eval_and_not_the_session(bash: Any, code: str, value: str) -> None:
    bash.value("x=kept")
    answer = bash.eval(f"{code}\necho never")
    assert (answer["outcome"], answer["value"], answer["hint"]) == ("ok", value, EXIT)
    assert "never" not in bash.stdout.decode()
    assert bash.out("echo $? $x") == f"{value} kept\n"


def test_exit_in_a_sourced_file_ends_the_eval(bash: Any, tmp_path: Path) -> None:
    (tmp_path / "lib.sh").write_text("y=1\nexit 3\n")
    answer = bash.eval(f". {tmp_path}/lib.sh; echo never")
    assert (answer["value"], answer["hint"], answer["changed"]) == ("3", EXIT, ["y"])


@pytest.mark.parametrize(
    "code", ["(exit 3)", "exit 3 | exit 3", "x=$(exit 3)", "bash -c 'exit 3'", "( f() { exit 3; }; f )"]
)
def test_exit_in_a_subshell_is_the_real_one(bash: Any, code: str) -> None:
    answer = bash.eval(f"{code}; echo $?")
    assert (bash.stdout.decode(), answer["hint"]) == ("3\n", None)


def test_a_real_exit_ends_the_session_with_its_code(bash: Any) -> None:
    bash.start_eval("builtin exit 7")
    assert bash.exit_text() == "the interpreter exited with code 7"


def test_exec_of_a_program_ends_the_session_with_its_code(bash: Any) -> None:
    bash.start_eval("exec bash -c 'echo other; exit 5'")
    assert bash.exit_text() == "the interpreter exited with code 5"
    assert bash.stdout.decode() == "other\n"
    assert bash.frames == []


def test_exec_of_nothing_ends_nothing(bash: Any) -> None:
    assert bash.out("exec /no/such/program; echo $?") == "127\n"


def test_a_kill_ends_the_session_with_its_signal(bash: Any) -> None:
    bash.start_eval("kill -KILL $$")
    assert bash.exit_text() == "the interpreter was killed by SIGKILL (signal 9)"


def test_the_session_ends_when_the_worker_hangs_up(bash: Any) -> None:
    bash.value("trap 'echo bye >&2' EXIT")
    bash.child.control.shutdown(1)
    assert bash.exit_text() == "the interpreter exited with code 0"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("false", "1"),
        ("(exit 3)", "3"),
        ("f() { nosuch || true; false; }; f", "1"),
        ("x=$(false)", "1"),
        ("true | false", "1"),
    ],
)
def test_under_errexit_a_failure_ends_the_eval(bash: Any, code: str, value: str) -> None:
    answer = bash.eval(f"set -e; y=1; {code}; echo never")
    assert (answer["outcome"], answer["value"], answer["hint"], "y" in answer["changed"]) == (
        "ok",
        value,
        ERREXIT,
        True,
    )
    assert bash.out("echo $? ${-//[^e]}") == f"{value} e\n"
    assert bash.eval(f"{code}; echo never")["hint"] == ERREXIT
    assert bash.out("set +e; false; echo on") == "on\n"
    assert "never" not in bash.stdout.decode()


def test_errexit_spares_what_it_spares_in_any_script(bash: Any) -> None:
    answer = bash.eval("set -euo pipefail; false || true; if false; then :; fi; ! true; false && true; echo end")
    assert (answer["value"], answer["hint"]) == ("0", None)
    assert bash.out("(set +e; false; echo sub)") == "sub\n"
    assert bash.eval("while false; do :; done; [[ a == b ]] || x=1")["value"] == "0"


def test_an_err_trap_of_the_user_lives_with_errexit(bash: Any) -> None:
    bash.value("trap 'echo \"failed $?\"' ERR; set -E")
    assert bash.out("(exit 3); echo on") == "failed 3\non\n"
    answer = bash.eval("set -e; (exit 4); echo never")
    assert (answer["value"], answer["hint"]) == ("4", ERREXIT)
    assert bash.stdout.decode().endswith("failed 4\n")
    bash.value("trap - ERR")
    assert bash.eval("false")["hint"] == ERREXIT


def test_errexit_with_a_new_err_trap_ends_the_session_with_its_status(bash: Any) -> None:
    bash.start_eval("set -e; trap 'echo mine' ERR; (exit 6); echo never")
    assert bash.exit_text() == "the interpreter exited with code 6"


@pytest.mark.parametrize(
    "code",
    [
        "set -u; echo $nosuch",
        "echo ${nosuch:?told}",
        "echo $((1 / 0))",
        "readonly r=1; r=2",
        "declare -i z='1 +'",
        "set -o posix; export 1=2",
        "set -o posix; shift 99",
        "f() { f; }; FUNCNEST=50; f",
        "x=${!}; y=${!x}",
        "printf '%d' abc",
        "cd /no/such",
        ". /no/such/file",
        "set -o posix; . /no/such/file",
        "kill -NOSUCH 1",
        "shopt -s failglob; echo /no*such*",
        "set -o nosuch",
        "local a",
        "break 3",
        "return 2>/dev/null",
        "unset UID",
        "exec 300>/no/such/x",
        "exec nosuchcommand",
    ],
)
def test_errors_of_the_shell_end_no_session(bash: Any, code: str) -> None:
    bash.value("x=kept")
    assert bash.eval(code)["outcome"] == "ok"
    assert bash.out("set +u +o posix; shopt -u failglob; echo on") == "on\n"


@pytest.mark.parametrize(
    "code",
    [
        "set -n",
        "set -n; echo shown; set +n",
        "set -u",
        "set -f",
        "set -C",
        "set -a",
        "set -k",
        "set -b",
        "set -h",
        "set -o posix",
        "set -T",
        "set -E",
        "set +E",
        "set -B",
        "set -P",
        "set -H",
        "set -o history",
        "set -m",
        "set +m",
        "IFS=",
        "IFS=0123456789",
        "IFS=abcdeflrst",
        "readonly IFS=x",
        "LC_ALL=C",
        "LC_ALL=xx",
        "export LC_ALL=POSIX",
        "LANG=",
        "shopt -s nullglob extglob failglob",
        "shopt -s nocasematch nocaseglob dotglob globstar",
        "shopt -s localvar_inherit",
        "shopt -s lastpipe",
        "shopt -s xpg_echo",
        "shopt -s checkwinsize",
        "shopt -u expand_aliases sourcepath",
        "shopt -s inherit_errexit",
        "shopt -s compat42",
        "shopt -s varredir_close",
        "shopt -s huponexit",
        "shopt -u execfail",
        "PATH=",
        "unset PATH HOME",
        "HISTFILE=/tmp/none",
        "PS1='$(echo prompt)'",
        "PS4='$(echo trace) '",
        "TMOUT=1",
        "trap 'echo dbg >/dev/null' DEBUG",
        "trap 'false' DEBUG",
        "trap 'true' RETURN; set -T",
        "trap 'false' ERR",
        "trap '' INT; trap - INT",
        "trap '' CHLD",
        "trap 'x=1' CHLD",
        "trap '' PIPE",
        "trap '' URG",
        "trap - URG",
        "trap - ERR",
        "trap 'echo' EXIT",
        "BASH_ENV=/no/such",
        "ENV=/no/such",
        "POSIXLY_CORRECT=1",
        "SHLVL=0",
        "LINENO=5",
        "unset BASHPID BASH_ARGV0 LINENO RANDOM SECONDS EPOCHREALTIME",
        "FUNCNEST=3",
        "RANDOM=1",
        "BASH_COMPAT=4.2",
        "PROMPT_COMMAND=echo",
        "unset PROMPT_COMMAND",
        "declare -A __replctl_head",
        "umask 777; umask 022",
        "cd /; cd -P .",
        "exec <&-",
        "exec </dev/null",
        "exec 2>/dev/null",
        "ulimit -t 100",
        "set -- $(seq 1000)",
        "enable -n echo",
        "alias eval=false builtin=false command=false __replctl_next=false PROMPT_COMMAND=x",
        "printf() { return 1; }",
        "read() { return 1; }",
        "eval() { return 1; }",
        "builtin() { return 1; }",
        "command() { :; }",
        "unset() { :; }; builtin() { :; }; command() { :; }",
        "local() { :; }; declare() { :; }; mapfile() { :; }",
        "exec() { :; }; exit() { :; }; return() { :; }; shift() { :; }; set() { :; }",
        "trap() { :; }; kill() { :; }",
        "unset -f exit read command_not_found_handle",
        "__replctl_next() { :; }",
        "unset -f __replctl_next __replctl_done",
        "for v in $(compgen -v); do unset -v $v; done 2>/dev/null",
        "unset ${!__replctl_*}",
        "__replctl_running= __replctl_code=junk __replctl_token=z __replctl_turn=w __replctl_head=x __replctl_body=y",
        "complete -F nosuch echo; bind 2>/dev/null; hash -r; dirs -c; pushd /tmp >/dev/null",
    ],
)
def test_no_setting_confuses_the_session(bash: Any, code: str) -> None:
    assert bash.eval(code)["outcome"] == "ok"
    for _ in range(2):
        answer = bash.eval("kept='a b'")
        assert (answer["outcome"], answer["value"]) in {("ok", "0"), ("ok", "1")}
    assert bash.ask("vars", max=100)["t"] == "vars"
    assert bash.eval("[[ $kept == 'a b' ]]")["value"] == "0"
    assert bash.eval("fi")["ex"]["type"] == "SyntaxError"


def test_xtrace_shows_the_users_lines_alone(bash: Any) -> None:
    bash.value("set -x")
    assert bash.err("x=1\ntrue") == "+++ x=1\n+++ true\n".replace("+++", _prefix(bash))
    bash.value("set +x")
    assert bash.err("true") == ""


def _prefix(bash: Any) -> str:
    return str(bash.err(": sign").split()[0])


def test_a_debug_trap_sees_the_users_commands_alone(bash: Any) -> None:
    bash.value("trap 'echo \"D:$BASH_COMMAND\"' DEBUG")
    assert bash.out("x=1\necho $x") == "D:x=1\nD:echo $x\n1\n"
    bash.value("trap - DEBUG")
    assert bash.out("x=2") == ""


def test_a_debug_trap_that_skips_everything_ends_the_session(bash: Any) -> None:
    bash.start_eval("shopt -s extdebug; trap false DEBUG; echo never")
    assert bash.exit_text().startswith("the interpreter exited with code")
    assert b"never" not in bash.stdout


def test_an_exit_trap_runs_when_the_session_ends(bash: Any, tmp_path: Path) -> None:
    bash.value(f"trap 'echo bye $? >{tmp_path}/said' EXIT")
    bash.start_eval("builtin exit 3")
    assert bash.exit_text() == "the interpreter exited with code 3"
    assert (tmp_path / "said").read_text() == "bye 3\n"


def test_code_that_writes_to_the_control_channel_ends_its_own_session_at_worst(bash: Any) -> None:
    find = "for fd in /proc/$$/fd/*; do if [[ -S $fd ]]; then fd=${fd##*/}; break; fi; done; "
    bash.start_eval(find + "printf '\\0!result\\0.7\\0=\\0' >&$fd; :")
    with pytest.raises(ProtocolError):  # when its real result comes
        bash.until(lambda: False)


def test_closing_all_descriptors_ends_the_session_or_does_nothing(bash: Any) -> None:
    bash.start_eval("for fd in /proc/$$/fd/*; do fd=${fd##*/}; exec {fd}>&-; done 2>/dev/null; true")
    bash.settle()
    if bash.cause is None:
        bash.start_eval("echo ok")
        bash.settle()


def test_a_session_without_its_interpreter_group_is_gone(bash: Any) -> None:
    bash.start_eval("kill -KILL 0")
    assert "SIGKILL" in bash.exit_text()


def test_a_condition_that_is_not_closed_leaves_nothing_behind(bash: Any) -> None:
    for code in ("[[", "[[\nesac", "echo; [[ a =~"):
        assert bash.eval(code)["ex"]["type"] == "SyntaxError"
        assert bash.out("[[ a == a ]] && echo on") == "on\n"
    bash.value("eval '[[ a'")
    bash.eval("true")
    assert bash.out("[[ a == a ]] && echo on") == "on\n"


# --- no terminal ---


def test_pagers_and_editors_do_not_wait(bash: Any, tmp_path: Path) -> None:
    assert bash.out("echo $PAGER $GIT_PAGER $EDITOR $TERM $GIT_TERMINAL_PROMPT") == "cat cat false dumb 0\n"
    code = (
        f"cd {tmp_path} && git init -q . && git -c user.name=n -c user.email=e@x commit --allow-empty; echo status $?"
    )
    assert bash.out(code).endswith("status 1\n")
    assert (
        bash.value(f"cd {tmp_path}; git -c user.name=n -c user.email=e@x commit -q --allow-empty -m one; git log")
        == "0"
    )
    assert (
        bash.value("seq 100000 | ${PAGER} >/dev/null; seq 1000 | less >/dev/null; man man >/dev/null 2>&1; true") == "0"
    )


def test_what_the_environment_says_of_pagers_wins(start_bash: Any) -> None:
    session = start_bash(PAGER="more", EDITOR="ed")
    assert session.out("echo $PAGER $EDITOR") == "more ed\n"


def test_there_is_no_terminal_to_ask_on(bash: Any) -> None:
    assert bash.value("true </dev/tty") == "1"
    assert bash.value("read -r x </dev/tty") == "1"
    assert bash.value("python3 -c 'import os; os.open(\"/dev/tty\", os.O_RDWR)' 2>/dev/null") == "1"
    assert (
        bash.value("ssh -o StrictHostKeyChecking=ask -o ConnectTimeout=1 nobody@127.0.0.1 -p 1 true; true", stdin=False)
        == "0"
    )


def test_the_environment_of_the_test_is_not_the_sessions(bash: Any) -> None:
    assert bash.out("echo $HOME") == "/nowhere\n"
    assert os.environ["HOME"] != "/nowhere"

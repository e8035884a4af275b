"""Evals in a bash session: what persists, what the value is, what is said of errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_it_says_what_it_is(start_bash: Callable[..., Any]) -> None:
    ready = start_bash().ready
    assert (ready["runtime"], ready["implementation"]) == ("bash", "bash")
    assert ready["version"].startswith(("4.", "5."))
    assert ready["can"] == ["vars", "clear", "complete", "lookup", "dump", "restore"]


def test_an_assign_brings_directory_and_environment(start_bash: Callable[..., Any], tmp_path: Path) -> None:
    session = start_bash()
    assert session.assign(str(tmp_path), GREETING="hé\nllo $x `y` \"z'")["error"] is None
    assert session.out("pwd; printf '%s' \"$GREETING\"") == f"{tmp_path}\nhé\nllo $x `y` \"z'"
    assert session.out("bash -c 'echo $GREETING' | head -1") == "hé llo $x `y` \"z'\n"


def test_a_directory_that_is_not_there_is_told(start_bash: Callable[..., Any], tmp_path: Path) -> None:
    session = start_bash()
    assert session.assign(f"{tmp_path}/none")["error"] == f"{tmp_path}/none: No such file or directory"
    (tmp_path / "file").write_text("")
    assert session.assign(f"{tmp_path}/file")["error"] == f"{tmp_path}/file: Not a directory"
    assert session.out("echo well") == "well\n"


def test_names_that_bash_cannot_set_are_left_out_of_the_environment(start_bash: Callable[..., Any]) -> None:
    session = start_bash()
    answer = session.ask("assign", cwd=None, env={"A.B": "1", "UID": "7", "PROMPT_COMMAND": "x", "OK": "1"}, limits={})
    assert answer["error"] is None
    assert session.out("echo $OK") == "1\n"


def test_variables_functions_aliases_directory_options_and_traps_persist(bash: Any, tmp_path: Path) -> None:
    bash.value(f"x='a  b'; arr=(1 2 3); declare -A map=([k]=v); cd {tmp_path}; shopt -s nullglob; set -f; umask 027")
    bash.value(
        "greet() {\n  local who=$1\n  echo hi $who\n}\nalias hey='echo alias'\nexport OUT=there\ntrap 'echo usr' USR1"
    )
    assert bash.out('echo "$x" ${arr[2]} ${map[k]}; pwd; shopt nullglob; echo $-') == (
        f"a  b 3 v\n{tmp_path}\nnullglob       \ton\nfhiBEs\n"
    )
    assert bash.out("greet you; hey; bash -c 'echo $OUT'; kill -USR1 $$; umask") == "hi you\nalias\nthere\nusr\n0027\n"


def test_positional_parameters_persist(bash: Any) -> None:
    bash.value("set -- one 'two three'")
    assert bash.out('shift; echo "$1" $#') == "two three 1\n"


@pytest.mark.parametrize(
    ("code", "value"), [("true", "0"), ("false", "1"), ("(exit 7)", "7"), ("", "0"), ("# no", "0")]
)
def test_the_value_is_the_status(bash: Any, code: str, value: str) -> None:
    answer = bash.eval(code)
    assert (answer["outcome"], answer["value"], answer["type"]) == ("ok", value, "status")


def test_a_silent_eval_has_no_value(bash: Any) -> None:
    assert bash.eval("false", silent=True)["value"] is None


def test_the_next_eval_finds_the_status_of_the_last(bash: Any) -> None:
    bash.value("(exit 42)")
    assert bash.out("echo $?") == "42\n"
    assert bash.out("echo $?") == "0\n"
    bash.value("set -e; ! true")
    assert bash.out("echo $?; set +e") == "1\n"


def test_a_silent_command_answers_at_once(bash: Any) -> None:
    assert bash.eval("x=1")["value"] == "0"
    assert bytes(bash.stdout) == b""
    assert bytes(bash.stderr) == b""


def test_all_output_of_one_eval_comes_with_it(bash: Any) -> None:
    assert bash.out("echo 1; sleep 0.1; echo 2") == "1\n2\n"


def test_output_of_any_size_keeps_coming(bash: Any) -> None:
    for _ in range(3):
        assert len(bash.out("printf '%0300000d' 7")) == 300_000


def test_there_are_no_prompts(bash: Any) -> None:
    bash.value("PS1='prompt> '; PS2='more> '; PS4='trace '")
    bash.value("PS0='ps0'; echo done")
    bash.value("for i in 1 2\ndo\n:\ndone")
    assert (bytes(bash.stdout), bytes(bash.stderr)) == (b"done\n", b"")


def test_a_function_needs_no_blank_line_after_it(bash: Any) -> None:
    bash.value("f() {\n\n  echo in f\n}")
    assert bash.out("f") == "in f\n"


def test_binary_output_passes_untouched(bash: Any) -> None:
    bash.value(r"printf '\0\1\377\33[0m\200no newline'")
    assert bytes(bash.stdout) == b"\0\1\377\33[0m\200no newline"


def test_what_a_frame_looks_like_is_only_text_when_printed(bash: Any) -> None:
    bash.value(r"printf '\0!result\0.0\0=\0'; printf '\0!result\0.0\0=\0' >&2")
    assert bash.out("echo whole").endswith("whole\n")


def test_code_is_taken_as_it_is(bash: Any) -> None:
    assert bash.out("x='\\1 \x01\x7f é \t'; printf '%s' \"$x\"") == "\\1 \x01\x7f é \t"
    assert bash.out("cat <<'EOF'\n$x `y` \\\nEOF") == "$x `y` \\\n"


def test_long_code_is_taken_whole(bash: Any) -> None:
    assert bash.out("x='" + "é" * 200_000 + "'; echo ${#x}") == "200000\n"


def test_code_in_another_locale_is_taken_whole(bash: Any) -> None:
    bash.value("LC_ALL=C")
    assert bash.out("x='éé'; echo ${#x}; printf $x; LC_ALL=C.UTF-8; echo ${#x}") == "4\néé2\n"
    assert bash.out("x='éé'; echo ${#x}") == "2\n"


def test_code_with_nul_is_refused(bash: Any) -> None:
    answer = bash.eval("echo a\0b")
    assert (answer["outcome"], answer["ex"]["type"]) == ("error", "SyntaxError")
    assert bash.out("echo on") == "on\n"


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("echo never\necho 'open", 2, "unexpected EOF while looking for matching `''"),
        ('echo never; echo "open', 1, "unexpected EOF while looking for matching `\"'"),
        ("echo never\ncat <<EOF\ntext", 2, "here-document at line 2 delimited by end-of-file"),
        ("echo never\nfi", 2, "syntax error near unexpected token `fi'"),
        ("echo never\nif true; then\necho", None, "syntax error: unexpected end of file"),
        ("}; echo never; {", 1, "syntax error near unexpected token `}'"),
        ("}\necho never\n{", 1, "syntax error near unexpected token `}'"),
        ("echo never\n}\necho never\n{ :", 2, "syntax error near unexpected token `}'"),
        ("fi\necho never\nif :; then", 1, "syntax error near unexpected token `fi'"),
        ("else echo never", 1, "syntax error near unexpected token `else'"),
        ("echo never\necho $(", None, "unexpected"),
        ("echo never\necho `a", 2, "unexpected EOF"),
        ("echo never; )", 1, "syntax error near unexpected token `)'"),
        ("echo never\n;;", 2, "syntax error near unexpected token `;;'"),
        ("echo never\ndone", 2, "syntax error near unexpected token `done'"),
        ("echo never; ((1+", 1, ""),
        ("echo never\nx=(1", None, ""),
        ("echo never\\", None, ""),
        ("f() { echo never; }; f() {", None, "syntax error: unexpected end of file"),
    ],
)
def test_code_that_is_not_whole_is_a_syntax_error_and_nothing_runs(
    bash: Any, code: str, line: int | None, words: str
) -> None:
    bash.value("x=kept")
    answer = bash.eval(code)
    assert (answer["outcome"], answer["ex"]["type"], answer["value"]) == ("error", "SyntaxError", None)
    assert words in answer["traceback"]
    assert line is None or f"line {line}" in answer["traceback"]
    assert answer["traceback"].startswith(f"<work:{bash.number}>: ")
    assert bytes(bash.stdout) == b""
    assert bash.out("echo $x $?") == "kept 2\n"


@pytest.mark.parametrize(
    "code",
    [
        "cat <<'}'\n{\n}",
        "cat <<EOF\n}\nfi\nEOF",
        "case x in\nx) echo;; esac",
        "echo \\} fi \\\n done",
        "f() { :; }; f # }",
        "shopt -s extglob\n[[ ab == +(a|b) ]] && echo +(a|b)\nshopt -u extglob",
        "\n\n",
        "echo hi &",
        "echo $(case x in x) echo;; esac)",
        "function g { if :; then (echo); fi; }",
    ],
)
def test_code_that_is_whole_runs(bash: Any, code: str) -> None:
    assert bash.value(code) == "0"
    assert bytes(bash.stderr) == b""


def test_a_message_of_bash_says_eval_and_line(bash: Any) -> None:
    code = "true\nnosuchcommand"
    assert bash.eval(code)["value"] == "127"
    assert bash.stderr.decode() == f"<work:{bash.number}>: line 2: nosuchcommand: command not found\n"
    bash.stderr.clear()
    bash.value("nosuchcommand")
    assert bash.stderr.decode() == f"<work:{bash.number}>: line 1: nosuchcommand: command not found\n"
    bash.stderr.clear()
    bash.value("f() {\n  nosuchcommand\n}\nf")
    assert bash.stderr.decode() == "f: line 2: nosuchcommand: command not found\n"


def test_messages_of_builtins_say_the_eval(bash: Any) -> None:
    assert (
        bash.err("cd /no/such/directory")
        == f"<work:{bash.number}>: cd: /no/such/directory: No such file or directory\n"
    )


def test_local_and_return_outside_of_functions_are_as_bash_says(bash: Any) -> None:
    text = bash.err("local x=1; return 3")
    assert "local: can only be used in a function" in text
    assert "return: can only `return'" in text


def test_stdout_and_stderr_may_be_led_elsewhere_for_good(bash: Any, tmp_path: Path) -> None:
    bash.value(f"exec 7>&1 >{tmp_path}/out 2>&1; echo one; nosuchcommand")
    bash.value("echo two")
    assert (tmp_path / "out").read_text() == "one\n<work:3>: line 1: nosuchcommand: command not found\ntwo\n".replace(
        "<work:3>", f"<work:{bash.number - 1}>"
    )
    assert bytes(bash.stdout) == b""
    assert bash.out("exec >&7 7>&-; echo back") == "back\n"


def test_descriptors_that_the_user_opens_persist(bash: Any, tmp_path: Path) -> None:
    bash.value(f"exec 3>{tmp_path}/three 10>{tmp_path}/ten 200>{tmp_path}/lock; exec {{fd}}>{tmp_path}/named")
    bash.value("echo a >&3; echo b >&10; echo c >&200; echo d >&$fd")
    bash.value("exec 3>&- 10>&- 11>&- 12>&- 13>&- 14>&- 200>&- {fd}>&-")
    assert [(tmp_path / name).read_text() for name in ("three", "ten", "lock", "named")] == ["a\n", "b\n", "c\n", "d\n"]
    assert bash.out("echo on") == "on\n"


def test_commands_inherit_neither_control_nor_late_output(bash: Any) -> None:
    targets = bash.out("ls -l /proc/self/fd | grep -v /proc/").split()
    assert not [target for target in targets if target.startswith("socket:")]
    pipes = {target for target in targets if target.startswith("pipe:")}
    assert len(pipes) <= 3  # stdout, which is grep's, and stderr


def test_changed_names_are_told_beside_more_than_a_pipe_holds(bash: Any) -> None:
    assert bash.eval("big=$(printf '%0100000d' 1); a=1")["changed"] == ["a", "big"]
    assert bash.eval("a=2; f() { :; }")["changed"] == ["a", "f"]
    assert bash.eval("unset big; b=1")["changed"] == ["b"]
    assert bash.eval("a=3; echo out")["changed"] == ["a"]


def test_changed_names_are_told(bash: Any) -> None:
    assert bash.eval("b=1; a=(1 2); f() { :; }; cd /")["changed"] == ["a", "b", "f"]
    assert bash.eval("echo $b")["changed"] == []
    assert bash.eval("b=2; a[1]=9; PATH=$PATH:/x; b=2")["changed"] == ["PATH", "a", "b"]
    assert bash.eval("b=2")["changed"] == []
    assert len(bash.eval("for i in {1..300}; do declare v$i=1; done")["changed"]) == 100


def test_big_variables_do_no_harm(bash: Any) -> None:
    bash.value("big=$(printf '%09000000d' 1)")
    assert "x" in bash.eval("x=1")["changed"]
    assert bash.out("echo ${#big}") == "9000000\n"


def test_random_goes_on_as_seeded(bash: Any) -> None:
    bash.value("RANDOM=42")
    assert bash.out("echo $RANDOM") == "17772\n"

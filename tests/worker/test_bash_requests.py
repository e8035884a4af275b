"""Lists of variables, completion, lookup, and what one bash session takes over from another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def _vars(bash: Any, most: int = 100) -> dict[str, Any]:
    answer = bash.ask("vars", max=most)
    return {row["name"]: row for row in answer["vars"]}


def test_a_fresh_session_has_no_variables_of_the_user(bash: Any) -> None:
    assert bash.ask("vars", max=100) == {"t": "vars", "n": bash.number, "vars": [], "total": 0}


def test_variables_are_described_without_running_anything(bash: Any) -> None:
    bash.value(
        "s='a \"b\" $c é\n'; arr=(1 'two words' '(three]'); declare -A map=([k]=v ['a b']='c]=d'); declare -i n=7"
    )
    bash.value("export e=x; declare unset; declare -r fixed=1; declare -n ref=s; f() { :; }; PATH=$PATH:/more; _u=1")
    rows = _vars(bash)
    assert sorted(rows) == ["PATH", "_u", "arr", "e", "fixed", "map", "n", "ref", "s", "unset"]
    assert rows["s"] == {"name": "s", "type": "string", "size": 11, "preview": 'a "b" $c é\n'}
    assert (rows["arr"]["type"], rows["arr"]["size"]) == ("array", 3)
    assert (rows["map"]["type"], rows["map"]["size"]) == ("assoc", 2)
    assert (rows["n"]["type"], rows["n"]["preview"]) == ("integer", "7")
    assert (rows["e"]["type"], rows["ref"]["type"], rows["unset"]) == (
        "exported",
        "reference",
        {"name": "unset", "type": "string"},
    )


def test_the_list_of_variables_is_bounded(bash: Any) -> None:
    bash.value("for i in {1..50}; do declare v$i=$i; done; v1=$(printf '%0999d' 1)")
    answer = bash.ask("vars", max=10)
    assert (len(answer["vars"]), answer["total"]) == (10, 51)
    assert len(_vars(bash)["v1"]["preview"]) == 80


def test_clear_forgets_what_the_user_has_named(bash: Any) -> None:
    bash.value(
        "a=1; arr=(1); declare -A m=([x]=1); f() { :; }; alias al=echo; export GONE=1; HOME=/else; readonly fixed=1"
    )
    assert bash.ask("clear")["count"] == 5
    assert (
        bash.out("echo ${a-none} ${arr-none} ${GONE-none} $fixed; type f al 2>/dev/null; exit 3")
        == "none none none 1\n"
    )
    assert sorted(_vars(bash)) == ["HOME", "fixed"]


def _complete(bash: Any, code: str, most: int = 50) -> dict[str, str]:
    answer = bash.ask("complete", code=code, pos=len(code), max=most)
    bash.started = answer["start"]
    return {item["text"]: item["type"] for item in answer["items"]}


def test_completion_knows_names_commands_files_and_options(bash: Any, tmp_path: Path) -> None:
    (tmp_path / "file one").write_text("")
    (tmp_path / "fine").mkdir()
    bash.value(f"cd {tmp_path}; long_name=1; long_function() {{ :; }}; alias long_alias=ls")
    assert _complete(bash, "echo $long_n") == {"long_name": "variable"}
    assert bash.started == 6
    assert _complete(bash, "echo ${long_n") == {"long_name": "variable"}
    assert _complete(bash, "true; long_") == {"long_function": "function", "long_alias": "alias"}
    assert _complete(bash, "echo `whil") == {"while": "keyword"}
    assert _complete(bash, "unal") == {"unalias": "builtin"}
    assert _complete(bash, "cat f") == {"file one": "path", "fine": "path"}
    assert _complete(bash, "cat file\\ o") == {"file one": "path"}
    assert _complete(bash, "cd f") == {"fine": "path"}
    assert _complete(bash, "set -o nog") == {"noglob": "option"}
    assert _complete(bash, "shopt -s nullg") == {"nullglob": "option"}
    assert _complete(bash, "echo $__replctl") == {}
    assert _complete(bash, "x=$(long_f") == {"long_function": "function"}


def test_completion_is_bounded_and_runs_nothing(bash: Any, tmp_path: Path) -> None:
    for count in range(300):
        (tmp_path / f"f{count}").write_text("")
    bash.value(f"cd {tmp_path}")
    assert len(_complete(bash, "cat ", most=20)) == 20
    assert _complete(bash, f"cat $(touch {tmp_path}/made) `touch {tmp_path}/made` x") == {}
    assert not (tmp_path / "made").exists()


def _lookup(bash: Any, symbol: str) -> dict[str, Any]:
    answer = bash.ask("lookup", symbol=symbol, module=None)
    assert isinstance(answer, dict)
    return answer


def test_lookup_says_what_a_word_is(bash: Any) -> None:
    bash.value("f() {\n  echo in f\n}; alias hey='echo hey'; arr=(1 2)")
    function = _lookup(bash, "f")
    assert (function["found"], function["type"]) == (True, "function")
    assert function["doc"].split() == ["f", "()", "{", "echo", "in", "f", "}"]
    assert (_lookup(bash, "hey")["type"], _lookup(bash, "hey")["doc"]) == ("alias", "echo hey")
    builtin = _lookup(bash, "cd")
    assert (builtin["type"], builtin["signature"].startswith("cd [")) == ("builtin", True)
    assert _lookup(bash, "while")["type"] == "keyword"
    assert _lookup(bash, "ls")["file"].endswith("/ls")
    assert _lookup(bash, "$arr")["doc"] == 'declare -a arr=([0]="1" [1]="2")'
    for word in ("nosuch", "$(touch x)", "", "-p", "a b", "x[$(touch x)]", "f; f", "\n"):
        assert _lookup(bash, word)["found"] is False


def test_a_sourced_function_says_where_it_stands(bash: Any, tmp_path: Path) -> None:
    (tmp_path / "lib sh").write_text("\n\ng() { :; }\n")
    bash.value(f". '{tmp_path}/lib sh'")
    found = _lookup(bash, "g")
    assert (found["file"], found["line"]) == (f"{tmp_path}/lib sh", 3)


def test_a_snapshot_carries_names_options_and_directory(start_bash: Callable[..., Any], tmp_path: Path) -> None:
    one, two = start_bash(), start_bash()
    one.assign()
    two.assign()
    one.value(
        "s=$'a \"b\" $(c) `d`\\n\\'é\\377'; arr=(1 [5]='x y'); declare -A m=(['k ]']='v$x'); declare -i n=7; export e='1 2'"
    )
    one.value(
        "f() {\n  cat <<EOF\n$1 }\nEOF\n}; g() { :; }; export -f g; readonly fixed=1; declare -n ref=s; declare unset; x="
    )
    one.value(
        f"alias hey='echo \"hey\"'; shopt -s nullglob; set -u -o pipefail; cd {tmp_path}; umask 027; trap 'echo usr' USR1"
    )
    dumped = one.ask("dump", max=1_000_000)
    assert (dumped["error"], dumped["skipped"]) == (None, [])
    assert dumped["bytes"] == len(dumped["data"].encode())
    restored = two.ask("restore", data=dumped["data"])
    assert (restored["error"], restored["skipped"], restored["count"]) == (None, [], 11)
    code = (
        'printf "%q " "$s" "${arr[5]}" "${#arr[@]}" "${m[k ]]}" "$e" "$fixed" "$x"; f "{"; hey; shopt nullglob; echo $-; pwd; umask;'
        "kill -USR1 $$; bash -c g; n+=1; echo $n ${ref:0:1}; set -o | grep pipefail; fixed=2"
    )
    assert two.out(code) == one.out(code)
    assert two.eval("true")["outcome"] == "ok"


def test_a_snapshot_evaluates_nothing(start_bash: Callable[..., Any], tmp_path: Path) -> None:
    one, two = start_bash(), start_bash()
    one.assign()
    two.assign()
    one.value(
        f"x='a[$(touch {tmp_path}/made)]'; declare -i x; y='$(touch {tmp_path}/made)'; declare -n z='x[$(touch {tmp_path}/made)]'"
    )
    dumped = one.ask("dump", max=1_000_000)
    assert {left["name"] for left in dumped["skipped"]} == {"x", "z"}
    two.ask("restore", data=dumped["data"])
    assert two.out('echo "$y"') == f"$(touch {tmp_path}/made)\n"
    assert not (tmp_path / "made").exists()


def test_what_cannot_come_along_is_told(start_bash: Callable[..., Any], tmp_path: Path) -> None:
    one, two = start_bash(), start_bash()
    one.assign()
    two.assign()
    one.value(f"sleep 100 & exec 7>{tmp_path}/file; both=1; pid=$!")
    dumped = one.ask("dump", max=1_000_000)
    assert [left["name"].split()[0] for left in dumped["skipped"]] == ["job", "descriptor"]
    two.value("readonly both=2")
    restored = two.ask("restore", data=dumped["data"])
    assert [left["name"] for left in restored["skipped"]] == ["both"]
    one.value("kill $pid")


def test_a_snapshot_that_is_too_big_or_none_is_refused(bash: Any) -> None:
    bash.value("big=$(printf '%05000d' 1)")
    assert "more than 4000" in bash.ask("dump", max=4000)["error"]
    assert bash.ask("restore", data="echo pwned")["error"] is not None
    assert bash.ask("restore", data=None)["error"] is not None
    assert bash.out("echo on") == "on\n"

"""The node driver: what is told of code that fails, and what a failure leaves."""

from __future__ import annotations

from typing import Any

import pytest


def test_an_error_has_its_name_message_and_the_users_frames(node: Any) -> None:
    node.eval("function inner() {\n  null.x\n}\nfunction outer() { inner() }")
    failed = node.error("1 + 1\nouter()")
    assert failed["ex"] == {"type": "TypeError", "message": "Cannot read properties of null (reading 'x')"}
    assert [(f["func"], f["file"], f["line"]) for f in failed["stacktrace"]] == [
        ("<eval>", "<work:2>", 2),
        ("outer", "<work:1>", 4),
        ("inner", "<work:1>", 2),
    ]
    assert failed["traceback"].splitlines() == [
        "TypeError: Cannot read properties of null (reading 'x')",
        "    at inner (<work:1>:2:8)",
        "    at outer (<work:1>:4:20)",
        "    at <work:2>:2:1",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "throw new Error('e')",
        "await null; throw new Error('e')",
        "await new Promise((_, reject) => setTimeout(() => reject(new Error('e')), 1))",
        "require('fs').readFileSync('/nope')",
        "await require('fs').promises.readFile('/nope')",
        "[1].map(() => { throw new Error('e') })",
        "JSON.parse('{')",
        "new Error('a value')",
        "class Odd extends Error {}; throw new Odd('m', { cause: new Error('c') })",
        "await Promise.any([Promise.reject(new Error('e'))])",
        "process.stdout.write(Symbol())",
        "process.stdin.emit('error', new Error('e'))",
        "console.log(new Error('printed')); throw new Error('e')",
        "console.log(new Error('printed').stack); throw 1",
    ],
)
def test_no_frame_of_the_driver_or_of_nodes_insides_is_shown(node: Any, code: str) -> None:
    answer = node.eval(code)
    text = f"{answer['traceback'] if answer['outcome'] == 'error' else answer['value']}{answer['stacktrace']}"
    for inner in ("node:internal", "runtimes/node", ".mjs", "node:inspector", "lines matching"):
        assert inner not in text
        assert inner not in bytes(node.stdout).decode()


def test_properties_and_causes_of_an_error_are_shown(node: Any) -> None:
    failed = node.error("require('fs').readFileSync('/nope')")
    assert failed["ex"]["message"] == "ENOENT: no such file or directory, open '/nope'"
    assert "    at <work:1>:1:15 {\n  errno: -2,\n" in failed["traceback"]
    assert "  path: '/nope'\n}\n" in failed["traceback"]
    failed = node.error("class Odd extends Error {}; throw new Odd('m', { cause: new Error('c') })")
    assert failed["ex"] == {"type": "Odd", "message": "m"}
    assert "[cause]: Error: c\n      at <work:2>:1:57" in failed["traceback"]


@pytest.mark.parametrize(
    ("code", "line", "shown"),
    [
        ("let x = ;", 1, "<work:1>:1\nlet x = ;\n        ^\nSyntaxError: Unexpected token ';'\n"),
        ("console.log('ran')\n\tif (", 2, "<work:1>:2\n\tif (\n\t    ^\nSyntaxError: Unexpected end of input\n"),
        (
            "console.log('ran'); 'abc",
            1,
            "<work:1>:1\nconsole.log('ran'); 'abc\n                    ^^^^\nSyntaxError: Invalid or unexpected token\n",
        ),
        ("}", 1, "<work:1>:1\n}\n^\nSyntaxError: Unexpected token '}'\n"),
        ("else 1", 1, "<work:1>:1\nelse 1\n^\nSyntaxError: Unexpected token 'else'\n"),
        ("{ a: 1 }); console.log('ran'); ({ b: 2 }", 1, "SyntaxError: Unexpected token ')'\n"),
        ("console.log('ran'); return 1", 1, "SyntaxError: Illegal return statement\n"),
        ("console.log('ran'); const a = 1; let a", 1, "SyntaxError: Identifier 'a' has already been declared\n"),
        ("/* open", 1, "SyntaxError: Invalid or unexpected token\n"),
        ("`open", 1, "<work:1>:1\n`open\n     ^\nSyntaxError: Unexpected end of input\n"),
        ("console.log('ran'); /(/", 1, "SyntaxError: Invalid regular expression: /(/: Unterminated group\n"),
    ],
)
def test_a_syntax_error_is_told_once_with_its_place_before_anything_runs(
    node: Any, code: str, line: int, shown: str
) -> None:
    failed = node.error(code)
    assert failed["ex"]["type"] == "SyntaxError"
    assert failed["traceback"].replace("^^^^", "^").endswith(shown.replace("^^^^", "^"))
    assert failed["stacktrace"] == [{"func": "<eval>", "file": "<work:1>", "line": line}]
    assert node.value("1") == "1"
    assert (bytes(node.stdout), bytes(node.stderr)) == (b"", b"")


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("throw 42", "number", "42"),
        ("throw undefined", "undefined", "undefined"),
        ("throw null", "null", "null"),
        ("throw { code: 5 }", "Object", "{ code: 5 }"),
        ("await Promise.reject('text')", "string", "'text'"),
        ("throw Object.create(null)", "Object", "[Object: null prototype] {}"),
        ("throw Object.assign(new Error('x'), { name: '' })", "Error", "x"),
        ("throw Object.defineProperty(new Error('x'), 'stack', { value: 5 })", "Error", "x"),
        ("throw Object.assign(new Error(), { message: { not: 'text' } })", "Error", "[object Object]"),
    ],
)
def test_anything_can_be_thrown(node: Any, code: str, kind: str, message: str) -> None:
    assert node.error(code)["ex"] == {"type": kind, "message": message}


def test_an_error_that_cannot_be_told_is_told_by_its_type(node: Any) -> None:
    failed = node.error("throw Object.defineProperty(new TypeError('x'), 'message', { get() { throw 1 } })")
    assert failed["ex"] == {"type": "TypeError", "message": ""}
    assert node.value("2") == "2"


def test_text_that_is_no_utf_8_is_told_all_the_same(node: Any) -> None:
    assert node.error("throw new Error('a\\ud800b')")["ex"]["message"] == "a\ufffdb"
    assert node.value("'a\\ud800b😀'").lower() == "'a\\ud800b😀'"
    node.eval("console.log('\\ud800')")
    assert bytes(node.stdout) == "\ufffd\n".encode()


def test_what_is_told_of_an_error_is_bounded(node: Any) -> None:
    node.ask(op="assign", cwd=None, env={}, limits={"trace-frames": 6, "trace-bytes": 2000})
    failed = node.error("function r(n) { if (n === 0) throw new Error('deep'); r(n - 1) }\nr(40)")
    assert len(failed["stacktrace"]) == 6
    assert len(failed["traceback"].splitlines()) <= 8
    failed = node.error("throw new Error('é'.repeat(1_000_000))")
    message = failed["ex"]["message"]
    assert message.endswith("…[truncated]")
    assert len(message.removesuffix("…[truncated]").encode()) <= 4096
    assert len(failed["traceback"].encode()) <= 2000
    failed = node.error("(function f() { f() })()")
    assert failed["ex"]["type"] == "RangeError"
    assert len(failed["stacktrace"]) == 6


def test_what_failed_in_the_midst_leaves_what_came_before(node: Any) -> None:
    node.error("let a = 1; var b = 2; throw new Error('x'); let c = 3")
    assert node.value("[a, b]") == "[ 1, 2 ]"
    assert node.error("c")["ex"]["type"] == "ReferenceError"
    assert node.value("let c = 4; c") == "4"


def test_errors_that_nobody_catches_are_told_once_and_do_not_end_the_session(node: Any) -> None:
    node.eval("setTimeout(() => { throw new Error('from a timer') }, 1)\nawait new Promise((r) => setTimeout(r, 20))")
    assert bytes(node.stderr).count(b"Uncaught Error: from a timer\n    at ") == 1
    node.stderr.clear()
    node.eval("Promise.reject(new Error('rejected')); await new Promise((r) => setTimeout(r, 5))")
    assert bytes(node.stderr).count(b"Uncaught (in promise) Error: rejected\n    at <work:2>:1:16\n") == 1
    node.eval("new (require('events'))().emit('error', new Error('emitted'))")
    node.eval("process.nextTick(() => { throw 5 }); queueMicrotask(() => { throw 6 }); setImmediate(() => { throw 7 })")
    node.eval("await new Promise((r) => setTimeout(r, 5))")
    assert all(b"Uncaught %d\n" % number in bytes(node.stderr + node.late) for number in (5, 6, 7))
    assert node.value("'alive'") == "'alive'"


def test_late_errors_go_where_late_output_goes(node: Any) -> None:
    node.eval(
        "setTimeout(() => { throw new Error('late') }, 50); setTimeout(() => Promise.reject(new Error('rejected')), 60)"
    )
    node.until(lambda: b"late" in node.late and b"rejected" in node.late)
    assert bytes(node.stderr) == b""


def test_the_users_own_handlers_of_uncaught_errors_come_first_and_taking_them_away_is_safe(node: Any) -> None:
    node.eval("process.on('uncaughtException', (e) => console.log('caught', e.message))")
    node.eval("setTimeout(() => { throw new Error('mine') }, 1); await new Promise((r) => setTimeout(r, 20))")
    assert bytes(node.stdout) == b"caught mine\n"
    assert bytes(node.stderr) == b""
    node.eval("process.removeAllListeners()")
    node.eval("setTimeout(() => { throw new Error('ours') }, 1); await new Promise((r) => setTimeout(r, 20))")
    assert b"Uncaught Error: ours" in node.stderr
    node.signal()
    assert node.value("1") == "1"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("process.exit()", "ok"),
        ("process.exit(0)", "ok"),
        ("process.exit(3)", "error"),
        ("await null; process.exit(3)", "error"),
        ("try { process.exit(3) } catch {} finally { 1 }", "error"),
        ("setTimeout(() => process.exit(3), 1); await new Promise(() => {})", "error"),
        ("Promise.resolve().then(() => process.exit(3)); await new Promise(() => {})", "error"),
        ("(function f() { process.exit(3) })(); console.log('not here')", "error"),
    ],
)
def test_process_exit_ends_the_eval_and_not_the_session(node: Any, code: str, outcome: str) -> None:
    node.eval("let kept = 1; process.on('exit', () => console.log('exit handler'))")
    answer = node.eval(code)
    assert answer["outcome"] == outcome
    assert answer["hint"] == "process.exit() ends the eval, not the session"
    assert answer.get("ex") == ({"type": "Exit", "message": "process.exit(3)"} if outcome == "error" else None)
    assert node.value("kept") == "1"
    assert (bytes(node.stdout), bytes(node.stderr), bytes(node.late)) == (b"", b"", b"")


def test_process_exit_of_a_late_callback_is_told_and_does_nothing(node: Any) -> None:
    node.eval("setTimeout(() => process.exit(1), 30)")
    node.until(lambda: node.late.endswith(b"\n"))
    assert b"process.exit() outside of a running eval does nothing" in node.late
    assert node.value("1") == "1"


def test_what_really_ends_the_process_has_a_clear_cause(node: Any) -> None:
    node.start_eval("process.kill(process.pid, 'SIGKILL')")
    assert node.exit_code() == -9

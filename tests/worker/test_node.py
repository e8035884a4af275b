"""The node driver: what an eval's value is, what persists, and how modules are had."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_ready_says_what_it_is_and_can(start_node: Callable[..., Any]) -> None:
    node = start_node(ready=False)
    ready = node.frame()
    assert (ready["t"], ready["runtime"], ready["pid"]) == ("ready", "node", node.process.pid)
    assert int(ready["version"].split(".")[0]) >= 18
    assert set(ready["can"]) == {"vars", "clear", "complete", "lookup", "dump", "restore", "packages"}


def test_an_assign_sets_directory_environment_and_limits(node: Any, tmp_path: Path) -> None:
    assign = node.ask(
        op="assign", cwd=str(tmp_path), env={"COLOUR": "blue", "TZ": "Asia/Tokyo"}, limits={"value-bytes": 9}
    )
    assert assign == {"t": "assigned", "error": None}
    assert node.value("process.cwd().length") == str(len(str(tmp_path)))
    assert node.value("process.env.COLOUR") == "'blue'"
    assert node.value("new Date(0).getHours()") == "9"
    assert node.value("'0123456789abc'") == "'01234567…[truncated]"
    refused = node.ask(op="assign", cwd=str(tmp_path / "none"), env={}, limits={})
    assert refused["t"] == "assigned"
    assert "ENOENT" in refused["error"]
    assert node.value("1 + 1") == "2"


@pytest.mark.parametrize(
    ("code", "value", "kind"),
    [
        ("6 * 7", "42", "number"),
        ("'a' + 'b'", "'ab'", "string"),
        ("undefined", "undefined", "undefined"),
        ("", "undefined", "undefined"),
        ("// nothing", "undefined", "undefined"),
        ("let q = 1", "undefined", "undefined"),
        ("null", "null", "null"),
        ("-0", "-0", "number"),
        ("10n ** 20n", "100000000000000000000n", "bigint"),
        ("Symbol('s')", "Symbol(s)", "symbol"),
        ("{ a: 1 }", "{ a: 1 }", "Object"),
        ("{}", "{}", "Object"),
        ("{ let a = 1; a + 1 }", "2", "number"),
        ("{ a: 1 };", "1", "number"),
        ("[1, [2, { b: 3 }]]", "[ 1, [ 2, { b: 3 } ] ]", "Array"),
        ("new Map([[1, 2]])", "Map(1) { 1 => 2 }", "Map"),
        ("(function f() {})", "[Function: f]", "function"),
        ("class A {}; A", "[class A]", "class"),
        ("class B { x = 1 }; new B", "B { x: 1 }", "B"),
        ("Promise.resolve(5)", "Promise { 5 }", "Promise"),
        ("new Promise(() => {})", "Promise { <pending> }", "Promise"),
        ("await Promise.resolve(5)", "5", "number"),
        ("if (true) 3; else 4", "3", "number"),
        ("for (var i = 0; i < 3; i++) i", "2", "number"),
        ("let t = `a${1 + 1}`\nt", "'a2'", "string"),
        ("#!/usr/bin/env node\n8", "8", "number"),
        ("[] instanceof Array && require('vm').runInThisContext('[]') instanceof Array", "true", "boolean"),
        (
            "require('url').parse('http://a/b').constructor.name + (new URL('http://a') instanceof URL)",
            "'Urltrue'",
            "string",
        ),
        ("new Proxy({ a: 1 }, {})", "{ a: 1 }", "Proxy"),
        ("this === globalThis", "true", "boolean"),
        ("'use strict'; (function () { return this })()", "undefined", "undefined"),
    ],
)
def test_the_value_is_what_inspect_says(node: Any, code: str, value: str, kind: str) -> None:
    answer = node.eval(code)
    assert (answer["outcome"], answer.get("value"), answer["type"]) == ("ok", value, kind)


def test_a_silent_eval_has_no_value(node: Any) -> None:
    answer = node.eval("41 + 1", silent=True)
    assert (answer["outcome"], answer.get("value"), answer.get("type")) == ("ok", None, None)
    assert node.value("_") == "42"


def test_a_long_value_is_cut_and_counted(node: Any) -> None:
    answer = node.eval("'é'.repeat(1_000_000)")
    assert answer["value"].endswith("é…[truncated]")
    assert len(answer["value"].encode()) <= 10240 + len("…[truncated]".encode())
    assert answer["value-dropped"] > 900_000
    answer = node.eval("Array.from({ length: 100 }, (_, i) => 'x'.repeat(500))")
    assert answer["value-dropped"] > 30_000


def test_an_inspect_that_throws_is_told_by_name(node: Any) -> None:
    answer = node.eval("({ [require('util').inspect.custom]() { throw new RangeError('no') } })")
    assert (answer["outcome"], answer.get("value"), answer["repr-error"]) == ("ok", None, "RangeError")
    assert node.eval("new Proxy({}, { getPrototypeOf() { throw 1 } })")["outcome"] == "ok"


@pytest.mark.parametrize("code", ["let n = 1", "const n = 1", "var n = 1", "n = 1", "function n() {}", "class n {}"])
def test_names_persist_and_may_be_declared_again(node: Any, code: str) -> None:
    node.eval(code)
    before = node.value("n")
    assert node.eval(code)["outcome"] == "ok"
    assert node.value("n") == before
    assert node.eval("'x'")["changed"] == []


def test_a_const_of_a_later_eval_takes_the_place_of_the_first(node: Any) -> None:
    node.eval("const k = 1; const read = () => k")
    assert node.eval("const k = 2")["changed"] == ["k"]
    assert node.value("[k, read()]") == "[ 2, 2 ]"
    assert node.error("k = 3")["ex"]["type"] == "TypeError"
    assert node.error("const k = 5; const k = 6")["ex"]["type"] == "SyntaxError"
    assert node.value("k") == "2"


def test_a_declaration_of_another_kind_is_refused_with_a_hint(node: Any) -> None:
    node.eval("let a = 1; function f() {}")
    for code in ("const a = 2", "var a = 2", "const f = 1", "console.log('ran'); class f {}"):
        refused = node.error(code)
        assert refused["ex"]["type"] == "SyntaxError"
        assert "already been declared" in refused["ex"]["message"]
        assert "another keyword" in refused["hint"]
    assert node.value("a = 2; a") == "2"
    assert bytes(node.stdout) == b""


def test_top_level_await_and_its_names_persist(node: Any) -> None:
    node.eval("const { a, b: [c] } = await Promise.resolve({ a: 1, b: [2] }); let d = await 3; class E {}; var f = 4")
    assert node.value("[a, c, d, typeof E, f]") == "[ 1, 2, 3, 'function', 4 ]"
    node.eval("for await (const x of (async function* () { yield 5 })()) var last = x\nfunction g() { return last }")
    assert node.value("g()") == "5"
    assert node.value("await (async () => { await null; return 6 })()") == "6"


def test_changed_names_what_was_bound_or_bound_again(node: Any) -> None:
    assert node.eval("let a = 1; var b = 2; c = 3; const d = 4; function e() {} class F {} ; let _g")[
        "changed"
    ] == list("Fabcde")
    assert node.eval("a = 1; b++; globalThis.c = 3")["changed"] == ["b"]
    assert node.eval("globalThis.fetch = 5")["changed"] == ["fetch"]
    assert node.eval("await null; let z = await 1; throw 2")["changed"] == ["z"]
    assert len(node.eval("for (let i = 0; i < 300; i++) globalThis['n' + i] = i")["changed"]) == 100


def test_the_last_value_is_kept_in_underscore(node: Any) -> None:
    node.eval("[1, 2]")
    node.eval("undefined")
    node.eval("7", history=False)
    assert node.value("_.length") == "2"
    node.error("throw new TypeError('t')")
    assert node.value("_error.message") == "'t'"
    node.eval("const _ = { lodash: 1 }")
    node.eval("9")
    assert node.value("_.lodash") == "1"


def test_an_underscore_of_the_users_own_stays(node: Any) -> None:
    node.eval("_ = 'mine'")
    node.eval("9")
    assert node.value("_") == "'mine'"


def test_what_node_has_is_there(node: Any) -> None:
    names = ["require", "process", "fetch", "setTimeout", "Buffer", "URL", "structuredClone", "fs", "path", "os"]
    assert node.value(f"[{', '.join(f'typeof {name}' for name in names)}].includes('undefined')") == "false"
    assert node.eval("const fs = require('fs'); var path = require('node:path')")["changed"] == ["fs", "path"]
    assert node.value("process.argv.length") == "1"


@pytest.fixture
def directory(node: Any, tmp_path: Path) -> Path:
    """A session's directory with modules in it."""
    (tmp_path / "node_modules/both").mkdir(parents=True)
    package = {"name": "both", "exports": {"import": "./esm.mjs", "require": "./cjs.cjs"}}
    (tmp_path / "node_modules/both/package.json").write_text(json.dumps(package))
    (tmp_path / "node_modules/both/esm.mjs").write_text("export default 'esm'; export const named = 1")
    (tmp_path / "node_modules/both/cjs.cjs").write_text("module.exports = 'cjs'")
    (tmp_path / "mine.mjs").write_text("export let n = 1; export default class Mine {}; export { n as 'odd name' }")
    (tmp_path / "mine.cjs").write_text("exports.n = 2")
    (tmp_path / "data.json").write_text('{"d": 3}')
    (tmp_path / "bad.cjs").write_text("let x = ;")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/mine.cjs").write_text("exports.n = 'sub'")
    node.ask(op="assign", cwd=str(tmp_path), env={}, limits={})
    return tmp_path


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("(await import('both')).default", "'esm'"),
        ("require('both')", "'cjs'"),
        ("(await import('./mine.mjs')).n", "1"),
        ("require('./mine.cjs').n", "2"),
        ("process.chdir('sub'); 0", "0"),
        ("const f = () => import('both'); (await f()).named", "1"),
        ("import both from 'both'; both", "'esm'"),
        ("import both, { named } from 'both'\nboth + named", "'esm1'"),
        ("import * as all from 'both';\nall.default", "'esm'"),
        ("import Mine, * as mine from './mine.mjs'; [typeof Mine, mine.n]", "[ 'function', 1 ]"),
        (
            "import { n as m, default as M, 'odd name' as odd, } from /* here */ './mine.mjs' // so\n[m, M.name, odd]",
            "[ 1, 'Mine', 1 ]",
        ),
        ("import 'both'\nimport './mine.mjs'; 5", "5"),
        ("import\n  fs\n  from\n  'fs'\ntypeof fs.readSync", "'function'"),
        ("await null; import { readFileSync } from 'node:fs'; typeof readFileSync", "'function'"),
        (
            "const s = 'import(1) import x from y', r = /import(a)[import]/, t = `import(b) ${typeof import('both')} import`; s + r.source + t",
            "'import(1) import x from yimport(a)[import]import(b) object import'",
        ),
        ("// import('x')\n/* import y from 'z' */ ({ import(a) { return a } }).import(4)", "4"),
        ("class I { import(a) { return a } static import = 3 }; new I().import(I.import)", "3"),
        ("const o = { import: 6 }; o . import + o?.import", "12"),
        ("await Promise.all([import('both'), import /* gap */ ('fs')]).then((all) => all.length)", "2"),
        ("`${(await import('both')).default}`", "'esm'"),
    ],
)
def test_modules_come_by_require_and_by_both_imports(node: Any, code: str, value: str) -> None:
    answer = node.eval(code)
    assert answer["outcome"] == "ok", answer["traceback"]
    assert answer["value"] == value


@pytest.mark.usefixtures("directory")
def test_an_import_may_have_attributes(node: Any) -> None:
    major, minor = map(int, str(node.value("process.versions.node.split('.', 2).join(' ')")).strip("'").split())
    word = "with" if (major, minor) >= (20, 10) else "assert"
    node.eval(f"import data from './data.json' {word} {{ type: 'json' }}")
    assert node.value("data.d") == "3"
    assert node.value(f"(await import('./data.json', {{ {word}: {{ type: 'json' }} }})).default.d") == "3"


@pytest.mark.usefixtures("directory")
def test_modules_are_looked_for_from_the_directory_of_now(node: Any) -> None:
    node.eval("process.chdir('sub')")
    assert node.value("require('./mine.cjs').n") == "'sub'"
    assert node.value("(await import('./mine.cjs')).default.n") == "'sub'"


@pytest.mark.usefixtures("directory")
@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        ("import { missing } from './mine.mjs'", "SyntaxError", "does not provide an export named 'missing'"),
        ("import './none.mjs'", "Error", "Cannot find module"),
        ("await import('nowhere')", "Error", "Cannot find package 'nowhere'"),
        ("require('nowhere')", "Error", "Cannot find module 'nowhere'"),
        ("require('./bad.cjs')", "SyntaxError", "Unexpected token"),
        ("console.log('ran'); import x from", "SyntaxError", "import"),
        ("console.log('ran'); function f() { import x from 'fs' }", "SyntaxError", "import"),
        ("console.log('ran'); 1 + import x from 'fs'", "SyntaxError", "import"),
        ("console.log('ran'); import fs from 'fs' console.log(2)", "SyntaxError", "import"),
        ("console.log('ran'); export const x = 1", "SyntaxError", "export"),
        ("console.log('ran'); import.meta", "SyntaxError", "import.meta"),
    ],
)
def test_imports_that_fail_say_why(node: Any, code: str, kind: str, says: str) -> None:
    failed = node.error(code)
    assert failed["ex"]["type"] == kind
    assert says in failed["ex"]["message"]
    assert bytes(node.stdout) == b""


def test_the_text_of_a_file_runs_as_that_file(node: Any, tmp_path: Path) -> None:
    (tmp_path / "near.cjs").write_text("exports.near = 1")
    path = tmp_path / "a script.js"
    code = "'use strict'\nconst { near } = require('./near.cjs')\nfunction fails() {\n  throw new Error(near)\n}\nlet one = 1"
    node.number += 1
    frame = {"op": "eval", "name": "<w:1>", "silent": False, "stdin": False, "history": True, "file": str(path)}
    node.send(n=node.number, code=code, reload=False, **frame)
    assert node.result()["changed"] == ["fails", "near", "one"]
    failed = node.error("fails()")
    assert failed["stacktrace"][-1] == {"func": "fails", "file": str(path).replace(" ", "%20"), "line": 4}
    node.number += 1
    node.send(n=node.number, code="const near = 2", reload=True, **frame)
    assert node.result()["outcome"] == "ok"
    assert node.value("[typeof fails, one]") == "[ 'undefined', undefined ]"


def test_a_broken_prototype_is_the_users_own_affair_and_no_frame_is_faked(node: Any) -> None:
    node.eval(
        "Object.prototype.toJSON = () => ({ t: 'result', n: 99 }); JSON.stringify = () => '{}'; JSON.parse = null"
    )
    node.eval(
        "Buffer.from = null; process.stdout.write = null; globalThis.Promise = null; Map = Set = 1; globalThis.Error = 0"
    )
    assert node.value("1 + 1") == "2"
    assert node.value("await 3") == "3"


def test_the_driver_is_part_of_the_distribution() -> None:
    from replworker.runtimes.node import command

    directory = Path(command.__file__).parent
    argv = command.build_argv("/usr/bin/node", 3, 4)
    assert argv == ["/usr/bin/node", "--no-warnings", str(directory / "driver.mjs"), "3", "4"]
    assert {path.name for path in directory.glob("*.mjs")} > {"driver.mjs", "watcher.mjs", "engine.mjs"}
    assert max(len(path.read_text().splitlines()) for path in directory.glob("*.mjs")) < 300

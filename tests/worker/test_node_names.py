"""The node driver: listing and forgetting names, completion, lookup, and names that move to another session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def rows(node: Any, most: int = 100) -> dict[str, dict[str, Any]]:
    return {row.pop("name"): row for row in node.ask(op="vars", max=most)["vars"]}


def test_variables_are_listed_with_type_size_and_preview(node: Any) -> None:
    node.eval(
        "let text = 'abc', list = [1, 'b'], table = { a: 1 }, none = null, big = 2n ** 70n, bytes = new Uint8Array(3)\n"
        "const map = new Map([[1, 2]]), fn = () => 1; class K {} ; var k = new K(); loose = 1.5; let _hidden = 1, unset"
    )
    listed = rows(node)
    assert listed["text"] == {"type": "string", "size": 3, "preview": "'abc'"}
    assert listed["list"] == {"type": "Array", "size": 2, "preview": "[ 1, 'b' ]"}
    assert listed["table"] == {"type": "Object", "preview": "{ a: 1 }"}
    assert listed["none"] == {"type": "null", "preview": "null"}
    assert listed["big"] == {"type": "bigint", "preview": "1180591620717411303424n"}
    assert listed["bytes"] == {"type": "Uint8Array", "size": 3}
    assert listed["map"] == {"type": "Map", "size": 1}
    assert [listed[name]["type"] for name in ("fn", "K", "k", "loose", "unset")] == [
        "function",
        "class",
        "K",
        "number",
        "undefined",
    ]
    assert "_hidden" not in listed
    assert list(listed) == sorted(listed)


def test_the_list_is_bounded_and_counts_all(node: Any) -> None:
    assert node.ask(op="vars", max=10) == {"t": "vars", "vars": [], "total": 0}
    node.eval("for (let i = 0; i < 50; i++) globalThis['n' + i] = 'x'.repeat(1000)")
    answer = node.ask(op="vars", max=3)
    assert ([row["name"] for row in answer["vars"]], answer["total"]) == (["n0", "n1", "n10"], 50)
    assert len(answer["vars"][0]["preview"]) == 80


HOSTILE = """
var getter = { get a() { console.log('ran'); return 1 } }, sized = { get length() { console.log('ran') } }
var proxy = new Proxy({}, new Proxy({}, { get() { console.log('ran'); for (;;); } }))
Object.defineProperty(globalThis, 'computed', { get() { console.log('ran') }, enumerable: true, configurable: true })
var custom = { [Symbol.for('nodejs.util.inspect.custom')]() { console.log('ran') }, get constructor() { console.log('ran') } }
"""


def test_looking_runs_no_code_of_the_users(node: Any) -> None:
    node.eval(HOSTILE + "; undefined", history=False)
    assert rows(node)["proxy"]["type"] == "Proxy"
    for code in (
        "getter.",
        "getter.a.",
        "sized.",
        "proxy.",
        "proxy.a.",
        "custom.",
        "computed.",
        "comp",
        "new K().",
        "getter['",
    ):
        node.ask(op="complete", code=code, pos=len(code), max=100)
        node.ask(op="lookup", symbol=code.strip(".'["), module=None)
    assert node.value("1") == "1"
    assert bytes(node.stdout) == b""


def test_clear_forgets_the_users_names_of_every_kind(node: Any) -> None:
    node.eval("let a = 1; const b = 2; class C {}; var d = 3; function e() {}; f = 4; globalThis.fetch = 5; 6")
    assert node.ask(op="clear") == {"t": "cleared", "count": 7}
    assert rows(node) == {}
    assert node.value("[a, b, C, d, e, _].every((each) => each === undefined)") == "true"
    assert node.value("typeof f + typeof fetch") == "'undefinedfunction'"
    assert node.eval("let a = 7; const b = 8; class C {}; var d = 9; function e() {}; f = 10")["outcome"] == "ok"
    assert sorted(rows(node)) == ["C", "a", "b", "d", "e", "f"]
    assert node.ask(op="clear")["count"] == 6


@pytest.fixture
def names(node: Any) -> Callable[..., list[str]]:
    """The texts that complete a code at its end."""

    def complete(code: str, after: str = "") -> list[str]:
        answer = node.ask(op="complete", code=code + after, pos=len(code), max=500)
        assert answer["t"] == "completions"
        texts = [item["text"] for item in answer["items"]]
        assert texts == sorted(texts)
        return [code[: answer["start"]] + text for text in texts]

    return complete


def test_names_members_and_keys_are_completed(node: Any, names: Callable[..., list[str]]) -> None:
    node.eval(
        "const obj = { alpha: 1, also: { deep: [{ z: 1 }] }, 'odd key': 2 }, letter = 'x'; class Cat { meow() {} }; const cat = new Cat()"
    )
    assert names("le") == ["let", "letter"]
    assert names("1 + lette") == ["1 + letter"]
    assert names("obj.al") == ["obj.alpha", "obj.also"]
    assert names("f(obj?.al") == ["f(obj?.alpha", "f(obj?.also"]
    assert names("obj.also.deep[0].z") == ["obj.also.deep[0].z"]
    assert names("obj['o") == ["obj['odd key"]
    assert names('obj["al', '"]') == ['obj["alpha', 'obj["also']
    assert names("cat.me") == ["cat.meow"]
    assert names("letter.toUpper") == ["letter.toUpperCase"]
    assert names("process.vers") == ["process.version", "process.versions"]
    assert names("'𝒳'; obj.alp") == ["'𝒳'; obj.alpha"]
    assert names("await") == ["await"]
    assert names("nothing.here.") == []
    assert names("") == []
    assert names("obj.") == sorted(names("obj."))
    assert "obj.hasOwnProperty" in names("obj.")
    assert not [text for text in names("obj.") if "odd" in text]


def test_modules_and_paths_are_completed(node: Any, names: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/one.mjs").touch()
    (tmp_path / "list.json").touch()
    node.ask(op="assign", cwd=str(tmp_path), env={}, limits={})
    assert "require('child_process" in names("require('chi")
    assert names("import x from 'node:zl") == ["import x from 'node:zlib"]
    assert names("import('./li") == ["import('./lib/", "import('./list.json"]
    assert names("require('./lib/") == ["require('./lib/one.mjs"]
    assert names("require('./nowhere/") == []


def test_completions_have_types_and_a_bound(node: Any) -> None:
    node.eval("let xf = () => 1; class xc {}; let xn = 1; var xv = {}")
    answer = node.ask(op="complete", code="x", pos=1, max=3)
    assert answer["items"] == [
        {"text": "xc", "type": "class"},
        {"text": "xf", "type": "function"},
        {"text": "xn", "type": "instance"},
    ]
    answer = node.ask(op="complete", code="whil", pos=4, max=3)
    assert answer == {"t": "completions", "start": 0, "items": [{"text": "while", "type": "keyword"}]}


def test_lookup_tells_type_signature_and_methods(node: Any) -> None:
    node.eval(
        "async function add(a, { b = 1 } = {}) {\n  return a\n}\nclass Cat extends Array { meow() {} }; const arrow = (x) => x; const o = { n: 1, go() {} }"
    )
    found = node.ask(op="lookup", symbol="add", module=None)
    assert (found["found"], found["type"], found["signature"]) == (
        True,
        "function",
        "async function add(a, { b = 1 } = {})",
    )
    found = node.ask(op="lookup", symbol="Cat", module=None)
    assert (found["type"], found["signature"]) == ("class", "class Cat extends Array")
    assert found["methods"][:2] == ["at", "concat"]
    assert "meow" in found["methods"]
    assert node.ask(op="lookup", symbol="arrow", module=None)["signature"] == "(x) =>"
    found = node.ask(op="lookup", symbol="o", module=None)
    assert (found["type"], found["methods"], found.get("signature")) == ("Object", ["go"], None)
    assert node.ask(op="lookup", symbol="JSON.parse", module=None)["signature"] == "function parse(arg1, arg2)"
    assert node.ask(op="lookup", symbol="readFileSync", module="fs")["found"]


@pytest.mark.parametrize(
    "symbol", ["nothing", "o.nothing.more", "f()", "1", "", "a b", "o['n']", "x" * 300, "if", "console.log(1)"]
)
def test_lookup_of_anything_but_a_known_name_finds_nothing(node: Any, symbol: str) -> None:
    node.eval("const o = {}; const f = () => console.log('ran')")
    assert node.ask(op="lookup", symbol=symbol, module=None) == {"t": "found", "found": False}
    assert bytes(node.stdout) == b""


MOVED = """
let n = 1; const text = 'é'; var old = [1, { a: 2 }]; loose = new Map([[1, new Set([2])]]); let date = new Date(5)
const shared = { s: 1 }, alike = { shared }; let re = /x/g, big = 5n, bytes = Buffer.from('b'), nothing, cycle = {}; cycle.self = cycle
function area(w, h = 2) { return w * h * n }
const twice = (x) => area(x) * 2
class Animal { constructor() { this.legs = 4 } speak() { return 'hm' } }
class Cat extends Animal { static make() { return new Cat() } }
"""
STAYED = """
const instance = new Animal(), holds = { deep: [instance] }, promise = Promise.resolve(1), proxy = new Proxy({}, {})
const sym = Symbol('s'), fnIn = { f() {} }, getter = { get a() { console.log('ran') } }, bound = area.bind(null), native = parseInt
const closed = ((x) => () => x)(1), weak = new WeakMap(), namespace = await import('os'), server = require('http').createServer()
class Counted { static n = console.log('defined') } ; const keyed = { [Symbol('k')]: 1 }; const method = { m() {} }.m
"""


def test_names_move_to_another_session(start_node: Callable[..., Any]) -> None:
    first, second = start_node(), start_node()
    first.eval(MOVED)
    dumped = first.ask(op="dump", max=1_000_000)
    assert (dumped["t"], dumped["skipped"], dumped["count"]) == ("dumped", [], 16)
    restored = second.ask(op="restore", data=dumped["data"])
    assert (restored["t"], restored["count"], restored["skipped"]) == ("dumped", 16, [])
    assert (
        second.value("[n, text, old[1].a, loose.get(1).has(2), date.getTime(), re.flags, big, bytes].join()")
        == "'1,é,2,true,5,g,5,b'"
    )
    assert (
        second.value("[shared === alike.shared, cycle.self === cycle, old instanceof Array, nothing]")
        == "[ true, true, true, undefined ]"
    )
    assert second.value("n = 3; [twice(1), Cat.make().speak(), new Cat() instanceof Animal]") == "[ 12, 'hm', true ]"
    assert second.eval("let text2 = 1; function area() { return 0 }")["outcome"] == "ok"
    assert second.eval("let n = 5; const twice2 = 1")["outcome"] == "ok"


def test_what_cannot_move_stays_behind_with_the_reason(node: Any) -> None:
    node.eval(MOVED)
    node.eval(STAYED)
    node.stdout.clear()
    dumped = node.ask(op="dump", max=1_000_000)
    left = {entry["name"]: entry["why"] for entry in dumped["skipped"]}
    assert left == {
        "bound": "a function that is not JavaScript",
        "closed": "a function that uses variables of the code around it",
        "Counted": "a class with properties of its own",
        "fnIn": "holds a function",
        "getter": "holds a getter or setter",
        "holds": "holds an instance of Animal",
        "instance": "is an instance of Animal",
        "keyed": "holds a property that is named by a symbol",
        "method": "a function whose definition cannot be run again alone",
        "namespace": "is a module",
        "native": "a function that is not JavaScript",
        "promise": "is a promise",
        "proxy": "is a proxy",
        "server": "is an instance of Server",
        "sym": "a symbol",
        "weak": "is an instance of WeakMap",
    }
    assert bytes(node.stdout) == b""
    assert dumped["count"] == 16


def test_a_dump_beyond_its_bound_is_refused_and_a_bad_one_too(node: Any) -> None:
    node.eval("let big = 'x'.repeat(1_000_000)")
    assert "more than 5000" in node.ask(op="dump", max=5000)["error"]
    for data in ("", "bm9uZQ==", "{}", '{"v":1,"sources":{},"globals":[],"values":"AAAA"}', None):
        assert "cannot be read" in node.ask(op="restore", data=data)["error"]
    assert node.value("big.length") == "1000000"


def test_a_restore_takes_the_place_of_what_is_there(start_node: Callable[..., Any]) -> None:
    first, second = start_node(), start_node()
    first.eval("let a = 1, b = 2, c = 3; d = 4")
    second.eval("let a = 0; const b = 0; var c = 0; let d = 0")
    restored = second.ask(op="restore", data=first.ask(op="dump", max=100_000)["data"])
    assert second.value("[a, b, c, d]") == "[ 1, 2, 0, 4 ]"
    assert restored["skipped"] == [{"name": "c", "why": "the session has declared it with var or function"}]
    assert restored["count"] == 3

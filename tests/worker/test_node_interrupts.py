"""The node driver: interrupts stop what runs, and nothing else."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest

CHILD = "require('child_process').execSync('echo going >&2; %s', { stdio: ['pipe', 'pipe', 2] })"
GO = "globalThis.go = () => console.log('going')"  # told where the code is that is to be interrupted


@pytest.mark.parametrize(
    "code",
    [
        "go(); while (true) {}",
        "go(); for (;;) console.log('x')",
        "go(); for (;;) { try { JSON.parse('{') } catch {} }",
        "try { go(); for (;;); } catch { console.log('caught') } finally { console.log('finally') }",
        "(() => { go(); for (;;); })()",
        "class A { static { go(); for (;;); } }",
        "[3, 2, 1].sort(() => { go(); for (;;); })",
        "go(); /(a+)+$/.test('a'.repeat(40) + 'b')",
        "({ [require('util').inspect.custom]() { go(); for (;;); } })",
        "throw Object.defineProperty(new Error(), 'message', { get() { go(); for (;;); } })",
        "await null; go(); for (;;);",
        "await new Promise((r) => setTimeout(r, 1)); go(); for (;;);",
        "go(); for (;;) await null",
        "async function* f() { go(); for (;;) yield 1 }\nfor await (const _ of f());",
        "setTimeout(() => { go(); for (;;); }, 1); await new Promise(() => {})",
        "setImmediate(() => { go(); for (;;); }); await new Promise(() => {})",
        "process.nextTick(() => { go(); for (;;); }); await new Promise(() => {})",
        "setImmediate(go); await new Promise(() => {})",
        "setImmediate(go); await new Promise((r) => setTimeout(r, 1e6))",
        "await import('data:text/javascript,go();for(;;);')",
        "go(); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
        "go(); fs.readSync(0, Buffer.alloc(9))",
        "setImmediate(go); for await (const _ of process.stdin);",
        CHILD % "sleep 100",
        CHILD % "sleep 100; echo on",
        "process.on('SIGINT', () => console.log('handler')); go(); for (;;);",
        "process.removeAllListeners(); process.removeAllListeners('SIGINT'); go(); for (;;);",
        "require('domain').create().run(() => { go(); for (;;); })",
        "process.setUncaughtExceptionCaptureCallback(() => {}); go(); for (;;);",
        "Error.prepareStackTrace = () => 1; Error.stackTraceLimit = 0; go(); for (;;);",
    ],
)
def test_an_interrupt_ends_the_eval_and_keeps_the_state(node: Any, code: str) -> None:
    node.eval(f"let kept = 1; {GO}")
    node.begin(code, stdin=True)
    node.until(lambda: b"going\n" in node.stdout + node.stderr)
    node.interrupt()
    answer = node.result()
    assert answer["outcome"] == "interrupted"
    assert answer["ex"]["type"] == "Interrupted"
    assert answer.get("value") is None
    assert node.value("kept") == "1"
    assert node.value("await new Promise((r) => setTimeout(() => r(kept + 1), 1))") == "2"
    for text in (b"caught", b"finally", b"handler", b"\non"):
        assert text not in node.stdout


def test_an_interrupt_that_comes_before_the_eval_begins_is_not_lost(node: Any) -> None:
    for _ in range(100):
        node.start_eval("for (;;);")
        node.interrupt()
        assert node.result()["outcome"] == "interrupted"


def test_a_late_interrupt_never_reaches_the_next_eval(node: Any) -> None:
    for n in range(200):
        assert node.value(f"{n} + 1") == str(n + 1)
        node.interrupt()
        assert node.value(f"let x = {n}\nx") == str(n)


def test_signals_alone_and_interrupts_of_nothing_do_no_harm(node: Any) -> None:
    for _ in range(50):
        node.signal()
    assert node.value("let s = 0; for (let i = 0; i < 1e6; i++) s += i; s") == "499999500000"
    node.number += 1
    node.send(op="interrupt", n=1)
    node.signal()
    assert node.value("await new Promise((r) => setTimeout(() => r('on'), 20))") == "'on'"


def test_an_interrupt_wakes_nobody_elses_handler(node: Any) -> None:
    node.eval("process.on('SIGINT', () => console.log('handler'))")
    node.begin("await new Promise(() => {})")
    node.interrupted()
    node.eval("await new Promise((r) => setTimeout(r, 20))")
    assert b"handler" not in bytes(node.stdout + node.late)


def test_an_interrupt_in_the_midst_of_a_print_leaves_the_streams_whole(node: Any) -> None:
    for n in range(40):
        node.begin("for (;;) console.log('x'.repeat(100_000))")
        node.interrupted()
        node.stdout.clear()
        node.eval(f"console.log({n})")
        assert bytes(node.stdout).endswith(b"%d\n" % n)


def test_a_module_whose_import_was_interrupted_can_be_imported(node: Any) -> None:
    for module in ("os", "zlib", "http", "readline/promises", "node:test", "worker_threads"):
        node.start_eval(f"await import('{module}')")
        node.interrupt()
        node.result()
        assert node.value(f"typeof (await import('{module}'))") == "'object'"


def test_timers_of_an_interrupted_eval_go_on_and_are_late(node: Any) -> None:
    node.begin("const t = setInterval(() => console.log('tick'), 5); await new Promise(() => {})")
    node.until(lambda: b"tick" in node.stdout)
    node.interrupted()
    before = node.late.count(b"tick")
    node.until(lambda: node.late.count(b"tick") > before + 3)
    node.eval("clearInterval(t)")


def test_an_abandoned_promise_may_settle_without_harm(node: Any) -> None:
    node.begin(
        "var settle; await new Promise((resolve, reject) => { settle = { resolve, reject }; console.log('set') });"
        "console.log('went on')"
    )
    node.until(lambda: b"set\n" in node.stdout)
    node.interrupted()
    assert node.value("settle.reject(new Error('late')); await null; 1") == "1"
    assert node.value("await new Promise((r) => setTimeout(() => r(2), 5))") == "2"
    assert bytes(node.stderr) == b""


def test_children_of_earlier_evals_are_not_interrupted(node: Any) -> None:
    node.eval("const child = require('child_process').spawn('sleep', ['100'], { stdio: 'ignore' })")
    node.begin(CHILD % "sleep 100")
    node.until(lambda: b"going\n" in node.stderr)
    node.interrupted()
    assert node.value("await new Promise((r) => setTimeout(() => r(child.exitCode ?? child.signalCode), 20))") == "null"
    assert node.value("child.kill(); await new Promise((r) => child.on('exit', (_, s) => r(s)))") == "'SIGTERM'"


CODES = (
    "1 + 1",
    "for (let i = 0; i < 2e5; i++);",
    "for (let i = 0; i < 50; i++) await null",
    "await new Promise((r) => setTimeout(r, 2))",
    "throw new Error('x')",
    "console.log('x')",
    "setTimeout(() => { for (const e = Date.now() + 3; Date.now() < e;); }, 1); await new Promise((r) => setTimeout(r, 4))",
    "process.exit(2)",
    "let z = ;",
    "Array.from({ length: 1e4 }, (_, i) => ({ i }))",
    "await import('os')",
    "await new Promise((r) => require('child_process').spawn('true').on('exit', r))",
    "for (;;);",
    "await new Promise(() => {})",
)


def test_a_storm_of_interrupts_gets_one_result_an_eval(node: Any) -> None:
    chance = random.Random(7)
    node.eval("let kept = 1")
    outcomes = {"ok": 0, "error": 0, "interrupted": 0}
    for _ in range(600):
        code = chance.choice(CODES)
        node.start_eval(code)
        if code in CODES[-2:] or chance.random() < 0.3:
            time.sleep(chance.random() * 0.006)
            node.interrupt()
        elif chance.random() < 0.3:
            node.signal()
        outcomes[node.result()["outcome"]] += 1
        if chance.random() < 0.2:
            node.interrupt()
    assert min(outcomes.values()) > 50
    assert node.process.poll() is None
    assert node.value("kept") == "1"
    assert node.hang_up() == 0


def test_the_signal_is_sent_to_the_interpreter_alone(node: Any) -> None:
    node.begin("for (;;);")
    node.send(op="interrupt", n=node.number)  # the frame is enough; the signal only has to be harmless
    assert node.result()["outcome"] == "interrupted"
    os.kill(node.process.pid, signal.SIGINT)
    assert node.value("1") == "1"

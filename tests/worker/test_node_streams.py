"""The node driver: output, late output, input, descriptors, and the end of the process."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest


def test_output_is_in_its_pipe_before_the_result(node: Any) -> None:
    node.eval("console.log(1 + 1); console.error('err'); process.stdout.write('raw')")
    assert bytes(node.stdout) == b"2\nraw"
    assert bytes(node.stderr) == b"err\n"
    for n in range(50):
        node.stdout.clear()
        node.eval(
            f"console.log('line {n}'); Promise.resolve().then(() => console.log('then')).then(() => console.log('and then'))"
        )
        assert bytes(node.stdout) == b"line %d\nthen\nand then\n" % n


def test_all_prints_of_one_eval_are_its_own(node: Any) -> None:
    node.eval("console.log(1); await new Promise((r) => setTimeout(r, 30)); console.log(2)")
    assert bytes(node.stdout) == b"1\n2\n"


@pytest.mark.parametrize("where", ["console.log", "process.stdout.write", "console.error"])
def test_ten_megabytes_at_once_arrive_whole(node: Any, where: str) -> None:
    assert node.eval(f"{where}('x'.repeat(10_000_000)); 'done'")["value"] == "'done'"
    sink = node.stderr if "error" in where else node.stdout
    assert len(sink.rstrip(b"\n")) == 10_000_000


def test_a_write_tells_its_callback_and_refuses_what_is_no_text(node: Any) -> None:
    assert node.value("await new Promise((r) => process.stdout.write('ff', 'hex', r))") == "null"
    assert node.value("await new Promise((r) => process.stdout.write(new Uint8Array([65]), r))") == "null"
    node.eval("await require('stream/promises').pipeline(['b', 'c'], process.stderr)")
    assert bytes(node.stdout) == b"\xffA"
    assert bytes(node.stderr) == b"bc"
    assert node.error("process.stdout.write(5)")["ex"]["type"] == "TypeError"


def test_text_of_children_and_raw_writes_keep_their_order(node: Any) -> None:
    node.eval(
        "console.log('a'); require('fs').writeSync(1, 'b\\n')\n"
        "require('child_process').execSync('echo c; echo d >&2', { stdio: 'inherit' }); console.log('e')\n"
        "require('child_process').spawnSync('echo', ['f'], { stdio: [process.stdin, process.stdout, process.stderr] })"
    )
    assert bytes(node.stdout) == b"a\nb\nc\ne\nf\n"
    assert bytes(node.stderr) == b"d\n"


def test_streams_that_the_code_ended_are_back_for_the_next_eval(node: Any) -> None:
    for code in ("process.stdout.end(); process.stderr.destroy()", "process.stdin.destroy()", "console._stdout.end()"):
        node.eval(code)
        node.stdout.clear()
        node.eval("console.log('here')")
        assert bytes(node.stdout) == b"here\n"


def test_what_earlier_evals_print_is_late(node: Any) -> None:
    node.eval("const t = setInterval(async () => { console.log('tick'); await null; console.error('tock') }, 5); 1")
    node.until(lambda: node.late.count(b"tick\ntock\n") > 3)
    node.eval("console.log('mine'); await new Promise((r) => setTimeout(r, 60)); console.log('mine too')")
    assert bytes(node.stdout) == b"mine\nmine too\n"
    assert bytes(node.stderr) == b""
    node.eval("clearInterval(t)")


def test_a_server_of_an_earlier_eval_answers_and_logs_late(node: Any) -> None:
    node.eval(
        "const http = require('http'); const server = http.createServer((q, s) => { console.log('asked'); s.end('hello') })\n"
        "await new Promise((r) => server.listen(0, '127.0.0.1', r)); const { port } = server.address()"
    )
    assert node.value("await (await fetch(`http://127.0.0.1:${port}/`)).text()") == "'hello'"
    node.until(lambda: b"asked\n" in node.late)
    assert bytes(node.stdout) == b""
    node.eval("server.closeAllConnections(); server.close()")


ASKS = (
    "const { createInterface } = require('readline/promises'); const rl = createInterface({ input: process.stdin })\n"
)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (
            ASKS + "const a = await rl.question('? '); const b = await rl.question('? '); rl.close(); [a, b]",
            "[ 'one', 'two' ]",
        ),
        (
            "const got = []; for await (const line of require('readline').createInterface({ input: process.stdin })) { got.push(line); if (got.length === 2) break }; got",
            "[ 'one', 'two' ]",
        ),
        (
            "const b = Buffer.alloc(10); let n = 0; while (n < 8) n += fs.readSync(0, b, n); String(b.subarray(0, n))",
            "'one\\ntwo\\n'",
        ),
        (
            "const it = process.stdin.iterator(); const c = String((await it.next()).value); const d = String((await it.next()).value); c + d",
            "'one\\ntwo\\n'",
        ),
        (
            "await new Promise((r) => { let s = ''; process.stdin.on('data', (d) => { s += d; if (s.length > 5) r(s) }) })",
            "'one\\ntwo\\n'",
        ),
    ],
)
@pytest.mark.parametrize("early", [True, False], ids=["input first", "asked for input"])
def test_code_reads_its_input(node: Any, code: str, value: str, early: bool) -> None:
    if early:
        os.write(node.stdin_fd, b"one\ntwo\n")
        assert node.value(code, stdin=True) == value
        assert node.input_requests <= 1
    else:
        assert node.value(code, lines=("one\n", "two\n"), stdin=True) == value
        assert node.input_requests >= 2


def test_an_interface_lives_on_and_each_question_is_asked_for(node: Any) -> None:
    node.eval(ASKS, stdin=True)
    assert node.input_requests == 0
    assert node.value("await rl.question('name? ')", lines=("ada\n",), stdin=True) == "'ada'"
    assert node.value("await new Promise((r) => setTimeout(() => r('no read'), 20))", stdin=True) == "'no read'"
    assert node.input_requests == 1
    os.write(node.stdin_fd, b"kept\nfor later\n")
    assert node.value("await rl.question('next? ')", stdin=True) == "'kept'"
    assert node.value("await new Promise((r) => setTimeout(() => r('no read'), 20))", stdin=True) == "'no read'"
    assert node.value("await rl.question('last? ')", stdin=True) == "'for later'"


def test_an_eval_without_input_reads_an_end(node: Any) -> None:
    os.write(node.stdin_fd, b"not for it\n")
    assert node.value("[fs.readSync(0, Buffer.alloc(9)), fs.readFileSync(0, 'utf8')]") == "[ 0, '' ]"
    assert node.value("let s = ''; for await (const d of process.stdin) s += d; s") == "''"
    assert "the input ended" in node.error(ASKS + "await rl.question('? ')")["ex"]["message"]
    assert node.input_requests == 0
    assert (
        node.value("const b = Buffer.alloc(99); String(b.subarray(0, fs.readSync(0, b)))", stdin=True)
        == "'not for it\\n'"
    )


def test_a_closed_input_is_an_end(node: Any) -> None:
    assert node.process.stdin is not None
    os.write(node.stdin_fd, b"rest")
    os.close(os.dup(node.stdin_fd))
    node.process.stdin.close()
    assert node.value("fs.readFileSync('/dev/stdin', 'utf8')", stdin=True) == "'rest'"
    assert node.value("let s = 'end'; for await (const d of process.stdin) s += d; s", stdin=True) == "'end'"


def test_children_get_neither_the_control_channel_nor_the_late_pipe(node: Any) -> None:
    found = "require('child_process').execFileSync('ls', ['-l', '/proc/self/fd']).toString()"
    listed = node.value(
        f"({found}).split('\\n').filter((l) => /socket|pipe/.test(l)).map((l) => l.split(' ').at(-3)).sort().join()"
    )
    assert listed == "'0,1,2'"
    assert node.value("require('child_process').spawnSync('sh', ['-c', 'echo x >&3'], { stdio: 'pipe' }).status") != "0"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_driver_uses_no_processor_time(node: Any) -> None:
    node.eval(ASKS + "setTimeout(() => {}, 1e6)", stdin=True)
    before = cpu_seconds(node.process.pid)
    time.sleep(1)  # there is nothing to wait for: the point is that nothing happens
    assert cpu_seconds(node.process.pid) - before <= 0.02


@pytest.mark.parametrize(
    "code",
    [
        "1",
        "setInterval(() => {}, 1); process.on('exit', () => { for (;;); }); process.exitCode = 5",
        "require('net').createServer().listen(0, '127.0.0.1')",
        "new Worker('for (;;);', { eval: true })",
        "process.stdin.resume()",
    ],
)
def test_the_process_ends_with_0_when_the_worker_hangs_up(node: Any, code: str) -> None:
    node.eval(f"const {{ Worker }} = require('worker_threads'); {code}; 0", stdin=True)
    assert node.hang_up() == 0
    assert bytes(node.stderr) == b""


def test_a_busy_driver_ends_too_when_the_worker_hangs_up(node: Any) -> None:
    node.begin("for (;;);")
    assert node.hang_up() == -signal.SIGKILL


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\0\0\2{]",
        b"\0\0\0\2[]",
        b"\xff\0\0\0",
        b'\0\0\0\x0e{"op":"quux!"}',
        b'\0\0\0\x14{"op":"quux!","n":1}',
        b'\0\0\0\x13{"op":"eval","n":1}',
        b'\0\0\0\x13{"op":"vars","n":1}',
    ],
)
def test_what_the_contract_does_not_know_ends_the_process_with_70(node: Any, frame: bytes) -> None:
    node.control.sendall(frame)
    assert node.exit_code() == 70


def test_frames_may_come_in_pieces_and_many_at_once(node: Any) -> None:
    code = "'" + "x" * 3_000_000 + "'.length"
    assert node.value(code) == "3000000"
    node.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = b'{"op":"eval","n":77,"code":"7","name":"<w:1>","silent":false,"stdin":false,"history":true}'
    for byte in len(body).to_bytes(4, "big") + body:
        node.control.sendall(bytes([byte]))
    assert node.result(77)["value"] == "7"


def test_a_child_that_outlives_its_eval_prints_without_harm(node: Any) -> None:
    node.eval(
        "const child = require('child_process').spawn('sh', ['-c', 'sleep 0.1; echo late child'], { stdio: 'inherit' })"
    )
    assert node.value("1") == "1"
    node.until(lambda: b"late child" in node.stdout)

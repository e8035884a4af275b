"""`read` over the real wire: pages, one stream, filtered, and by clients of every make."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from kit import BrokerProcess, Wire
from replctl import AsyncClient, Client

PRINTS = "import sys\nfor n in range(5):\n    print('out', n)\n    sys.stdout.flush()\n    print('err', n, file=sys.stderr)\n7"


def test_pages_of_an_output_join_to_the_whole_and_end_with_the_answer(wire: Wire) -> None:
    number = wire.run("for n in range(1000): print(n)\n'end'")["eval-id"]
    text, offset, pages = "", 0, 0
    while True:
        page = wire.ask("read", session="s", eval_id=number, offset=offset, max_bytes=1000)
        text, offset, pages = text + page.out, page["offset"], pages + 1
        assert page.value == "'end'"
        if not page.get("truncated"):
            break
    assert text == "".join(f"{n}\n" for n in range(1000))
    assert pages == 4


def test_one_stream_can_be_read_without_the_other(wire: Wire) -> None:
    number = wire.run(PRINTS)["eval-id"]
    out, err, both = (wire.ask("read", session="s", eval_id=number, stream=name) for name in ("out", "err", "both"))
    assert (out.out, out.err) == ("".join(f"out {n}\n" for n in range(5)), "")
    assert (err.out, err.err) == ("", "".join(f"err {n}\n" for n in range(5)))
    assert (both.out, both.err) == (out.out, err.err)


def test_grep_keeps_lines_with_a_fixed_text_and_takes_it_for_no_pattern(wire: Wire) -> None:
    number = wire.run("print('a.c')\nprint('abc')\nprint('xa.cx')")["eval-id"]
    assert wire.ask("read", session="s", eval_id=number, grep="a.c").out == "a.c\nxa.cx\n"
    assert wire.ask("read", session="s", eval_id=number, grep="(").out == ""


def test_grep_finds_lines_that_were_printed_in_pieces_and_between_those_of_the_other_stream(wire: Wire) -> None:
    code = "import os, time\nfor n in range(4):\n    os.write(1, b'nee')\n    time.sleep(0.02)\n"
    code += "    os.write(2, b'x' * 5000 + b'\\n')\n    time.sleep(0.02)\n    os.write(1, b'dle %d\\nhay\\n' % n)\n"
    number = wire.run(code + "os.write(1, b'the last needle')")["eval-id"]
    found = wire.ask("read", session="s", eval_id=number, grep="needle")
    assert (found.out, found.err) == ("".join(f"needle {n}\n" for n in range(4)) + "the last needle", "")


def test_who_follows_an_output_is_told_what_it_did_not_get(start: Callable[..., BrokerProcess]) -> None:
    with start("limits.max-output-bytes=1000").wire() as wire:
        code = "print('a' * 49, flush=True)\ninput()\nprint('b' * 4999)"
        running = wire.send("eval", code=code, session="s", if_missing="create")
        number = wire.until(running, "need-input")["eval-id"]
        whole = wire.send("read", session="s", eval_id=number, wait_ms=20_000)
        short = wire.ask("read", session="s", eval_id=number, wait_ms=20_000, max_bytes=10)
        assert (short.status, short.out, short["offset"]) == (["done", "running"], "a" * 10, 10)
        other = wire.send("read", session="s", eval_id=number, wait_ms=20_000, stream="err")
        wire.ask("stdin", session="s", input="\n")
        results = {request: wire.answer(request) for request in (whole, other)}
    assert (results[whole]["truncated"], results[whole]["dropped-bytes"]) == (True, 50 + 5000 - 1000)
    assert results[whole].out == "a" * 49 + "\n" + "b" * 950 + "…[truncated]"
    assert (results[other].get("truncated"), results[other].get("dropped-bytes")) == (None, None)


def test_values_count_as_what_a_session_keeps_for_read(start: Callable[..., BrokerProcess]) -> None:
    with start("limits.output-store-bytes=20000").wire() as wire:
        wire.run("class J:\n    def _repr_json_(self): return {'x': 'y' * 8000}\nj = J()")
        numbers = [wire.run("j", mime=["application/json"])["eval-id"] for _ in range(4)]
        kept = [wire.ask("read", session="s", eval_id=number).status for number in numbers]
        assert kept == [["done", "error", "eval-not-found"]] * 2 + [["done"]] * 2


def test_an_eval_that_never_was_cannot_be_read(wire: Wire) -> None:
    wire.run("1")
    assert wire.ask("read", session="s", eval_id=99).status == ["done", "error", "eval-not-found"]


def test_the_async_client_runs_evals_of_many_sessions_on_one_connection(wire: Wire, broker: BrokerProcess) -> None:
    wire.run("shared = 20")

    async def work() -> list[str | None]:
        async with AsyncClient(broker.endpoint, agent="async", start=False) as client:
            results = await asyncio.gather(*(client.eval(f"{n} * 2", session=f"a{n}") for n in range(6)))
            late = await client.eval("input()", session="s", wait=0.01)
            await client.stdin("s", "x\n")
            read = await client.read("s", late.eval_id or 0, wait=20)
            shared = await client.eval("shared + 1", session="s")
            return [result.value for result in (*results, read, shared)]

    assert asyncio.run(work()) == ["0", "2", "4", "6", "8", "10", "'x'", "21"]


def test_a_broker_on_loopback_tcp_is_reached_as_on_ipc(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    broker.stop()
    broker.endpoint = f"tcp://127.0.0.1:{_free_port()}"
    broker.start()
    with Client(broker.endpoint, start=False) as client:
        assert client.eval("6*7", session="t").value == "42"
        assert client.reset("t").epoch == 2


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Client and AsyncClient against a scripted ROUTER."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from replctl import AsyncClient, Client, ReplError
from replctl.client.transport import Transport
from stub_broker import Script, Send, StubBroker, send_done

Start = Callable[[Script], StubBroker]


def answer(request: dict[str, Any], say: Send) -> None:
    """A broker that is content with everything."""
    if request["op"] == "eval":
        say(out="hello\n")
        say(value=request["code"])
        send_done(say)
    else:
        say(status=["done"], session="u-1", name=request.get("session"), sessions=[], jobs=[], info={"a": 1}, stats={})


def test_an_eval_gathers_output_value_and_end(stub: Start) -> None:
    with Client(stub(answer).endpoint) as client:
        got = client.eval("6*7", session="work", timeout=2.0)
    assert (got.value, got.out, got.eval_id, got.ok) == ("6*7", "hello\n", 1, True)


def test_many_evals_go_over_one_connection(stub: Start) -> None:
    with Client(stub(answer).endpoint) as client:
        assert [client.eval(str(n)).value for n in range(200)] == [str(n) for n in range(200)]


def test_every_method_asks_the_operation_of_its_name(stub: Start) -> None:
    broker = stub(answer)
    with Client(broker.endpoint, agent="me") as client:
        client.new("w", env={"A": "1"}, reuse=True)
        client.reset("w"), client.interrupt("w", 3), client.close("w"), client.clone("w", "v"), client.clear("w")
        client.stdin("w", "x\n"), client.sessions(), client.jobs("w"), client.info("w", variables=False)
        client.read("w", 2, wait=1), client.stats(), client.describe(), client.ping(), client.shutdown()
        client.share("w", "read"), client.share("w", "none", "ada"), client.transfer("w", "ada")
        client.allow_hosts(["a.test"], "w", 1.5)
    results = [broker.next_request() for _ in range(19)]
    assert [request["op"] for request in results] == [
        "new-session",
        "reset",
        "interrupt",
        "close",
        "clone",
        "clear-bindings",
        "stdin",
        "ls-sessions",
        "jobs",
        "info",
        "read",
        "stats",
        "describe",
        "ping",
        "shutdown",
        "share",
        "share",
        "transfer",
        "allow-hosts",
    ]
    assert {request["agent"] for request in results} == {"me"}
    assert (results[0]["env"], results[0]["if-exists"]) == (["A=1"], "reuse")
    assert [(request.get("who"), request.get("level")) for request in results[-4:-1]] == [
        ("*", "read"),
        ("ada", "none"),
        ("ada", None),
    ]
    assert (results[-1]["hosts"], results[-1]["for-ms"]) == (["a.test"], 1500)
    assert (results[2]["interrupt-id"], results[10]["eval-id"], results[10]["wait-ms"]) == (3, 2, 1000)


def test_a_refusal_of_any_operation_raises(stub: Start) -> None:
    with (
        Client(stub(lambda _, say: say(status=["done", "error", "session-not-found"], err="no")).endpoint) as client,
        pytest.raises(ReplError) as caught,
    ):
        client.reset("nobody")
    assert (caught.value.code, caught.value.exit) == ("session-not-found", 4)


def test_a_broker_that_dies_in_the_middle_is_noticed_and_what_came_is_kept(stub: Start) -> None:
    def script(_: dict[str, Any], say: Send) -> None:
        say(out="so far")
        raise ConnectionAbortedError

    with Client(stub(script).endpoint, start=False) as client, pytest.raises(ReplError) as caught:
        client.eval("1")
    assert caught.value.code == "broker-lost"
    assert caught.value.result is not None
    assert caught.value.result.out == "so far"


def test_a_client_that_lost_its_broker_finds_the_next_one(stub: Start) -> None:
    def script(request: dict[str, Any], say: Send) -> None:
        if request["code"] == "die":
            raise ConnectionAbortedError
        answer(request, say)

    first = stub(script)
    with Client(first.endpoint, start=False) as client:
        with pytest.raises(ReplError):
            client.eval("die")
        first.stop()
        second = StubBroker(first.endpoint, script)
        try:
            assert client.eval("2").value == "2"
        finally:
            second.stop()


def test_where_nothing_listens_there_is_no_broker(short: os.PathLike[str]) -> None:
    with pytest.raises(ReplError) as caught:
        Client(f"ipc://{short}/none.sock", start=False)
    assert caught.value.code == "no-broker"


def test_input_is_answered_once_by_a_text_and_each_time_by_a_function(stub: Start) -> None:
    waiting: dict[str, Send] = {}

    def script(request: dict[str, Any], say: Send) -> None:
        if request["op"] == "eval":
            waiting["eval"] = say
            say(status=["need-input"], session="u-1")
        else:
            say(status=["done"], delivered=["u-1"])
            waiting["eval"](value=request["input"])
            send_done(waiting["eval"])

    with Client(stub(script).endpoint) as client:
        assert client.eval("input()", stdin="yes\n").value == "yes\n"
        assert client.eval("input()", stdin=lambda: "asked\n").value == "asked\n"


def test_ctrl_c_in_a_program_interrupts_the_eval_and_waits_for_its_end(stub: Start) -> None:
    waiting: dict[str, Send] = {}

    def script(request: dict[str, Any], say: Send) -> None:
        if request["op"] == "eval":
            waiting["eval"] = say
            os.kill(os.getpid(), signal.SIGINT)
        else:
            say(status=["done"], interrupted=["u-1"])
            send_done(waiting["eval"], status=["done", "interrupted"])

    broker = stub(script)
    with Client(broker.endpoint) as client, pytest.raises(KeyboardInterrupt):
        client.eval("while True: pass", session="work")
    assert [broker.next_request()["op"] for _ in range(2)] == ["eval", "interrupt"]


def test_async_evals_run_at_the_same_time_and_are_told_apart(stub: Start) -> None:
    held: list[tuple[dict[str, Any], Send]] = []

    def script(request: dict[str, Any], say: Send) -> None:
        held.append((request, say))
        for each, its in reversed(held) if len(held) == 10 else ():
            answer(each, its)

    async def main() -> list[str | None]:
        async with AsyncClient(stub(script).endpoint) as client:
            got = await asyncio.gather(*(client.eval(str(n), session=f"s{n}") for n in range(10)))
        return [result.value for result in got]

    assert asyncio.run(main()) == [str(n) for n in range(10)]


def test_the_async_client_has_every_name_of_the_client() -> None:
    driving = {"fetch_dropped", "send", "wait", "poll", "send_nowait", "abandon", "wait_for_shutdown"}
    names = {name for name in vars(Client) if not name.startswith("_")} - driving
    assert names <= set(vars(AsyncClient))


def test_cancelling_an_await_leaves_the_eval_alone_and_the_connection_usable(stub: Start) -> None:
    def script(request: dict[str, Any], say: Send) -> None:
        if request.get("code") != "never":
            answer(request, say)

    broker = stub(script)

    async def main() -> str | None:
        async with AsyncClient(broker.endpoint) as client:
            task = asyncio.create_task(client.eval("never"))
            await asyncio.to_thread(broker.next_request)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return (await client.eval("after")).value

    assert asyncio.run(main()) == "after"
    assert broker.next_request()["op"] == "eval"


def test_the_async_client_notices_a_broker_that_dies(stub: Start) -> None:
    def script(_request: dict[str, Any], _say: Send) -> None:
        raise ConnectionAbortedError

    async def main() -> None:
        async with AsyncClient(stub(script).endpoint, start=False) as client:
            await client.eval("1")

    with pytest.raises(ReplError) as caught:
        asyncio.run(main())
    assert caught.value.code == "broker-lost"


def test_live_output_that_was_dropped_on_the_way_is_fetched(stub: Start) -> None:
    def script(request: dict[str, Any], say: Send) -> None:
        if request["op"] == "eval":
            say(out="a")
            say(**{"status": ["output-dropped"], "dropped-bytes": 1})
            say(out="c")
        else:
            say(out="abc")
        send_done(say)

    async def later(endpoint: str) -> str:
        async with AsyncClient(endpoint) as client:
            return (await client.eval("x")).out

    endpoint = stub(script).endpoint
    with Client(endpoint) as client:
        got = client.eval("x")
    assert (got.out, got.truncated, got.dropped_bytes) == ("abc", None, None)
    assert asyncio.run(later(endpoint)) == "abc"


@pytest.mark.parametrize("milliseconds", [None, 60_000])
def test_a_long_wait_looks_up_now_and_then_so_that_a_signal_right_before_it_is_heard(
    stub: Start, milliseconds: int | None
) -> None:
    line = Transport(stub(lambda *_: None).endpoint)
    assert line.receive(milliseconds) is None
    assert line.wait(milliseconds) is False
    line.close()


def test_patience_that_runs_out_is_an_error_whatever_fraction_of_a_millisecond_is_left(stub: Start) -> None:
    with Client(stub(lambda _request, _say: None).endpoint) as client:
        for tenths in range(50, 90):
            asked = client.send("ping", {})
            with pytest.raises(ReplError, match="no reply within"):
                client.wait(asked, tenths / 10_000)

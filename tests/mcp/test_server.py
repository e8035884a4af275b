"""The MCP server over stdio, driven by the official client, against a real broker."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ImageContent

from kit import BrokerProcess, is_alive, processes_with, wait_until
from mcp_kit import HELLO, Connect, finish, receive, run, send_line, send_request, start_raw, text
from stub_broker import Script, Send, StubBroker, send_done

pytestmark = pytest.mark.anyio
ERAS = ("legacy", "auto")


async def until(what: Any, why: str) -> Any:
    """Poll an awaitable until it holds."""
    with anyio.fail_after(20):
        while not (value := await what()):
            await anyio.sleep(0.01)
    assert value, why
    return value


@pytest.mark.parametrize("mode", ERAS)
async def test_both_eras_of_the_protocol_are_served(connect: Connect, mode: str) -> None:
    async with connect(mode=mode) as client:
        assert client.protocol_version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode]
        assert client.server_info is not None
        assert client.server_info.name == "replctl"
        assert "info(what=" in (client.instructions or "")
        result = await run(client, "6*7", f"era-{mode}")
        assert text(result).splitlines()[0] == "42"
        assert not result.is_error


async def test_tools_say_what_they_may_do(connect: Connect) -> None:
    async with connect() as client:
        listed = await client.list_tools()
    tools = {tool.name: tool for tool in listed.tools}
    assert len(listed.model_dump_json(by_alias=True, exclude_none=True)) <= 4100  # 4000 for the tools
    read_only = [name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint]
    assert read_only == ["read", "info"]
    assert tools["eval"].annotations is None  # MCP's defaults: destructive, in an open world
    assert tools["interrupt"].annotations is not None
    assert tools["interrupt"].annotations.destructive_hint is False
    assert not any(tool.output_schema for tool in tools.values())


async def test_code_answers_with_text_alone_and_its_handle_beside_it(connect: Connect) -> None:
    async with connect() as client:
        result = await run(client, "print('hi')", "plain")
    assert result.structured_content is None
    assert result.meta is not None
    assert result.meta["replctl/eval"] == {
        "status": "ok",
        "session": "plain",
        "eval_id": 1,
        "epoch": 1,
        "state": "kept",
    }


async def test_programs_may_have_structured_content(connect: Connect) -> None:
    async with connect("--structured") as client:
        tools = await client.list_tools()
        result = await run(client, "print('hi')\n42", "structured")
    assert all(tool.output_schema for tool in tools.tools)
    assert result.structured_content["value"] == "42"
    assert result.structured_content["out"] == "hi"


async def test_what_was_looked_up_is_structured_for_programs_alone(connect: Connect) -> None:
    async with connect() as client:
        assert (await client.call_tool("info", {"session": "facts"})).structured_content is None
    async with connect("--structured") as client:
        await run(client, "n = 5", "facts")
        result = await client.call_tool("info", {"session": "facts", "what": "variables"})
    assert result.structured_content == {"status": "ok", "variables": [{"name": "n", "type": "int", "preview": "5"}]}


async def test_errors_are_results_and_unknown_tools_are_faults(connect: Connect) -> None:
    async with connect() as client:
        assert (await run(client, "1/0", "errors")).is_error
        assert "unknown field" in text(await client.call_tool("eval", {"code": "1", "nonsense": True}))
        with pytest.raises(MCPError, match="Unknown tool: evil"):
            await client.call_tool("evil", {})


async def test_agents_with_sessions_of_their_own_never_meet(connect: Connect, broker: BrokerProcess) -> None:
    async with connect("--agent", "ada") as ada, connect("--agent", "bob") as bob:
        results = await asyncio.gather(run(ada, "x = 'a'", "ada-1"), run(bob, "x = 'b'", "bob-1"))
        assert not any(result.is_error for result in results)
        for _ in range(5):
            a, b = await asyncio.gather(run(ada, "x", "ada-1"), run(bob, "x", "bob-1"))
            assert (text(a)[:3], text(b)[:3]) == ("'a'", "'b'")
    with broker.wire() as wire:
        agents = {entry["name"]: entry["agent"] for entry in wire.ask("ls-sessions")["sessions"]}
    assert (agents["ada-1"], agents["bob-1"]) == ("ada", "bob")


async def test_a_session_outlives_the_connection(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "kept = 1", "outlive")
    async with connect() as client:
        assert text(await run(client, "kept", "outlive")).splitlines()[0] == "1"


async def test_calls_run_side_by_side(connect: Connect, broker: BrokerProcess) -> None:
    opened = broker.directory / "gate"
    code = f"import os, time\nwhile not os.path.exists({str(opened)!r}): time.sleep(.01)\n'opened'"
    async with connect() as client, anyio.create_task_group() as tasks:
        waiting: list[CallToolResult] = []

        async def wait() -> None:
            waiting.append(await run(client, code, "side-1"))

        tasks.start_soon(wait)
        assert text(await run(client, "1+1", "side-2")).splitlines()[0] == "2"
        assert not waiting
        opened.touch()
    assert text(waiting[0]).splitlines()[0] == "'opened'"


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_tells_the_last_line(connect: Connect, broker: BrokerProcess, mode: str) -> None:
    opened = broker.directory / f"progress-{mode}"
    code = f"import os, time\nprint('step 1', flush=True)\nwhile not os.path.exists({str(opened)!r}): time.sleep(.01)"
    results: list[tuple[float, str | None]] = []

    async def progress(done: float, _total: float | None, message: str | None) -> None:
        results.append((done, message))
        opened.touch()

    async with connect(mode=mode) as client:
        result = await client.call_tool("eval", {"code": code, "session": f"p-{mode}"}, progress_callback=progress)
    assert not result.is_error
    assert results[0][1] == "step 1"
    assert [done for done, _ in results] == sorted({done for done, _ in results})


@pytest.mark.parametrize("mode", ERAS)
async def test_a_call_takes_its_trace_along(connect: Connect, broker: BrokerProcess, mode: str) -> None:
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    async with connect(mode=mode) as client:
        arguments = {"code": "1", "session": f"traced-{mode}"}
        await client.call_tool("eval", arguments, meta={"traceparent": parent})  # type: ignore[typeddict-unknown-key]
    with broker.wire() as wire:
        sent = wire.send("subscribe", session=f"traced-{mode}", since_seq=0, types=["eval/accepted"])
        assert wire.until(sent, "subscribed")["events"][0]["traceparent"] == parent


async def test_code_past_its_wait_answers_that_it_runs(connect: Connect) -> None:
    async with connect("--wait", "300ms") as client:
        result = await run(client, "import time\nprint('a', flush=True)\ntime.sleep(60)", "wait")
        assert "still running after 0.3 s as eval 1" in text(result)
        assert text(await client.call_tool("interrupt", {"session": "wait"})).startswith("interrupted eval 1")
        end = await client.call_tool("read", {"session": "wait", "eval_id": 1, "wait": 20})
        assert "interrupted" in text(end)
        assert "state kept" in text(end)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancelled_call_interrupts_its_code_and_keeps_the_state(connect: Connect, mode: str) -> None:
    session = f"cancel-{mode}"
    async with connect("--structured", mode=mode) as client:
        await run(client, "x = 7", session)

        async def call() -> None:
            await run(client, "import time\ntime.sleep(600)", session)

        async def jobs() -> list[dict[str, Any]]:
            result = await client.call_tool("info", {"session": session, "what": "jobs"})
            return list(result.structured_content["jobs"])

        async def begun() -> bool:
            return any(job["state"] == "running" for job in await jobs())

        async def has_ended() -> bool:
            return (await jobs())[-1]["state"] == "interrupted"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(begun, "the code runs")
            tasks.cancel_scope.cancel()
        await until(has_ended, "the code was interrupted")
        assert text(await run(client, "x", session)).splitlines()[0] == "7"


async def test_a_client_that_stops_waiting_interrupts_nothing(connect: Connect, broker: BrokerProcess) -> None:
    opened = broker.directory / "patient"
    code = f"import os, time\nwhile not os.path.exists({str(opened)!r}): time.sleep(.01)\n'end'"
    async with connect() as client:
        with pytest.raises(MCPError, match="timed out"):
            await client.call_tool("eval", {"code": code, "session": "patient"}, read_timeout_seconds=1)
        await run(client, "1", "patient-other")  # what came with the cancellation has been thought about by now
        await anyio.sleep(0.2)
        opened.touch()
        end = await client.call_tool("read", {"session": "patient", "eval_id": 1, "wait": 20})
    assert text(end).splitlines()[0] == "'end'"


async def test_the_end_of_input_ends_the_server_and_not_the_code(broker: BrokerProcess) -> None:
    opened = broker.directory / "eof"
    code = f"import os, time\nwhile not os.path.exists({str(opened)!r}): time.sleep(.01)\n'end'"
    process = start_raw(broker)
    send_request(process, "initialize", 1, **HELLO)
    assert receive(process)["id"] == 1
    send_request(process, "tools/call", 2, name="eval", arguments={"code": code, "session": "eof"})
    with broker.wire() as wire:
        wait_until(lambda: "eof" in [entry["name"] for entry in wire.ask("ls-sessions")["sessions"]], "it has begun")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
        opened.touch()
        assert wire.ask("read", session="eof", eval_id=1, wait_ms=20_000).value == "'end'"
    finish(process)


async def test_a_server_that_nobody_hears_ends_without_a_word_and_the_code_goes_on(broker: BrokerProcess) -> None:
    opened = broker.directory / "deaf"
    code = f"import os, time\nwhile not os.path.exists({str(opened)!r}): time.sleep(.01)\n'end'"
    process = start_raw(broker)
    send_request(process, "initialize", 1, **HELLO)
    receive(process)
    assert process.stdout is not None
    send_request(process, "tools/call", 2, name="eval", arguments={"code": code, "session": "deaf"})
    with broker.wire() as wire:
        wait_until(lambda: "deaf" in [entry["name"] for entry in wire.ask("ls-sessions")["sessions"]], "it has begun")
        process.stdout.close()
        send_request(process, "ping", 3)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
        assert process.stderr is not None
        with process.stderr as result:
            assert result.read() == b""
        opened.touch()
        assert wire.ask("read", session="deaf", eval_id=1, wait_ms=20_000).value == "'end'"


async def test_a_server_that_was_never_asked_to_run_code_starts_no_broker(broker: BrokerProcess) -> None:
    other = f"ipc://{broker.directory}/run/never.sock"
    process = start_raw(broker, "--endpoint", other)
    send_request(process, "initialize", 1, **HELLO)
    send_request(process, "tools/list", 2)
    send_request(process, "resources/list", 3)
    answers = {receive(process)["id"] for _ in range(3)}
    assert answers == {1, 2, 3}
    assert not processes_with(other) - {process.pid}
    finish(process)
    assert not is_alive(process.pid)


@pytest.mark.parametrize(
    ("line", "code", "number"),
    [
        (b"garbage", -32700, None),
        (b'{"jsonrpc":"2.0","id":4,"method":"tools/call"', -32700, None),
        (b"\xff\xfe", -32700, None),
        (b"[" * 100_000, -32700, None),
        (b'{"jsonrpc":"2.0","id":3,"method":"ping","params":{"a":"\\ud800"}}', -32700, 3),
        (b"[]", -32600, None),
        (b"5", -32600, None),
        (b'{"id":5,"method":"ping"}', -32600, 5),
        (b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":[]}', -32600, 6),
    ],
)
async def test_a_line_that_is_no_message_is_answered_and_the_server_goes_on(
    broker: BrokerProcess, line: bytes, code: int, number: int | None
) -> None:
    process = start_raw(broker)
    send_request(process, "initialize", 1, **HELLO)
    assert receive(process)["id"] == 1
    send_line(process, line)
    answer = receive(process)
    assert (answer["error"]["code"], answer.get("id")) == (code, number)
    send_request(process, "ping", 2)
    assert receive(process) == {"jsonrpc": "2.0", "id": 2, "result": {}}
    finish(process)


async def test_what_the_code_prints_never_reaches_the_protocol(broker: BrokerProcess) -> None:
    process = start_raw(broker)
    send_request(process, "initialize", 1, **HELLO)
    receive(process)
    code = "import os\nos.write(1, b'{}\\n')\nos.system('echo child')\nprint('x')"
    send_request(process, "tools/call", 2, name="eval", arguments={"code": code, "session": "stdout"})
    answer = receive(process)
    assert "child" in answer["result"]["content"][0]["text"]
    finish(process)


async def test_a_broker_that_dies_costs_its_sessions_and_the_next_call_says_so(
    own_broker: BrokerProcess, connect: Connect
) -> None:
    async with connect(of=own_broker) as client:
        await run(client, "x = 1", "doomed")
        calls: list[CallToolResult] = []

        async def call() -> None:
            calls.append(await run(client, "import time\ntime.sleep(600)", "doomed"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.to_thread.run_sync(_busy, own_broker, "doomed")
            own_broker.kill()
        assert calls[0].is_error
        assert "broker-lost" in text(calls[0])
        result = await run(client, "x", "doomed")
        assert "NameError" in text(result)
        assert "a new broker was started; the previous one ended unexpectedly" in text(result)
        assert "a new broker" not in text(await run(client, "1", "doomed"))


async def test_a_broker_that_somebody_else_has_started_since_is_told_too(
    own_broker: BrokerProcess, connect: Connect
) -> None:
    notice = "[a new broker was started; sessions that were not left to it are gone]"
    async with connect(of=own_broker) as first, connect(of=own_broker) as second:
        for client in (first, second):
            assert notice not in text(await run(client, "x = 1", "both"))
        own_broker.stop()
        assert "[new session both" in text(await run(first, "1", "both"))
        answer = text(await run(second, "x", "both"))
        assert "NameError" in answer
        assert answer.endswith(notice)
        assert notice not in text(await run(second, "1", "both"))


async def test_what_is_too_large_for_the_broker_is_refused_and_costs_no_other_call(
    broker: BrokerProcess, connect: Connect
) -> None:
    opened = broker.directory / "large"
    code = f"import os, time\nwhile not os.path.exists({str(opened)!r}): time.sleep(.01)\n'end'"
    async with connect() as client, anyio.create_task_group() as tasks:

        async def call() -> None:
            assert text(await run(client, code, "small")).splitlines()[0] == "'end'"

        tasks.start_soon(call)
        await anyio.to_thread.run_sync(_busy, broker, "small")
        refused = await run(client, "y" * 3_000_000, "large")
        opened.touch()
        assert refused.is_error
        assert text(refused).startswith("message-too-large: a request of 3000")
        assert text(await run(client, "len('" + "y" * 900_000 + "')", "large")).splitlines()[0] == "900000"


def _busy(broker: BrokerProcess, session: str) -> None:
    with broker.wire() as wire:
        wait_until(
            lambda: any(each["name"] == session and each["running"] for each in wire.ask("ls-sessions")["sessions"]),
            "it runs",
        )


async def test_pictures_are_image_content(connect: Connect, stub: Callable[[Script], StubBroker]) -> None:
    picture = base64.b64encode(b"\x89PNG").decode()

    def script(_: dict[str, Any], say: Send) -> None:
        say(mime={"image/jpeg": picture})
        send_done(say, value="<P>", mime={"image/png": picture})

    async with connect("--endpoint", stub(script).endpoint) as client:
        result = await run(client, "P()", "picture")
    pictures = [(each.mime_type, each.data) for each in result.content if isinstance(each, ImageContent)]
    assert pictures == [("image/png", picture), ("image/jpeg", picture)]
    assert text(result).startswith("<P>")


async def test_the_other_sets_are_served_by_name(connect: Connect) -> None:
    async with connect("--tools", "nexo") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["Repl"]
        spawned = json.loads(text(await client.call_tool("Repl", {"action": "spawn", "runtime": "python"})))
        run = {"action": "exec", "session_id": spawned["session_id"], "code": "6*7"}
        assert json.loads(text(await client.call_tool("Repl", run)))["stdout"] == "42\n"


async def test_a_signal_ends_the_server(broker: BrokerProcess) -> None:
    process = start_raw(broker)
    send_request(process, "initialize", 1, **HELLO)
    receive(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == -signal.SIGTERM
    process.communicate()


def test_other_commands_do_not_load_the_sdk() -> None:
    code = (
        "import sys, replctl.main, replctl.tools, replctl.commands.mcp\nprint({'mcp', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.stdout == "set()\n", done.stderr

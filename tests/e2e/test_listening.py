"""Events by the python clients: as iterators that catch up, or say what is missing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kit import TIMEOUT_S, BrokerProcess, wait_until
from replctl import AsyncClient, Client, ReplError
from replctl.client import aio, transport


def test_the_libraries_bring_events_and_catch_up(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with Client(broker.endpoint, start=False) as client:
        client.eval("6*7", session="lib")
        ends = client.events("lib", types=["eval/finished"], since=0)
        assert next(ends)["value"] == "42"
        ends.close()  # type: ignore[attr-defined]
        wait_until(lambda: client.request("introspect").snapshots["subscriptions"]["total"] == 0, "it is unsubscribed")  # type: ignore[index]
        with pytest.raises(ReplError, match="unknown event type"):
            next(client.events(types=["nope/"]))

    async def listen() -> list[str]:
        found = []
        async with AsyncClient(broker.endpoint, start=False) as client:
            async for event in client.events("lib", since=0):
                found.append(event["type"])
                if event["type"] == "eval/finished":
                    await client.close("lib")
        return found

    found = asyncio.run(listen())
    assert found[0] == "session/created"
    assert found[-1] == "session/closed"


def test_a_reader_that_lags_before_anything_numbered_came_catches_up(
    start: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RECEIVE_HIGH_WATER", 1)
    broker = start("limits.rate-limit-per-min=0")
    found: list[dict[str, Any]] = []
    client = Client(broker.endpoint, start=False)
    client.new("s")
    listening = client.events("s", types=["eval/interrupt-requested"], output=True)

    def read(most: float) -> None:
        with contextlib.suppress(ReplError):  # the broker ends
            for event in listening:
                found.append(event)
                if len(found) >= most:
                    return

    with broker.wire() as worker:
        reader = threading.Thread(target=read, args=(1,), daemon=True)
        reader.start()
        wait_until(lambda: worker.run("print('begin')", "s") and found, "the first")
        reader.join(TIMEOUT_S)
        for number in range(1500):  # nobody reads meanwhile
            worker.run(f"print({number})", "s")
        running = worker.send("eval", session="s", code="while True: pass")
        wait_until(lambda: worker.ask("interrupt", session="s")["interrupted"], "an interrupt")
        assert "interrupted" in worker.answer(running).status
        reader = threading.Thread(target=read, args=(math.inf,), daemon=True)
        reader.start()
        wanted = {"bus/lagged", "eval/interrupt-requested"}
        wait_until(lambda: worker.run("print(1)", "s") and wanted <= {event["type"] for event in found}, "both")
    broker.stop()
    reader.join(TIMEOUT_S)
    client.disconnect()


def _until_finished(broker: BrokerProcess, number: int) -> None:
    with Client(broker.endpoint, start=False) as client:
        events = client.events("lib", types=["eval/finished"], since=0)
        while next(events)["eval"] != number:
            pass


def test_who_iterates_too_slowly_is_told_what_was_left_out(
    start: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "MAX_QUEUED_EVENTS", 5)
    monkeypatch.setattr(aio, "MESSAGES_PER_TURN", 3)
    broker = start()

    async def listen() -> list[dict[str, Any]]:
        async with AsyncClient(broker.endpoint, start=False) as client:
            await client.new("lib")
            events = client.events("lib", types=["eval/"], since=0)
            begun = asyncio.create_task(anext(events))  # type: ignore[arg-type]
            for number in range(10):
                await client.eval(f"{number}", session="lib")
            await asyncio.to_thread(_until_finished, broker, 10)
            await client.ping()  # what was told before has come by now
            found = [await begun]
            async for event in events:
                found.append(event)
                if sum(each.get("missed", 1) for each in found) == 30:
                    return found
        return found

    found = asyncio.run(asyncio.wait_for(listen(), TIMEOUT_S))  # 10 times accepted, started and finished
    assert "bus/lagged" in {each["type"] for each in found}
    assert len(found) < 30

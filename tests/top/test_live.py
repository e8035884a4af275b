"""The screen over a real broker: what happens is seen, what is pressed happens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from kit import TIMEOUT_S, BrokerProcess, Wire, wait_until
from replctl import AsyncClient, Client
from replctl.top import feed, snapshot
from replctl.top.app import TopApp
from replctl.top.formatting import SessionUsage
from replctl.top.model import TopModel
from top_kit import wait_for_text

Steps = Callable[[Pilot[int], Wire], Awaitable[None]]
Start = Callable[..., BrokerProcess]


def look(
    broker: BrokerProcess,
    steps: Steps,
    size: tuple[int, int] = (120, 40),
    key: str | None = None,
    at: str | None = None,
) -> TopApp:
    """Run the screen over a broker, and these steps with a wire of another client beside it."""
    endpoint = at or broker.endpoint
    app = TopApp(TopModel(endpoint), lambda: AsyncClient(endpoint, "top", start=False, key=key), 0.2)

    async def run() -> None:
        with broker.wire() as wire:
            async with app.run_test(size=size) as pilot:
                await steps(pilot, wire)

    asyncio.run(run())
    return app


def test_sessions_evals_and_output_are_seen_as_they_come(broker: BrokerProcess) -> None:
    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        await wait_for_text(pilot, "up ")
        wire.ask("new-session", name="seen", agent="ada")
        await wait_for_text(pilot, "seen ")
        await pilot.press("end")
        wire.send(
            "eval", session="seen", agent="ada", code="import time\nprint('\x1b[31mhel\x1b[0mlo')\ntime.sleep(60)"
        )
        text = await wait_for_text(pilot, " hello")
        assert "\x1b" not in text
        wire.send("eval", session="seen", agent="grace", code="'next'")
        await wait_for_text(pilot, lambda text: "running" in text and "queued 1" in text and " grace" in text)
        wire.ask("interrupt", session="seen")
        await wait_for_text(pilot, lambda text: "-- cancelled" in text and "= 'next'" in text)
        wire.ask("close", session="seen")
        await wait_for_text(pilot, lambda text: "Output of seen" not in text)

    look(broker, steps)


def test_processor_time_and_memory_are_seen_while_code_runs(broker: BrokerProcess) -> None:
    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        wire.ask("new-session", name="hot", agent="ada")
        wire.send("eval", session="hot", code="while True: pass", agent="ada", wait_ms=1)
        await wait_for_text(pilot, lambda _: (usage_of(pilot, "hot").percent or 0) > 5)
        await wait_for_text(pilot, lambda _: (usage_of(pilot, "hot").memory_bytes or 0) > 1_000_000)
        await wait_for_text(pilot, lambda _: (usage_of(pilot, "hot").cpu_seconds or 0) > 0.3)
        wire.ask("interrupt", session="hot")
        await wait_for_text(pilot, lambda _: usage_of(pilot, "hot").percent == 0.0)
        wire.ask("close", session="hot")

    look(broker, steps)


def usage_of(pilot: Pilot[int], name: str) -> SessionUsage:
    """Processor time and memory of a session as the screen knows it; nothing while it does not."""
    sessions = pilot.app.model.sessions.values()  # type: ignore[attr-defined]
    return next((each.usage for each in sessions if each.name == name), SessionUsage())


def test_what_was_printed_before_is_seen_when_its_session_is_chosen(broker: BrokerProcess) -> None:
    with broker.wire() as wire:
        wire.run("print('long ago'); 6*7", "old")

    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        await wait_for_text(pilot, lambda text: "long ago" in text and "= 42" in text and "[1] print" in text)
        wire.ask("close", session="old")

    look(broker, steps)


def test_the_key_i_interrupts(broker: BrokerProcess) -> None:
    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        wire.ask("new-session", name="loop")
        sent = wire.send("eval", session="loop", code="while True: pass")
        await wait_for_text(pilot, lambda text: "running" in text and "Output of loop" in text)
        await pilot.press("i")
        await wait_for_text(pilot, "interrupting eval 1 of loop")
        await asyncio.to_thread(lambda: wait_until(lambda: "interrupted" in wire.answer(sent).status, "it ends"))
        await pilot.press("i")
        await wait_for_text(pilot, "nothing to interrupt in loop")
        wire.ask("close", session="loop")

    look(broker, steps)


def test_the_key_i_among_jobs_takes_the_one_that_waits(broker: BrokerProcess) -> None:
    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        wire.ask("new-session", name="line")
        wire.send("eval", session="line", code="import time; time.sleep(60)")
        second = wire.send("eval", session="line", code="'never'")
        await wait_for_text(pilot, "queued 1")
        await pilot.press("3", "home", "down", "i")
        await wait_for_text(pilot, "interrupting eval 2 of line")
        assert "interrupted" in wire.answer(second).status
        wire.ask("close", session="line")

    look(broker, steps)


def test_reset_and_close_happen_after_a_yes_and_not_without(broker: BrokerProcess) -> None:
    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        wire.run("x = 1", "safe")
        await wait_for_text(pilot, "Output of safe")
        for key in ("r", "c"):
            await pilot.press(key)
            await wait_for_text(pilot, "session safe?")
            await pilot.press("n")
            await wait_for_text(pilot, lambda text: "session safe?" not in text)
        assert wire.run("x", "safe").value == "1"
        await pilot.press("r", "y")
        await wait_for_text(pilot, "safe was reset")
        await wait_for_text(pilot, "-- reset, epoch 2")
        assert wire.run("'x' in globals()", "safe").value == "False"
        await pilot.press("c", "y")
        await wait_for_text(pilot, lambda text: "safe is closed" in text and "no sessions" in text)
        assert wire.ask("ls-sessions")["sessions"] == []
        await pilot.press("r", "c", "i", "a")
        await wait_for_text(pilot, "attach needs a session with a name")

    look(broker, steps)


def test_a_small_terminal_shows_the_panes_in_turn_and_filters(broker: BrokerProcess) -> None:
    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        for name in ("red", "green"):
            wire.run("1", name, agent="ada")
        await wait_for_text(pilot, "Sessions (2)")
        await pilot.press("3")
        await wait_for_text(pilot, lambda text: "3 Jobs (2)" in text and "2 Output  4 Agents" in text)
        await pilot.press("4")
        await wait_for_text(pilot, "4 Agents")
        await pilot.press("1", "slash", *"gre", "enter")
        await wait_for_text(pilot, "Sessions (1)  by name  /gre")
        await pilot.press("escape")
        await wait_for_text(pilot, "Sessions (2)  by name")
        await pilot.resize_terminal(120, 40)
        await wait_for_text(
            pilot, lambda text: all(f"{each} " in text for each in ("2 Output of green", "3 Jobs (2)", "4 Agents"))
        )
        for name in ("red", "green"):
            wire.ask("close", session=name)

    look(broker, steps, (80, 24))


def test_who_is_no_admin_sees_the_own_sessions_and_what_is_refused(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        tcp = f"tcp://127.0.0.1:{found.getsockname()[1]}"
    broker = start("limits.rate-limit-per-min=0", more_endpoints=[tcp], keys=["ada"])
    key = str(broker.directory / "ada.key")
    with broker.wire() as wire, Client(tcp, key=key, start=False) as hers:
        wire.run("1", "secret")
        hers.eval("print('mine')", session="hers")
        wire.run("1", "lent")
        assert wire.ask("share", session="lent", who="ada", level="read").status == ["done"]

    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        text = await wait_for_text(
            pilot, lambda text: "that ada may see" in text and "lent" in text and " mine" in text
        )
        assert "secret" not in text
        await pilot.press("down", "r", "y")
        await wait_for_text(pilot, "lent: ")
        wire.run("print('hidden')", "secret")
        with Client(broker.listening["tcp"], key=key, start=False) as hers:
            hers.eval("print('shown')", session="hers")
        await pilot.press("home")
        text = await wait_for_text(pilot, " shown")
        assert "hidden" not in text

    app = look(broker, steps, key=key, at=broker.listening["tcp"])
    assert app.model.may_introspect is False


def test_a_broker_that_comes_back_is_found_again(start: Start) -> None:
    broker = start()

    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        wire.run("1", "lost")
        await wait_for_text(pilot, "lost ")
        broker.kill()
        await wait_for_text(pilot, lambda text: "reconnecting" in text and "no connection" in text)
        await pilot.press("i")
        await asyncio.to_thread(broker.start)
        await wait_for_text(pilot, lambda text: "no sessions" in text and "reconnecting" not in text)
        with broker.wire() as again:
            again.run("print('new')", "fresh")
        await wait_for_text(pilot, " new")

    look(broker, steps)


def test_a_broker_that_stays_away_ends_the_screen(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "GIVE_UP_SECONDS", 1.5)
    broker = start()

    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        await wait_for_text(pilot, "up ")
        wire.ask("shutdown")
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while pilot.app.return_value is None:
            assert asyncio.get_running_loop().time() < deadline, "it never ended"
            await asyncio.sleep(0.05)

    app = look(broker, steps)
    assert app.return_value == 3
    assert app.exit_error is not None
    assert app.exit_error.code in ("no-broker", "broker-lost", "shutdown")


def test_a_firehose_is_bounded_and_the_keys_still_work(broker: BrokerProcess) -> None:
    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        wire.ask("new-session", name="hose")
        sent = wire.send("eval", session="hose", code="while True: print('x' * 200)", timeout_ms=30_000)
        await wait_for_text(pilot, "xxxxxxxx")
        await pilot.press("i")
        await wait_for_text(pilot, "interrupting eval 1 of hose")
        await asyncio.to_thread(lambda: wire.answer(sent))
        await wait_for_text(pilot, "-- cancelled")
        wire.ask("close", session="hose")

    app = look(broker, steps)
    assert all(len(each.output) <= 2000 for each in app.model.sessions.values())


def test_a_snapshot_that_does_not_ask_everything_says_so(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_SESSIONS", 1)
    with broker.wire() as wire, Client(broker.endpoint, start=False) as client:
        for name in ("one", "two", "three"):
            wire.run("1", name)
        model = snapshot.take_snapshot(client)
        assert "incomplete: the evals of 2 sessions were not fetched" in list(snapshot.format_text(model, 0.0))
        for name in ("one", "two", "three"):
            wire.ask("close", session=name)


def test_nothing_is_left_in_the_broker_when_the_screen_ends(broker: BrokerProcess) -> None:
    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        await wait_for_text(pilot, "up ")
        assert wire.ask("introspect", name="subscriptions")["snapshots"]["subscriptions"]["total"] == 1
        await pilot.press("q")

    look(broker, steps)
    with broker.wire() as wire:
        wait_until(lambda: wire.ask("stats")["stats"]["connections"] == 1, "the connection is closed")


def test_the_key_t_shows_the_checkpoints_and_goes_back_to_one(start: Start) -> None:
    broker = start("session.checkpoints=manual", sandbox=True)

    async def steps(pilot: Pilot[int], wire: Wire) -> None:
        wire.run("x = 1", "tree")
        await wait_for_text(pilot, "Output of tree")
        await pilot.press("t")
        await wait_for_text(pilot, "tree has no checkpoints")
        for name in ("one", "two"):
            wire.ask("checkpoint", session="tree", name=name)
            wire.run(f"x = {name!r}", "tree")
        await pilot.press("t")
        shown = await wait_for_text(pilot, "Go back to a checkpoint of session tree")
        assert "AFTER EVAL" in shown
        assert "by request" in shown
        await pilot.press("escape")
        await wait_for_text(pilot, lambda text: "Go back" not in text)
        await pilot.press("t")
        await wait_for_text(pilot, "Go back to a checkpoint of session tree")
        await pilot.press("k", "enter")
        await wait_for_text(pilot, "tree is back at checkpoint 1")
        assert wire.run("x", "tree").value == "1"

    look(broker, steps)

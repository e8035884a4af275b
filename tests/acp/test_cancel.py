"""Cancel: before the start, in the middle, at the end, after it, twice; one moment decides."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from acp_kit import Agent
from kit import BrokerProcess
from replctl.acp.broker_connection import AcpBrokerConnection
from replctl.acp.client_connection import AcpClientConnection, DiagnosticsLog
from replctl.acp.modes import Mode
from replctl.acp.sessions import AcpSession
from replctl.acp.stdio import StdoutWriter
from replctl.acp.store import AcpSessionRecord, AcpSessionStore, new_id, now
from replctl.acp.turns import AcpServices, PromptTurn

SLEEPS = "print('on'); import time; time.sleep(30)"


def lines(*messages: dict[str, object]) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n" for each in messages)


def test_a_cancel_in_the_middle_interrupts_and_the_state_stays(agent: Agent, session: str) -> None:
    agent.prompt(session, "x = 1")
    name = agent.send_prompt(session, SLEEPS)
    agent.until_running()
    agent.cancel(session)
    turn = agent.turn(name)
    assert (turn.stop, turn.tool["status"], turn.text) == ("cancelled", "failed", "")
    assert agent.prompt(session, "x").text == "1"


def test_a_cancel_right_behind_its_prompt_is_not_lost(agent: Agent, session: str) -> None:
    agent.prompt(session, "ran = 0")
    for attempt in range(20):
        name = f"race-{attempt}"
        agent.methods[name] = "session/prompt"
        params = {"sessionId": session, "prompt": [{"type": "text", "text": "import time; time.sleep(30); ran = 1"}]}
        agent.raw(
            lines(
                {"id": name, "method": "session/prompt", "params": params},
                {"method": "session/cancel", "params": {"sessionId": session}},
            )
        )
        assert agent.turn(name).stop == "cancelled"
    assert agent.prompt(session, "ran").text == "0"


def test_a_cancel_of_nothing_and_of_an_unknown_session_is_dropped(agent: Agent, session: str) -> None:
    agent.cancel(session)
    agent.cancel("acp-unknown")
    agent.notify("session/cancel", sessionId=7)
    assert agent.prompt(session, "6*7").text == "42"


def test_a_cancel_after_the_end_leaves_the_answer_and_the_next_turn_alone(agent: Agent, session: str) -> None:
    assert agent.prompt(session, "1").stop == "end_turn"
    agent.cancel(session)
    turn = agent.prompt(session, "2")
    assert (turn.stop, turn.text) == ("end_turn", "2")


def test_a_second_cancel_changes_nothing(agent: Agent, session: str) -> None:
    name = agent.send_prompt(session, SLEEPS)
    agent.until_running()
    agent.cancel(session)
    agent.cancel(session)
    assert agent.turn(name).stop == "cancelled"
    assert agent.prompt(session, "6*7").text == "42"


def test_code_that_ends_well_after_the_cancel_is_cancelled_all_the_same(agent: Agent, session: str) -> None:
    code = "import time\nprint('on')\ntry: time.sleep(30)\nexcept KeyboardInterrupt: kept = 1\n'the value'"
    name = agent.send_prompt(session, code)
    agent.until_running()
    agent.cancel(session)
    turn = agent.turn(name)
    assert (turn.stop, turn.tool["status"], turn.text) == ("cancelled", "completed", "")
    assert agent.prompt(session, "kept").text == "1"


def test_a_cancelled_turn_shows_nothing_of_the_one_before(agent: Agent, session: str) -> None:
    agent.prompt(session, "print('earlier'); 'earlier'")
    name = agent.send_prompt(session, SLEEPS)
    agent.until_running()
    agent.cancel(session)
    assert "earlier" not in json.dumps(agent.turn(name).updates)


def test_nothing_is_said_of_a_turn_after_its_answer(agent: Agent, session: str) -> None:
    name = agent.send_prompt(session, "import time\nwhile True: print('on'); time.sleep(0.01)")
    agent.until_running()
    agent.cancel(session)
    agent.turn(name)
    after = len(agent.messages)
    agent.call("initialize", protocolVersion=1)
    assert len(agent.messages) == after + 1


def test_a_cancel_while_it_waits_in_the_queue_takes_only_this_one_out(
    agent: Agent, session: str, acp_broker: BrokerProcess
) -> None:
    agent.prompt(session, "1")
    with acp_broker.wire() as wire:
        running = wire.send("eval", session=session, code="print('on'); import time; time.sleep(0.5); 'theirs'")
        wire.receive()
        name = agent.send_prompt(session, "mine = 1")
        agent.until(lambda message: "queued behind" in json.dumps(message))
        agent.cancel(session)
        assert agent.turn(name).stop == "cancelled"
        assert wire.answer(running).value == "'theirs'"
        assert wire.run("'mine' in globals()", session).value == "False"


def test_cancel_request_cancels_the_prompt_that_it_names(agent: Agent, session: str) -> None:
    name = agent.send_prompt(session, SLEEPS)
    agent.until_running()
    agent.notify("$/cancel_request", requestId=name)
    assert agent.turn(name).stop == "cancelled"


def test_code_that_does_not_obey_is_given_up_and_said_to_run_on(agent: Agent, session: str) -> None:
    code = "import time\nprint('on')\nwhile True:\n    try: time.sleep(30)\n    except KeyboardInterrupt: pass"
    name = agent.send_prompt(session, code)
    agent.until_running()
    agent.cancel(session)
    turn = agent.turn(name)
    assert turn.stop == "cancelled"
    assert "ignores the interrupt" in turn.text
    assert "epoch 2" in agent.prompt(session, "/reset").text
    assert agent.prompt(session, "1").text == "1"


def test_a_cancel_right_before_a_prompt_is_none_of_its(agent: Agent, session: str) -> None:
    agent.methods["after"] = "session/prompt"
    params = {"sessionId": session, "prompt": [{"type": "text", "text": "6*7"}]}
    agent.raw(
        lines(
            {"method": "session/cancel", "params": {"sessionId": session}},
            {"id": "after", "method": "session/prompt", "params": params},
        )
    )
    turn = agent.turn("after")
    assert (turn.stop, turn.text) == ("end_turn", "42")


class _IdleTurn(PromptTurn):
    """A turn whose work is given by the test, to stand exactly at the moment before it resolves."""

    async def _work(self) -> None:
        self.at_the_end()

    def at_the_end(self) -> None:
        """Run code just before the turn resolves."""


def _resolve(directory: Path, cancel: str) -> tuple[str, bool]:
    async def run() -> tuple[str, bool]:
        read, write = os.pipe()
        try:
            notes = DiagnosticsLog(write)
            services = AcpServices(
                AcpClientConnection(StdoutWriter(write, notes), notes),
                AcpBrokerConnection("ipc:///nowhere", "a", False, notes),
                AcpSessionStore(str(directory)),
            )
            record = AcpSessionRecord(id=new_id(), cwd="/", created=now(), mode=Mode.AUTO, runtime="python")
            session = AcpSession(services, record)
            services.store.save(record)
            turn = session.turn = _IdleTurn(services, session, "1", 0, Mode.AUTO)
            if cancel == "before":
                turn.at_the_end = turn.cancel  # type: ignore[method-assign]
            stop = await turn.run()
            if cancel == "after":
                turn.cancel()
            return stop, session.turn is None
        finally:
            os.close(read)
            os.close(write)

    return asyncio.run(run())


def test_a_cancel_in_the_last_moment_before_a_turn_resolves_wins(tmp_path: Path) -> None:
    assert _resolve(tmp_path, "before") == ("cancelled", True)


def test_a_cancel_in_the_first_moment_after_it_is_too_late(tmp_path: Path) -> None:
    assert _resolve(tmp_path, "after") == ("end_turn", True)
    assert _resolve(tmp_path, "never") == ("end_turn", True)

"""Extensions as an agent meets them: tools beside our own, and a person's word where a hook wants it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import stdio_client
from mcp_types import ElicitRequestParams, ElicitResult

from ext_kit import config_entry, hook_source, write_extension
from kit import BrokerProcess
from mcp_kit import run, server_parameters, text

pytestmark = pytest.mark.anyio
ERAS = ("legacy", "auto")
TOOLS = """
import msgspec
class Args(msgspec.Struct, forbid_unknown_fields=True):
    session: str = "default"
def count(a, at):
    from replctl.tools.base import ToolResult, request
    reply = yield from request("ls-bindings", session=a.session)
    return ToolResult(text=f"{len(reply['bindings'])} names", structured={"status": "ok"})
def fails(a, at):
    yield from ()
    raise ValueError("oh no")
def nothing(a, at):
    yield from ()
def garbage(a, at):
    import gc
    from replctl.tools.base import ToolResult
    yield from ()
    return ToolResult(text=f"collected: {gc.isenabled()}, kept: {gc.get_freeze_count() > 0}")
@hookimpl
def replctl_register(register, settings):
    for name, run in (("count", count), ("fails", fails), ("nothing", nothing), ("eval", fails), ("garbage", garbage)):
        register(ExtensionTool(name=name, title=name, text="Does " + name, args=Args, run=run, read_only=True, destructive=False))
"""
ASKS = hook_source(
    "return RequireApproval('Delete?', 'it says rm') if 'rm' in q.code else RequireApproval('More?', 'it says mv') if 'mv' in q.code else None"
)
TWICE = hook_source(
    "return RequireApproval('Really?', 'both') if 'rm' in q.code and 'mv' in q.code else None", "second"
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with hooks that ask; the server reads the same config, and has the tools."""
    directory = Path(tempfile.mkdtemp(prefix="rm-", dir="/tmp"))
    texts = {"guard": ASKS, "twice": TWICE, "tools": TOOLS}
    home = tmp_path_factory.mktemp("home")
    broker = BrokerProcess(
        directory, config="".join(config_entry(path=write_extension(home, name, each)) for name, each in texts.items())
    )
    broker.environ["REPLCTL_CONFIG"] = str(directory / "config.toml")
    yield broker
    assert broker.process.poll() is None, broker.log_text()
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(directory)


class Reviewer:
    """User of a client: records questions and answers them."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.questions: list[str] = []
        self.answers: list[str] = []  # to the next questions

    async def __call__(self, _: Any, params: ElicitRequestParams) -> ElicitResult:
        self.questions.append(params.message)
        action = self.answers.pop(0) if self.answers else self.action
        return ElicitResult.model_validate({"action": action, "content": {}})


@asynccontextmanager
async def _client(broker: BrokerProcess, mode: str, person: Reviewer | None = None) -> AsyncIterator[Client]:
    async with Client(stdio_client(server_parameters(broker)), mode=mode, elicitation_callback=person) as client:
        yield client


@pytest.mark.parametrize("mode", ERAS)
async def test_a_yes_lets_code_run_that_a_hook_asks_about(guarded: BrokerProcess, mode: str) -> None:
    person = Reviewer("accept")
    async with _client(guarded, mode, person) as client:
        result = await run(client, "rm = 6\nrm * 7", f"yes-{mode}")
        assert text(result).splitlines()[0] == "42"
        assert person.questions == ["Delete?\nit says rm (hook guard/words)"]
        assert text(await run(client, "'mv' + str(7)", f"yes-{mode}")).splitlines()[0] == "'mv7'"
        assert len(person.questions) == 2


@pytest.mark.parametrize("mode", ERAS)
async def test_each_hook_that_asks_is_answered_for_itself(guarded: BrokerProcess, mode: str) -> None:
    person = Reviewer("accept")
    async with _client(guarded, mode, person) as client:
        assert text(await run(client, "rm = mv = 3\nrm", f"two-{mode}")).splitlines()[0] == "3"
        assert [each.partition("?")[0] for each in person.questions] == ["Delete", "Really"]
        person.questions.clear()
        person.answers = ["accept", "decline"]
        assert (await run(client, "rm = mv = 4", f"two-{mode}")).is_error
        assert [each.partition("?")[0] for each in person.questions] == ["Delete", "Really"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("mode", ERAS)
async def test_a_no_is_an_error_that_says_what_was_wanted(guarded: BrokerProcess, mode: str, action: str) -> None:
    person = Reviewer(action)
    async with _client(guarded, mode, person) as client:
        result = await run(client, "rm = 1", f"no-{mode}")
        assert result.is_error
        assert "hook guard/words: it says rm; the code did not run" in text(result)
        assert len(person.questions) == 1
        assert text(await run(client, "5", f"no-{mode}")).splitlines()[0] == "5"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_cannot_ask_gets_the_error(guarded: BrokerProcess, mode: str) -> None:
    async with _client(guarded, mode) as client:
        result = await run(client, "rm = 1", f"cannot-{mode}")
        assert result.is_error
        assert "hook guard/words: it says rm" in text(result)
        assert text(await run(client, "5", f"cannot-{mode}")).splitlines()[0] == "5"


async def test_tools_of_extensions_stand_beside_our_own(guarded: BrokerProcess) -> None:
    async with _client(guarded, "auto") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["count"].annotations is not None
        assert tools["count"].annotations.read_only_hint is True
        assert tools["eval"].description != "Does eval", "a name of ours was taken"
        await run(client, "a = b = 1", "named")
        assert text(await client.call_tool("count", {"session": "named"})) == "2 names"
        wrong = await client.call_tool("count", {"sesion": "named"})
        assert wrong.is_error
        missing = await client.call_tool("count", {"session": "not-there"})
        assert missing.is_error
        assert "not-there" in text(missing)


async def test_garbage_is_collected_once_all_is_loaded(guarded: BrokerProcess) -> None:
    async with _client(guarded, "auto") as client:
        assert text(await client.call_tool("garbage", {})) == "collected: True, kept: True"


@pytest.mark.parametrize(
    ("name", "why"), [("fails", "ValueError: oh no"), ("nothing", "NoneType instead of ToolResult")]
)
async def test_a_tool_that_fails_says_so_and_the_server_goes_on(guarded: BrokerProcess, name: str, why: str) -> None:
    async with _client(guarded, "auto") as client:
        result = await client.call_tool(name, {})
        assert result.is_error
        assert why in text(result)
        assert text(await run(client, "5", "after")).splitlines()[0] == "5"

"""`replctl mcp` at an MCP client that speaks bare lines, beside two peers.

They are posit's mcp-repl, sandboxes on and off, and pykernel-mcp, a server over an ipykernel.

posit's waits after each call until output has settled, so that late output comes along: its calls take that long.
pykernel-mcp imports numpy, pandas and matplotlib into each kernel before its first answer: its starts and resets do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench import ours
from bench.mcp_servers import (
    POOL,
    POSIT,
    PYKERNEL,
    REPLCTL,
    ColdReplctlMcp,
    McpContender,
    McpPeer,
    PositMcp,
    PyKernelMcp,
    ReplctlMcp,
    ToolAnswer,
    encode,
    env_of,
    is_two,
)
from bench.stats import BenchTable, Check, Role, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

_OURS, _POSIT, _KERNEL = "replctl mcp", "posit mcp-repl", "pykernel-mcp (ipykernel)"
_COLD, _BACK_TO_BACK = f"{_OURS} that starts its broker", "one reset right after another"
_FLOOD = "for n in range(50_000): print('x' * 99)\n"
_PLOT = "import matplotlib.pyplot as plt\nplt.figure()\nplt.plot(range(100))\nplt.show()\n"
_MS = 1e3
# The fixed script: what agents do all day, good and bad.
_TASKS = {
    "a name": "x = 41",
    "a value": "x + 1",
    "a line": "print('hello')",
    "an error in a function": "def f(n):\n    return 1 / n\n\nf(0)",
    "a progress bar": "for n in range(101): print('\\r', n, '%', '#' * (n // 4), end='')\n\nprint()",
    "a long list": "[n ** 2 for n in range(2000)]",
    "200 lines": "for n in range(200): print(n, 'y' * 60)\n",
    "a table": "import pandas as pd\npd.DataFrame({'a': range(1000), 'b': 'word'})",
    "a plot": _PLOT,
}

Conversations = dict[str, McpPeer]


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Start, call, reset, 5 MB of output, a plot; and the characters that a model has to read."""
    with ExitStack() as stack:
        servers = _servers(stack)
        starts = {who: TimedCall(server.start, 1, before=server.end) for who, server in servers.items()}
        tables = [
            _table(
                "start", "Start of an MCP server to the answer of its first call", time_in_turns(starts, plan.of(8, 2))
            )
        ]
        servers.pop(_COLD).end()
        talks = {who: server.ensure_started() for who, server in servers.items()}
        calls = {who: TimedCall(_checked_eval(talk, is_two, "1+1"), 10) for who, talk in talks.items()}
        tables.append(_table("call", "A tool call of `1+1`", time_in_turns(calls, plan.of(10, 2)), at_most=5))
        tables.append(_resets(talks, plan))
        flood = {who: TimedCall(_checked_eval(talk, _is_flood, _FLOOD), 1) for who, talk in talks.items()}
        tables.append(_table("flood", "5 MB of output, to the answer", time_in_turns(flood, plan.of(6, 2), warm_up=1)))
        plots = {who: TimedCall(_checked_eval(talk, _is_picture, _PLOT), 1) for who, talk in talks.items()}
        tables.append(
            _table(
                "plot",
                "A plot, to the answer with its picture (matplotlib is loaded)",
                time_in_turns(plots, plan.of(10, 2), warm_up=1),
            )
        )
        return tables + _reading_tables(talks)


def _servers(stack: ExitStack) -> dict[str, McpContender]:
    servers: dict[str, McpContender] = {}
    for sandbox in (True, False):
        broker = stack.enter_context(ours.broker(POOL, sandbox=sandbox))
        state = "on" if broker.raw().is_sandboxed() else "off"
        argv = [*REPLCTL, "--endpoint", broker.endpoint]
        servers[f"{_OURS}, sandbox {state}"] = McpContender(ReplctlMcp, argv, env_of(broker.state), broker.raw())
    servers[_COLD] = ColdReplctlMcp()
    for state, mode in (("on", "workspace-write"), ("off", "danger-full-access")) if _is_installed(POSIT) else ():
        argv = [str(POSIT), "--interpreter", "python", "--sandbox", mode]
        servers[f"{_POSIT}, sandbox {state}"] = McpContender(
            PositMcp, argv, {"PATH": f"{POSIT.parent}:{os.environ['PATH']}"}
        )
    if _is_installed(PYKERNEL):
        servers[_KERNEL] = McpContender(PyKernelMcp, [str(PYKERNEL)])
    for server in servers.values():
        stack.callback(server.end)
    return servers


def _is_installed(peer: Path) -> bool:
    if not peer.exists():
        print(f"not beside ours: {peer.name}, which `make bench` installs", file=sys.stderr, flush=True)
    return peer.exists()


def _resets(talks: Conversations, plan: BenchPlan) -> BenchTable:
    """Each when the pool is full again, which is how agents reset; and ours as fast as they can be asked for."""

    def again(talk: McpPeer) -> Callable[[], object]:
        def reset() -> None:
            assert is_two(talk.reset())

        return reset

    turns = {who: TimedCall(again(talk), 2, before=talk.wait_until_idle) for who, talk in talks.items()}
    first = next(iter(talks))
    hasty = f"{first}, {_BACK_TO_BACK}"
    turns[hasty] = TimedCall(again(talks[first]), 4)
    return _table(
        "reset", "Reset by tool calls, to the answer of a first eval", time_in_turns(turns, plan.of(10, 2)), 15
    )


def _reading_tables(talks: Conversations) -> list[BenchTable]:
    """Return tables of characters that a model is given: of a flood, as list of tools, and of the script of tasks."""
    floods = {who: [float(len(talk.eval(_FLOOD).text))] for who, talk in talks.items()}
    lists = {who: [float(len(encode(talk.ask("tools/list")["tools"])))] for who, talk in talks.items()}
    results = {who: [talk.eval(code) for code in _TASKS.values()] for who, talk in talks.items()}
    read = {who: [float(sum(len(each.text) for each in answers))] for who, answers in results.items()}
    sent = {who: [float(sum(each.sent for each in answers))] for who, answers in results.items()}
    tasks = f"the answers to {len(_TASKS)} tasks"
    tables = [
        _table("output", "What a model is given of 5 MB of output", floods, unit="characters", peer="floor"),
        _table("tools", "What a model is given as list of tools", lists, 4000, "characters"),
        _table("tasks", f"What a model reads of {tasks}", read, unit="characters"),
        _table(
            "sent",
            f"{tasks[0].upper()}{tasks[1:]} as they are sent, without the pictures' data",
            sent,
            unit="characters",
        ),
    ]
    first = next(iter(talks))
    tables[-1].checks.append(Check(f"{first}, sent to read", sent[first][0] / read[first][0], 1.5, at_most=True))
    return tables


def _checked_eval(talk: McpPeer, holds: Callable[[ToolAnswer], bool], code: str) -> Callable[[], object]:
    """Run this code, and see to it that the answer is one."""

    def run() -> None:
        reply = talk.eval(code)
        assert holds(reply), reply.text[:2000]

    return run


def _is_flood(expected: ToolAnswer) -> bool:
    return "x" * 99 in expected.text


def _is_picture(expected: ToolAnswer) -> bool:
    return expected.pictures >= 1


def _table(
    name: str,
    title: str,
    samples: dict[str, list[float]],
    at_most: float | None = None,
    unit: str = "ms",
    peer: Role = "peer",
) -> BenchTable:
    factor = _MS if unit == "ms" else 1
    rows = [
        SampleRow(who, "ours" if who.startswith(_OURS) else peer, scale(kept, factor)) for who, kept in samples.items()
    ]
    table = BenchTable(f"mcp-{name}", title, unit, rows[0].who, rows)
    if at_most is not None:
        table.checks.append(Check(rows[0].who, rows[0].p50, at_most, at_most=True, unit=unit))
    return table

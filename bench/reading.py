"""Measurement of what a model reads: `reading_tasks` at each server in turns, each answer checked for its truth.

The raw transcripts are written to `bench/transcripts/`, answers over `_KEPT` characters with their middle left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench import ours, procs
from bench.mcp_servers import POSIT, REPLCTL, encode, env_of
from bench.reading_servers import (
    JUPYTER,
    BashReading,
    JupyterReading,
    OursReading,
    PositReading,
    ReadingExchange,
    ReadingServer,
)
from bench.reading_tasks import SALES, TASKS, Task, is_true
from bench.stats import BenchTable, Check, Role, SampleRow
from bench.turns import BenchPlan

_OURS, _POSIT, _JUPYTER, _BASH = "replctl mcp", "posit mcp-repl", "jupyter-mcp-server", "plain bash"
_KEPT = 6_000  # characters of an answer in a transcript
_TRANSCRIPTS = Path(__file__).with_name("transcripts")
_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class TaskRecord(NamedTuple):
    """A task at one server: its calls, and whether it was solved and told truly."""

    calls: list[ReadingExchange]
    solved: bool
    true: bool

    @property
    def characters(self) -> int:
        """Characters that a model reads."""
        return sum(len(each.answer) for each in self.calls)


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Read all tasks at every server, and time the start of the first two."""
    with ExitStack() as stack:
        broker = stack.enter_context(ours.broker(4, sandbox=True))
        argv, env = [*REPLCTL, "--endpoint", broker.endpoint], env_of(broker.state)
        servers = _open(stack, argv, env)
        records: dict[str, list[TaskRecord]] = {who: [] for who in servers}
        for task in TASKS:
            for who, server in servers.items():
                records[who].append(_perform(server, task))
        lists = {who: server.tool_list for who, server in servers.items() if server.tool_list}
        starts = {_OURS: _start_times(argv, env, plan)}
    for who, tasks in records.items():
        _write_transcript(who, tasks)
    return [_task_table(records), _sum_table(records), _list_table(lists), _start_table(starts)]


def _open(stack: ExitStack, argv: list[str], env: dict[str, str]) -> dict[str, ReadingServer]:
    makers: dict[str, Callable[[Path], ReadingServer]] = {_OURS: lambda path: OursReading(path, argv, env)}
    if POSIT.exists():
        makers[_POSIT] = PositReading
    if JUPYTER.exists():
        makers[_JUPYTER] = JupyterReading
    makers[_BASH] = BashReading
    servers = {}
    for who, make in makers.items():
        path = stack.enter_context(procs.temporary_directory())
        (path / "sales.csv").write_text(SALES)
        servers[who] = make(path)
        stack.callback(servers[who].close)
    return servers


def _perform(server: ReadingServer, task: Task) -> TaskRecord:
    """Do the steps of a task and judge its answers."""
    for step in task.steps:
        server.do(step)
    calls = server.take()
    text = "\n".join(each.answer for each in calls)
    solved = is_true(task.facts, text) and sum(each.pictures for each in calls) >= task.pictures
    return TaskRecord(calls, solved, not any(is_true((each,), text) for each in task.falsehoods))


def _start_times(argv: list[str], env: dict[str, str], plan: BenchPlan) -> list[float]:
    """Return seconds from exec to the answers of `initialize` and `tools/list`."""
    times = []
    for _ in range(plan.of(15, 3)):
        with procs.temporary_directory() as path:
            begin = time.perf_counter()
            process = procs.start(argv, env, cwd=path)
            for number, method, params in ((1, "initialize", _HELLO), (2, "tools/list", {})):
                message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                procs.send_line(process, encode(message).decode())
                procs.read_line(process)
            times.append(time.perf_counter() - begin)
            procs.stop(process)
    return times


def _task_table(records: dict[str, list[TaskRecord]]) -> BenchTable:
    """Return characters of each task, as a table whose samples are the tasks."""
    rows = [
        SampleRow(who, _role(who), [float(each.characters) for each in tasks], _failures(tasks))
        for who, tasks in records.items()
    ]
    return BenchTable(
        "reading-tasks", f"Characters that a model reads of one of {len(TASKS)} tasks", "characters", _OURS, rows
    )


def _failures(tasks: list[TaskRecord]) -> str:
    missed = [task.name for task, record in zip(TASKS, tasks, strict=True) if not (record.solved and record.true)]
    return f"{len(tasks) - len(missed)} solved and true" + (f"; not: {', '.join(missed)}" if missed else "")


def _sum_table(records: dict[str, list[TaskRecord]]) -> BenchTable:
    sums = {who: float(sum(each.characters for each in tasks)) for who, tasks in records.items()}
    calls = {who: sum(len(each.calls) for each in tasks) for who, tasks in records.items()}
    rows = [SampleRow(who, _role(who), [number], f"{calls[who]} calls") for who, number in sums.items()]
    table = BenchTable("reading", "Characters that a model reads of all tasks", "characters", _OURS, rows)
    table.checks.append(Check("ours in all", sums[_OURS], 10_000, at_most=True, unit="characters"))
    if _POSIT in sums:
        table.checks.append(Check("ours to posit mcp-repl", sums[_OURS] / sums[_POSIT], 0.5, at_most=True))
    table.checks.append(
        Check("our calls beyond plain bash's", calls[_OURS] - calls[_BASH], 2, at_most=True, unit="calls")
    )
    solved = sum(each.solved and each.true for each in records[_OURS])
    table.checks.append(Check("tasks solved and true", solved, len(TASKS), at_most=False, unit="tasks"))
    return table


def _list_table(lists: dict[str, int]) -> BenchTable:
    rows = [SampleRow(who, _role(who), [float(size)]) for who, size in lists.items()]
    table = BenchTable("reading-list", "Characters of the list of tools", "characters", _OURS, rows)
    table.checks.append(Check("ours", lists[_OURS], 4_000, at_most=True, unit="characters"))
    if _POSIT in lists:
        table.checks.append(Check("ours to posit mcp-repl", lists[_OURS] / lists[_POSIT], 1.15, at_most=True))
    return table


def _start_table(starts: dict[str, list[float]]) -> BenchTable:
    rows = [SampleRow(who, _role(who), [1e3 * each for each in times]) for who, times in starts.items()]
    table = BenchTable("reading-start", "Start to the answers of `initialize` and `tools/list`", "ms", _OURS, rows)
    table.checks.append(Check("ours", rows[0].p50, 450, at_most=True, unit="ms"))
    return table


def _role(who: str) -> Role:
    return "ours" if who == _OURS else "floor" if who == _BASH else "peer"


def _write_transcript(who: str, tasks: list[TaskRecord]) -> None:
    lines = []
    for task, record in zip(TASKS, tasks, strict=True):
        lines.append(f"## {task.name}: {'solved' if record.solved else 'NOT SOLVED'}, {record.characters} characters\n")
        for call, answer, pictures in record.calls:
            lines += [f"> {call}\n", _shorten(answer) + (f"\n({pictures} picture)" if pictures else ""), ""]
    _TRANSCRIPTS.mkdir(exist_ok=True)
    (_TRANSCRIPTS / f"{who.replace(' ', '-')}.txt").write_text("\n".join(lines))


def _shorten(text: str) -> str:
    text = text.replace(str(procs.ROOT), "…").replace(str(Path.home()), "~")
    if len(text) <= _KEPT:
        return text
    return f"{text[: _KEPT // 2]}\n(… {len(text) - _KEPT} characters …)\n{text[-_KEPT // 2 :]}"

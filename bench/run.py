"""All measurements side by side in one run, and the table in README.md.

python -m bench [--quick] [--only NAME]... [--json FILE] [--write [MARK]]
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run as a file: the package's parent takes the place of its directory
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench import machine, ours
from bench.procs import deadline
from bench.stats import BenchTable, FactSheet
from bench.turns import BenchPlan

README = Path(__file__).with_name("README.md")


class Measurement(NamedTuple):
    """A module with `measure(plan)`, how long it may take in seconds, and whether its sessions are the default ones."""

    module: str
    timeout_s: float
    usual: bool = True  # else its rows say which are sandboxed


MEASUREMENTS = {
    "round-trip": Measurement("round_trip", 300),
    "start": Measurement("starts", 400),
    "memory": Measurement("memory", 120),
    "interrupt": Measurement("interrupts", 120),
    "output": Measurement("output", 300),
    "throughput": Measurement("throughput", 400),
    "crowd": Measurement("crowd", 600),
    "command-line": Measurement("command_line", 200),
    "acp": Measurement("acp", 200),
    "bus": Measurement("bus", 300),
    "subscribers": Measurement("subscribers", 300),
    "sandbox": Measurement("sandbox", 300, usual=False),
    "sandboxed": Measurement("sandboxed", 300, usual=False),
    "network": Measurement("network", 300, usual=False),
    "packages": Measurement("packages", 300, usual=False),
    "runtimes": Measurement("runtimes", 200, usual=False),
    "completion": Measurement("completion", 120),
    "clone": Measurement("clone", 500),
    "checkpoints": Measurement("checkpoints", 500),
    "lines": Measurement("lines", 300),
    "mcp": Measurement("mcp", 500, usual=False),
    "reading": Measurement("reading", 900),
    "neighbours": Measurement("neighbours", 900),
    "fairness": Measurement("fairness", 200),
    "survival": Measurement("survival", 400, usual=False),
}


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write what was asked for. Exit code 1 when a measurement could not be made."""
    options = _options(argv)
    plan = BenchPlan(quick=options.quick)
    machine.compile_packages()
    before = machine.load()
    sessions = ours.describe_sandboxing()
    tables: list[BenchTable | FactSheet] = []
    failed: list[str] = []
    for name in options.only or MEASUREMENTS:
        try:
            found = _measure(name, plan, sessions)
        except Exception:  # noqa: BLE001 - the others are still worth having
            traceback.print_exc()
            failed.append(name)
            continue
        for table in found:
            print(table.markdown(), flush=True)
        tables += found
    facts = [*machine.describe(), f"{before} at the start, {machine.load().rpartition(' ')[2]} at the end"]
    only = [f"--only {name}" for name in options.only or ()]
    command = " ".join(["python -m bench", *(["--quick"] if options.quick else []), *only])
    print("\n".join(f"- {fact}" for fact in facts))
    if options.json:
        data = {"machine": facts, "command": command, "tables": [table.data() for table in tables], "failed": failed}
        Path(options.json).write_text(json.dumps(data, indent=1) + "\n")
    if options.write:
        _write(options.write, _page(tables, facts, command, failed))
    if failed:
        sys.exit(f"could not be measured: {', '.join(failed)}")


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="replctl beside its floor and its peers.")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it works")
    parser.add_argument("--only", action="append", choices=list(MEASUREMENTS), help="this one; may be given again")
    parser.add_argument("--json", metavar="FILE", help="every figure as data")
    parser.add_argument(
        "--write",
        nargs="?",
        const="table",
        metavar="MARK",
        help=f"put the tables into {README.name}, where MARK stands [table]",
    )
    return parser.parse_args(argv)


def _measure(name: str, plan: BenchPlan, sessions: str) -> list[BenchTable | FactSheet]:
    measurement = MEASUREMENTS[name]
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    module = importlib.import_module(f"bench.{measurement.module}")
    with deadline(measurement.timeout_s, name):
        tables: list[BenchTable | FactSheet] = module.measure(plan)
    for table in tables:
        table.sessions = table.sessions or (sessions if measurement.usual else "")
    return tables


def _page(tables: list[BenchTable | FactSheet], facts: list[str], command: str, failed: list[str]) -> str:
    """Return the text between the markers."""
    checks = [check for table in tables for check in table.checks]
    lost = [line for table in tables for line in table.lost_rows()]
    parts = [f"`{command}` on", "", *(f"- {fact}" for fact in facts), ""]
    if checks:
        parts += ["**Targets**", "", *(f"- {check.text()}" for check in checks), ""]
    parts += ["**Where we lose to a peer**", "", *(f"- {line}" for line in lost or ["nowhere in these tables"]), ""]
    if failed:
        parts += [f"**Not measured**: {', '.join(failed)}", ""]
    return "\n".join(parts) + "\n" + "\n".join(table.markdown() for table in tables)


def _write(mark: str, page: str) -> None:
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    head, _, rest = README.read_text(encoding="utf-8").partition(begin)
    _, marker, tail = rest.partition(end)
    if not marker:
        sys.exit(f"{README.name}: no {begin} … {end} to write between")
    README.write_text(f"{head}{begin}\n{page}\n{end}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()

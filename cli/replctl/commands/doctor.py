"""`replctl doctor`: checks of the installation, with suggested fixes."""

from __future__ import annotations

import os

import click

from replctl.commands.output import CommandOutput
from replctl.doctor.checks import run_checks
from replctl.doctor.finding import Finding

_LEVEL_LABELS = {"ok": "ok   ", "warn": "warn ", "fail": "FAIL "}


@click.command()
@click.option("--endpoint", metavar="URL", help="Address of the broker.")
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="Config file instead of the user's own.")
@click.option("--json", is_flag=True, help="Print one JSON object on one line.")
def doctor(endpoint: str | None, path: str | None, json: bool) -> int:
    """Check the installation and suggest fixes. The exit code is 1 if a check fails.

    Starts no broker and changes nothing. Run it as the broker's user, with its environment.
    """
    findings = run_checks(endpoint, path, os.environ, os.getuid())
    failed = sum(finding.level == "fail" for finding in findings)
    warned = sum(finding.level == "warn" for finding in findings)
    screen = CommandOutput()
    if json:
        screen.json({"status": ["done"], "failed": failed, "warned": warned, "checks": findings})
    else:
        for finding in findings:
            _show(screen, finding)
        screen.line(f"{len(findings)} checks: {failed} failed, {warned} warnings")
    return int(failed > 0)


def _show(screen: CommandOutput, finding: Finding) -> None:
    screen.line(f"{_LEVEL_LABELS[finding.level]} {finding.name}: {finding.seen}")
    for label, text in (("cause", finding.cause), ("fix", finding.fix)):
        if text is not None:
            screen.line(f"      {label}: {text}")

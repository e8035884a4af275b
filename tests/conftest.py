"""What a run must not pass over in silence."""

from __future__ import annotations

import re

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests that a machine without a sandbox skips are told at the end, whatever the verbosity."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for why in sorted(
        {found[0] for text in skipped if (found := re.search(r"NO (SANDBOX|CONTROL GROUPS) HERE[^)]*", text))}
    ):
        terminalreporter.write_sep("!", f"{sum(why in text for text in skipped)} tests skipped", red=True)
        terminalreporter.write_line(why, red=True)

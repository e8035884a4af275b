"""Shared by the tests of the repository: helpers are imported by name, though pytest imports tests by file."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

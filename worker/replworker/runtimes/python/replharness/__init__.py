"""Python harness: keeps a namespace and runs code sent by a worker.

Modules needed by every eval are imported at start, so that they are never looked up on the user's `sys.path`. The
others (completion, lookup, snapshots, reloading) would cost every idle session memory; lazy_import.py loads them on
first use from their file, with the modules known at the start, so that they see nothing the user changed.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A copy used as `__builtins__` by every module here, since user code may change the real one.
SEALED: Any = dict(builtins.__dict__)

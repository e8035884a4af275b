"""The python harness: keeps one namespace and runs the code that a worker sends it.

What every eval needs is imported at start, so that nothing of it is looked up on the user's `sys.path` later. The rest
(completion, lookup, snapshots, reloading) would cost each idle session its memory; lazy_import.py loads it when first
needed, by the path of its file and with the modules of the start, so that it too sees nothing of the user's doing.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A copy: each module here takes it for its `__builtins__`, so that user code may empty or change the real one.
SEALED: Any = dict(builtins.__dict__)

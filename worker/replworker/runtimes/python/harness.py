"""Entry point of the Python harness: `python -X utf8 harness.py CONTROL_FD BACKGROUND_FD TRACE_FD FD_SOCKET_FD`.

Runs in any Python from 3.8 on, with the standard library only. The worker is its only reader. A fifth argument is a
pipe of the sandbox's first process, which waits for one byte.
"""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))
_SAFE_PATH = os.path.realpath(sys.path[0]) != _HERE  # python -P or -I: no script directory, and so no ''
if _SAFE_PATH:
    sys.path.insert(0, _HERE)
else:
    sys.path[0] = _HERE
try:
    from replharness.compose import build_harness
finally:
    if _SAFE_PATH:
        del sys.path[0]
    else:
        sys.path[0] = ""  # as in interactive Python: the working directory comes first

_fds = [int(word) for word in sys.argv[1:]]  # the harness empties sys.argv
_harness = build_harness(*_fds[:4])
for _fd in _fds[4:]:
    os.write(_fd, b".")
    os.close(_fd)
_harness.serve()

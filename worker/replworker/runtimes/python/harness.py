"""Entry of the python harness: `python -X utf8 harness.py CONTROL_FD LATE_FD TRACE_FD PARCEL_FD`.

Runs in any python >= 3.8, with nothing but its standard library. The worker is its parent and its only reader.
"""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))
_SAFE_PATH = os.path.realpath(sys.path[0]) != _HERE  # python -P or -I: no script folder, then no '' either
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
        sys.path[0] = ""  # as in interactive python: the user's folder comes first

build_harness(*map(int, sys.argv[1:5])).serve()

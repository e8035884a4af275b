"""Packages that a session installs: an installer in a sandbox of its own, and layers that the session reads.

A layer is what one session has installed for one interpreter. Each change makes a new *generation* of it, a directory
that never changes again: `layers.py` keeps them, `job.py` prepares the next one and the command that fills it,
`tool_process.py` runs that command outside the session, and `package_runner.py` ties them to the session's evals.
`ecosystems.py` has what differs between Python and Node, `index_settings.py` and `npm.py` read where packages come
from. Why it is built so: docs/decisions/0032.
"""

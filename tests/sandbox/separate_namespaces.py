"""`python separate_namespaces.py root|user MASK COMMAND...`: a command in namespaces of its own (mounts, host name).

As root, so that not even an attack that gets out changes anything for anybody else; there MASK becomes a mount that can
be taken away. As an ordinary user, whose home is the directory that REPLCTL_STATE_DIR names.
"""

from __future__ import annotations

import os
import sys

from attack_environment import CLONE_NEWUTS, become_ordinary_user
from replworker.sandbox import mounts

if __name__ == "__main__":
    who, mask, *command = sys.argv[1:]
    if os.getuid() == 0:
        mounts.unshare(mounts.CLONE_NEWNS | CLONE_NEWUTS)
        mounts.make_private()
        if who == "user":
            become_ordinary_user(os.environ["REPLCTL_STATE_DIR"])
        elif mask:
            mounts.tmpfs(mask, "size=64k")
    os.execv(command[0], command)

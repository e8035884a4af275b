"""`python as_user.py COMMAND...`: from root to an ordinary user who can reach this python and this checkout."""

from __future__ import annotations

import os
import sys

from attack_environment import become_ordinary_user

if __name__ == "__main__":
    become_ordinary_user()
    os.execv(sys.argv[1], sys.argv[1:])

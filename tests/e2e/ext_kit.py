"""Extensions as files, for brokers and commands of the tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

HEAD = "from replctl.ext import *\nfrom replctl.ext import hookimpl\nimport pathlib, time\n"


def write_extension(directory: Path, name: str, text: str) -> Path:
    """Write an extension that only its user may change, as loading requires."""
    home = directory / "ext"
    home.mkdir(mode=0o700, exist_ok=True)
    path = home / f"{name}.py"
    path.write_text(HEAD + text)
    path.chmod(0o600)
    return path


def hook_source(body: str, name: str = "words") -> str:
    """Return the source of an extension with one hook; `body` is indented by eight and gets the request as `q`."""
    return f"""
@hookimpl
def replctl_register(register, settings):
    def judge(q):
        {body}
    register(Hook(name={name!r}, before_eval=judge))
"""


def config_entry(**fields: Any) -> str:
    """Return one entry of `[[extensions]]`."""
    return "[[extensions]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in fields.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(os.fspath(value) if isinstance(value, Path) else value)


# A language of its own: it shouts. Speaks the frames of docs/protocol.md, in python for want of another interpreter.
SHOUT = r"""
import json, os, socket, struct, sys
control = socket.socket(fileno=3)
def say(**frame):
    body = json.dumps(frame).encode()
    control.sendall(struct.pack("!I", len(body)) + body)
def hear(size):
    data = b""
    while len(data) < size:
        more = control.recv(size - len(data))
        if not more:
            sys.exit()
        data += more
    return data
say(t="ready", runtime="shout", version="1", implementation="shout", executable=sys.executable, pid=os.getpid(), can=[])
while True:
    frame = json.loads(hear(int.from_bytes(hear(4), "big")))
    if frame["op"] == "assign":
        say(t="assigned", n=frame["n"], error=None)
    elif frame["op"] == "eval":
        os.write(1, b"shouting\n")
        say(t="result", n=frame["n"], outcome="ok", value=frame["code"].upper(), type="text")
"""

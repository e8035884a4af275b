"""A whole broker as root or as an ordinary user, with or without the sandbox, and sentinels for attacks from its sessions."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attack_environment import LIMITS, PLAIN_UID, REAL, refill_workspace, sentinels
from attack_programs import block
from attacks import Attack
from kit import UNSANDBOXED, BrokerProcess, CollectedReplies

SOAK = os.environ.get("REPLCTL_SOAK") == "1"
USERS = ["root", "user"] if os.getuid() == 0 else ["user"]
APART = str(Path(__file__).with_name("separate_namespaces.py"))
PROMPT_S = 1.0  # other sessions and the broker answer within this, whatever a session does
BOUNDS = [
    f"sandbox.memory-bytes={LIMITS.memory_bytes}",
    f"sandbox.pids={LIMITS.pids}",
    f"sandbox.file-bytes={LIMITS.file_bytes}",
    f"sandbox.open-files={LIMITS.open_files}",
    f"sandbox.tmp-bytes={LIMITS.tmp_bytes}",
    "limits.rate-limit-per-min=0",
    "limits.interrupt-grace-ms=1000",
]


def uid_of(who: str) -> int:
    """Return the user of a broker's processes."""
    return PLAIN_UID if who == "user" and os.getuid() == 0 else os.getuid()


def begin(who: str, *settings: str, mask: str = "", **options: Any) -> BrokerProcess:
    """Start a broker as this kind of user."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    through = [sys.executable, APART, who, mask]
    options = {"sandbox": True, "through": through, "uid": uid_of(who), **options}
    return BrokerProcess(directory, "limits.rate-limit-per-min=0", *settings, **options)


def end(broker: BrokerProcess) -> None:
    """End it, and take its directory away."""
    broker.stop()
    shutil.rmtree(broker.directory)


class AttackSite:
    """A broker, an attacker's connection to it, and a neighbour's."""

    def __init__(self, broker: BrokerProcess, directory: Path, targets: dict[str, str], *, sandboxed: bool) -> None:
        self.broker = broker
        self._sandboxed = sandboxed
        self.workspace = directory / "workspace"
        self._targets = targets
        self.attacker, self.neighbour = broker.wire(), broker.wire()
        assert self.neighbour.run("6*7", session="neighbour").value == "42"

    def close(self) -> None:
        self.attacker.close()
        self.neighbour.close()

    def open_session(self, runtime: str, mark: str = "", **fields: Any) -> None:
        """A fresh session `s` of the attacker's, in a workspace as new; `mark` is in the environment of all it starts."""
        refill_workspace(self.workspace)
        env = [f"MARK={mark}", *(f"{name}={value}" for name, value in self._targets.items())]
        opened = self.attacker.ask("new-session", name="s", runtime=runtime, cwd=str(self.workspace), env=env, **fields)
        assert opened.status == ["done"], opened.messages

    def close_session(self) -> None:
        assert self.attacker.ask("close", session="s").status == ["done", "session-closed"]

    def run(self, code: str, timeout_ms: int = 30_000) -> CollectedReplies:
        """Run it in the attacker's session; until it has ended, everybody else is answered promptly."""
        request = self.attacker.send("eval", session="s", code=code, timeout_ms=timeout_ms)
        messages: list[dict[str, Any]] = []
        while not messages or "done" not in messages[-1].get("status", []):
            self.assert_others_respond()
            if self.attacker.socket.poll(5):
                messages.append(self.attacker.receive())
                assert messages[-1]["id"] == request
        self.assert_others_respond()
        return CollectedReplies(messages)

    def assert_others_respond(self) -> None:
        """The broker and another session answer within a second."""
        assert self.neighbour.answer(self.neighbour.send("ping"), PROMPT_S).status == ["done", "pong"]
        other = self.neighbour.send("eval", session="neighbour", code="6*7")
        assert self.neighbour.answer(other, PROMPT_S).value == "42"

    def attempt(self, attack: Attack) -> str:
        """Run an attack as an eval: OUT, HELD and why, or what became of its session."""
        read_only = {"profile": attack.profile} if self._sandboxed and attack.profile == "read-only" else {}
        self.open_session(attack.runtime, **read_only)
        try:
            answer = self.run(block(attack))
        finally:
            self.close_session()
        if "worker-lost" in answer.status:
            return f"HELD died: {answer['cause']}"
        text = answer.out.strip()
        return text if text.startswith(("OUT", "HELD")) else f"BROKEN {answer.messages}"


@contextmanager
def site(who: str, *, sandboxed: bool) -> Iterator[AttackSite]:
    """A place to attack, in namespaces of its own."""
    with sentinels(uid_of(who)) as (directory, targets):
        config = "" if sandboxed else UNSANDBOXED
        hidden = f'sandbox.hidden-paths=["{directory}/workspace/state"]'
        broker = begin(who, *BOUNDS, hidden, mask=targets["MASK"], config=config)
        try:
            place = AttackSite(broker, directory, targets | REAL if sandboxed else targets, sandboxed=sandboxed)
            try:
                yield place
            finally:
                place.close()
        finally:
            end(broker)

"""Sessions that turn against their own checkpoints, as root and as an ordinary user: they harm themselves alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from attack_targets import begin, end
from kit import BrokerProcess, Wire, wait_until
from sandbox_kit import descendants, has_exited

_STOP_ALL = """
import os, signal
for name in os.listdir('/proc'):
    if name.isdecimal() and int(name) not in (1, os.getpid()): os.kill(int(name), signal.SIGSTOP)
"""
_FORK_TO_THE_LIMIT = """
import os, signal
while True:
    try:
        if not os.fork():
            os.setsid()
            signal.pause()
    except OSError: break
"""
_WRITE_INTO_EVERYTHING = """
import os, socket
for fd in [*range(4, 256), 3]:
    for word in (b'wake', b'here', bytes(100)):
        try: os.write(fd, word)
        except OSError: pass
import time; time.sleep(0.5)
"""
_EXHAUST_MEMORY = "held = []\nwhile True: held.append(bytearray(b'x') * (8 << 20))"
_WRITE_INTO_THE_COPIES = """
import os
for name in os.listdir('/proc'):
    if name.isdecimal() and int(name) != os.getpid():
        try: open(f'/proc/{name}/mem', 'r+b').write(b'x' * 4096)
        except OSError: pass
        for fd in range(3, 100):
            try: os.write(os.open(f'/proc/{name}/fd/{fd}', os.O_RDWR | os.O_NONBLOCK), b'wake')
            except OSError: pass
"""
ATTACKS = {
    "kills all": "import os, signal; os.kill(-1, signal.SIGKILL)",
    "stops all": _STOP_ALL,
    "forks to the limit": _FORK_TO_THE_LIMIT,
    "writes into every descriptor": _WRITE_INTO_EVERYTHING,
    "writes into the copies": _WRITE_INTO_THE_COPIES,
    "exhausts memory": _EXHAUST_MEMORY,
}
ENDS_COPIES = {"kills all"}  # a rollback may be refused, or find no copy that starts


@pytest.fixture(scope="module")
def broker(who: str) -> Iterator[BrokerProcess]:
    """One whose sessions have little memory and few processes."""
    broker = begin(who, f"sandbox.memory-bytes={192 << 20}", "sandbox.pids=40", "limits.interrupt-grace-ms=500", warm=1)
    yield broker
    end(broker)


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_next_rollback_works_or_says_why_not_and_nobody_else_notices(wire: Wire, attack: str) -> None:
    wire.run("y = 7", session="neighbour")
    wire.run("x = 1")
    assert wire.ask("checkpoint", session="s", name="clean").status == ["done"]
    attacked = wire.run(ATTACKS[attack], timeout_ms=10_000)
    assert attacked.status[0] == "done", attacked.messages
    assert wire.run("y", session="neighbour").value == "7"
    back = wire.ask("rollback", session="s", to="clean")
    after = wire.run("x")
    if back.status == ["done"]:
        assert after.value == "1"
    else:
        assert attack in ENDS_COPIES, back.messages
        assert "checkpoint" in back["err"]
    assert wire.run("y", session="neighbour")["state"] == "kept"
    worker = wire.ask("info", session="s")["info"]["worker-pid"]
    family = [worker, *descendants(worker)]
    assert len(family) > 2
    wire.ask("close", session="s")
    wait_until(lambda: all(map(has_exited, family)), "nothing of the session is left")

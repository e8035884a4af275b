"""Secrets that sessions use without having them: who gets the value, who does not, and where it is nowhere to be found."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end, uid_of
from kit import BrokerProcess, Wire
from live_processes import look_at_each, read_each
from network_kit import Upstream

VALUE, OTHER = "tok-5f1d0c7a9be34e21a8", "cmd-88aa17cc02ff41d0b3"
CURL = "curl -sS -m 10 -H 'Authorization: Bearer '$API_TOKEN https://api.test/echo"
READ = """
import json, os, urllib.request
request = urllib.request.Request("https://api.test/echo", headers={"Authorization": "Bearer " + os.environ["API_TOKEN"]})
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""
FETCH = """
await (await fetch("https://api.test/echo", {headers: {Authorization: "Bearer " + process.env.API_TOKEN}})).text()
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def place(who: str) -> Iterator[Path]:
    """A directory of the broker's user that sessions cannot see."""
    path = Path(tempfile.mkdtemp(prefix="rpl-secret-", dir="/tmp"))
    (path / "token").write_text(f"{VALUE}\n")
    for each in (path, path / "token"):
        os.chown(each, uid_of(who), uid_of(who))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def broker(who: str, upstream: Upstream, place: Path) -> Iterator[BrokerProcess]:
    # By default a secret is for the broker's own user, which the client of these tests is as root alone.
    mine = "" if who == "root" else f'identities = ["uid:{os.getuid()}"]'
    secrets = f"""
[[secrets]]
name = "API_TOKEN"
hosts = ["api.test"]
file = "{place}/token"
{mine}
[[secrets]]
name = "OTHER_TOKEN"
hosts = ["*.pkg.test"]
command = ["echo", "{OTHER}"]
{mine}
[[secrets]]
name = "MISSING"
hosts = ["git.test"]
file = "{place}/nothing"
{mine}
[[secrets]]
name = "FOREIGN"
hosts = ["npm.test"]
file = "{place}/token"
identities = ["somebody"]
"""
    allowed = ["api.test", "pkg.test", "files.pkg.test", "git.test", "npm.test", "wrong.test"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(upstream.directory / "ca.pem"))
        broker = begin(who, config=upstream.config(allowed, tls=True) + secrets, warm=1)
    yield broker
    end(broker)


def test_a_session_has_a_placeholder_and_the_host_gets_the_value(wire: Wire, upstream: Upstream) -> None:
    placeholder = str(wire.run("import os; os.environ['API_TOKEN']").value)
    assert re.fullmatch(r"'replctl-API_TOKEN-[0-9a-f]{24}'", placeholder)
    result = wire.run(READ)
    assert upstream.headers[-1]["Authorization"] == f"Bearer {VALUE}", result.messages
    assert json.loads(result.out)["Authorization"] == "Bearer " + "*" * len(VALUE)


@pytest.mark.parametrize(("runtime", "code"), [("bash", CURL), ("node", FETCH)])
def test_programs_of_other_runtimes_do_so_unmodified(wire: Wire, upstream: Upstream, runtime: str, code: str) -> None:
    result = wire.run(code, session=runtime, runtime=runtime)
    assert upstream.headers[-1]["Authorization"] == f"Bearer {VALUE}", result.messages
    assert VALUE not in result.out + (result.value or "")


def test_basic_authentication_has_the_value_too(wire: Wire, upstream: Upstream) -> None:
    wire.run("curl -sS -m 10 -u me:$API_TOKEN https://api.test/echo", session="bash", runtime="bash")
    sent = upstream.headers[-1]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent).decode() == f"me:{VALUE}"


def test_a_command_prints_the_value_for_the_hosts_below_a_name(wire: Wire, upstream: Upstream) -> None:
    code = "curl -sS -m 10 -H X-Token:$OTHER_TOKEN https://files.pkg.test/echo"
    result = wire.run(code, session="bash", runtime="bash")
    assert upstream.headers[-1]["X-Token"] == OTHER, result.messages


@pytest.mark.parametrize(
    "command",
    [
        "curl -skS -m 10 -H X-Token:$API_TOKEN https://pkg.test/echo",
        "curl -sS -m 10 -H X-Token:$OTHER_TOKEN https://api.test/echo",
        "curl -sS -m 10 'https://api.test/echo?token='$API_TOKEN",
        "curl -sS -m 10 -X GET -d token=$API_TOKEN https://api.test/echo",
        "curl -skS -m 10 -H X-Token:$FOREIGN https://npm.test/echo",
    ],
)
def test_no_other_host_and_no_other_part_of_a_request_gets_it(wire: Wire, upstream: Upstream, command: str) -> None:
    count = len(upstream.requests)
    result = wire.run(command, session="bash", runtime="bash")
    assert len(upstream.requests) == count + 1, result.messages
    seen = upstream.requests[-1] + json.dumps(upstream.headers[-1])
    assert VALUE not in seen
    assert OTHER not in seen


def test_a_host_with_another_certificate_gets_nothing(wire: Wire, upstream: Upstream) -> None:
    """The host that the secret is for, as a name that its certificate does not have."""
    count = len(upstream.requests)
    result = wire.run("curl -sS -m 10 -H X:$OTHER_TOKEN https://bad.pkg.test/echo", session="b2", runtime="bash")
    assert len(upstream.requests) == count
    assert "bad.pkg.test was refused" in result["notice"]


def test_a_secret_that_cannot_be_read_is_told_and_nothing_is_sent(wire: Wire, upstream: Upstream) -> None:
    count = len(upstream.requests)
    result = wire.run("curl -sS -m 10 -H X:$MISSING https://git.test/echo", session="bash", runtime="bash")
    assert "git.test:443 was refused: the secret MISSING: " in result["notice"]
    assert "No such file or directory" in result["notice"]
    assert len(upstream.requests) == count


def test_the_value_is_nowhere_but_in_the_proxy(broker: BrokerProcess, wire: Wire, place: Path) -> None:
    """Memory of every process, as a core dump would have it; environments; all files of the broker; a snapshot."""
    wire.run(READ)
    wire.run("kept = dict(os.environ)")
    wire.run("raise ValueError(os.environ['API_TOKEN'])")
    clone = wire.ask("clone", session="s", name="copy")
    assert "error" not in clone.status, clone.messages
    assert VALUE not in json.dumps([wire.run("kept, os.environ, open('/proc/self/environ').read()").messages])
    placeholder = wire.run("os.environ['API_TOKEN']").value
    assert placeholder is not None
    assert in_memory(int(wire.ask("info", session="s")["info"]["pid"]), eval(placeholder).encode()), "the search works"
    names = read_each(broker.process_tree(), "comm")
    others = [pid for pid, name in names.items() if name != b"replctl-egress\n"]
    assert len(others) == len(names) - 1
    assert not [pid for pid, text in read_each(others, "environ", at_least=5).items() if VALUE.encode() in text]
    searched = look_at_each(others, lambda pid: in_memory(pid, VALUE.encode()), at_least=5)
    assert not [names[pid] for pid, is_there in searched.items() if is_there]
    for path in broker.directory.rglob("*"):
        if path.is_file():
            assert VALUE.encode() not in path.read_bytes(), path
    assert place.exists()


def in_memory(pid: int, text: bytes) -> bool:
    """Return whether a process has this text in memory that it can write."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            begin_at, _, end_at = span.partition("-")
            if not rights.startswith("rw"):
                continue
            try:
                memory.seek(int(begin_at, 16))
                if text in memory.read(int(end_at, 16) - int(begin_at, 16)):
                    return True
            except (OSError, OverflowError):
                continue
    return False

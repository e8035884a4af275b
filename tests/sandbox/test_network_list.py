"""Network by list as a session meets it: what is refused, how it is told, what is recorded, and what a death costs."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from attack_targets import begin, end
from kit import BrokerProcess, Wire, is_alive, wait_until
from live_processes import read_each
from network_kit import HELLO, Upstream, listen_raw

ALLOWED = ["pkg.test", "*.below.test", "port.test:2222", "private.test", "mapped.test", "denied.test", "10.9.8.7:80"]
GET = "import urllib.request as r; r.urlopen('http://{}', timeout=10).read().decode()"
# A connection's outcome in a word, whatever the client makes of it.
TRY = """
import socket
def attempt(host, port, first=b"GET / HTTP/1.0\\r\\n\\r\\n"):
    try:
        with socket.create_connection((host, port), 5) as s:
            s.settimeout(5); s.sendall(first); data = b""
            while chunk := s.recv(65536):
                data += chunk
            return "reached" if b"hello from upstream" in data else "answered:" + data[:400].decode("latin-1")
    except OSError as error:
        return "refused"
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def config(upstream: Upstream) -> str:
    return upstream.config(
        ALLOWED,
        'denied-hosts = ["denied.test", "bad.below.test"]',
        more=[
            f"*.below.test=127.0.0.1:{upstream.http}",
            f"port.test=127.0.0.1:{upstream.http}",
            f"denied.test=127.0.0.1:{upstream.http}",
            "private.test=10.0.0.1",
            "mapped.test=::ffff:169.254.169.254",
        ],
    )


@pytest.fixture(scope="module")
def broker(who: str, config: str) -> Iterator[BrokerProcess]:
    agents = (
        '[[agents]]\nname = "narrow"\nallowed-hosts = ["a.below.test"]\n[[agents]]\nname = "none"\nnetwork = "none"\n'
    )
    broker = begin(who, config=config + agents, warm=1)
    yield broker
    end(broker)


@pytest.fixture
def own(who: str) -> Iterator[Callable[[str], BrokerProcess]]:
    """Start brokers of a test's own."""
    brokers: list[BrokerProcess] = []

    def start(config: str) -> BrokerProcess:
        brokers.append(begin(who, config=config, warm=1))
        return brokers[-1]

    yield start
    for broker in brokers:
        end(broker)


def attempt(wire: Wire, host: str, port: int, first: bytes | None = None, **fields: object) -> str:
    more = "" if first is None else f", {first!r}"
    result = wire.run(f"{TRY}\nattempt({host!r}, {port}{more})", timeout_ms=30_000, **fields)
    assert result.value is not None, result.messages
    return str(eval(result.value))


def attempts(wire: Wire, firsts: list[bytes]) -> list[str]:
    """Say each of these to the proxy, and return what came of it."""
    code = f"{TRY}\n[attempt('127.0.0.1', 80, first) for first in {firsts!r}]"
    result = wire.run(code, timeout_ms=60_000)
    assert result.value is not None, result.messages
    return list(eval(result.value))


@pytest.mark.parametrize("host", ["pkg.test", "PKG.test", "a.below.test", "x.y.below.test"])
def test_a_listed_name_is_reached(wire: Wire, host: str) -> None:
    assert attempt(wire, host, 80) == "reached"


def test_a_listed_port_above_1023_is_reached_and_stays_the_sessions_own_on_loopback(wire: Wire) -> None:
    assert attempt(wire, "port.test", 2222) == "reached"
    code = "s = socket.create_server(('127.0.0.1', 2222)); c = socket.create_connection(('127.0.0.1', 2222)); c.close(); s.close()"
    assert wire.run(f"import socket; {code}").status == ["done"]


@pytest.mark.parametrize(
    ("host", "port", "note"),
    [
        ("example.com", 443, "example.com was refused: it is not in sandbox.allowed-hosts"),
        ("below.test", 80, "below.test was refused: it is not in sandbox.allowed-hosts"),
        ("pkg.test.evil.com", 80, "pkg.test.evil.com was refused: it is not in sandbox.allowed-hosts"),
        ("evilpkg.test", 80, "evilpkg.test was refused: it is not in sandbox.allowed-hosts"),
        ("denied.test", 80, "denied.test was refused: sandbox.denied-hosts names it"),
        ("bad.below.test", 80, "bad.below.test was refused: sandbox.denied-hosts names it"),
        ("port.test", 80, "port.test:80 was refused: sandbox.allowed-hosts names it for port 2222"),
        ("private.test", 80, "private.test leads to 10.0.0.1, which is no public address"),
        ("mapped.test", 443, "mapped.test leads to 169.254.169.254, which is no public address"),
        ("93.184.216.34", 80, "93.184.216.34:80 was refused: it is not in sandbox.allowed-hosts"),
        ("169.254.169.254", 80, "169.254.169.254:80 was refused: it is not in sandbox.allowed-hosts"),
        ("10.0.0.1", 443, "10.0.0.1:443 was refused: it is not in sandbox.allowed-hosts"),
    ],
)
def test_the_evals_answer_says_what_was_refused_and_by_which_setting(
    wire: Wire, host: str, port: int, note: str
) -> None:
    result = wire.run(f"{TRY}\nattempt({host!r}, {port})")
    assert result.value == "'refused'"
    assert note in result["notice"], result["notice"]


def test_a_refusal_is_told_once_in_the_answer_of_the_eval_that_caused_it(wire: Wire) -> None:
    code = f"{TRY}\nfor _ in range(3): attempt('example.com', 80)"
    assert wire.run(code)["notice"].count("example.com") == 1
    assert wire.run("1").get("notice") is None


def test_many_refusals_are_told_in_a_few_words(wire: Wire) -> None:
    notice = wire.run(f"{TRY}\nfor n in range(40): attempt(f'h{{n}}.example.com', 80)")["notice"]
    assert notice.count("was refused") == 5
    assert notice.endswith("; and more")


DISGUISES = [
    *("127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "127.0.0.1.", "localhost.", "0", "0.0.0.0"),
    *("[::ffff:10.0.0.1]", "::1", "::ffff:169.254.169.254", "fe80::1%lo", "169.254.169.254.", "0xa9fea9fe"),
    *("pkg.test\0.evil.com", "evil.com\0.pkg.test", "pkg.test%2eevil.com", "user@pkg.test", "pkg.test:80@evil.com"),
    *("pkg.test.", "pkg.test..", ".pkg.test", "*.below.test", "pkg.test#.evil.com", "pkg.test/.evil.com"),
    *("ｐｋｇ.test", "pkg。test", "xn--pkg-.test", "pkg.test evil.com", "a" * 300 + ".below.test"),
    *(".".join(["a" * 63] * 4) + ".below.test", "a..below.test", "-.below.test", "pkg.test\r\nX: y", "pkg.test\ttab"),
]
TRULY = {"pkg.test."}  # a final dot is the same name


def test_no_disguise_reaches_what_is_not_listed_through_the_proxy(wire: Wire, upstream: Upstream) -> None:
    """Asked of the proxy itself, which a client with checks of its own would never be."""
    names = [host.encode("utf-8", "surrogateescape") for host in DISGUISES]
    get = b"GET / HTTP/1.0\r\n\r\n"
    connects = [b"CONNECT " + name + b":80 HTTP/1.1\r\n\r\n" + get for name in names]
    socks = [b"\x05\x01\0\x05\x01\0\x03" + bytes([len(name[:255])]) + name[:255] + b"\0\x50" + get for name in names]
    before = len(upstream.requests)
    found = attempts(wire, [*connects, *socks])
    reached = {host for host, how in zip([*DISGUISES, *DISGUISES], found, strict=True) if how == "reached"}
    assert reached == TRULY
    assert len(upstream.requests) == before + 2 * len(TRULY)


NO_REQUESTS = [
    b"\x04\x01\0\x50\x7f\0\0\x01\0",
    b"\x05\0",
    b"\x05\x01\x02",
    b"\x05\x01\0\x05\x02\0\x01\x7f\0\0\x01\0\x50",
    b"\x05\x01\0\x05\x01\0\x04" + b"\0" * 15 + b"\x01\0\x50",
    b"GET / HTTP/1.1\r\nHost: pkg.test\r\n\r\n",
    b"GET https://pkg.test/ HTTP/1.1\r\n\r\n",
    b"GET http://u:p@pkg.test/ HTTP/1.1\r\n\r\n",
    b"GET file:///etc/passwd HTTP/1.1\r\n\r\n",
    b"CONNECT pkg.test HTTP/1.1\r\n\r\n",
    b"CONNECT pkg.test:99999 HTTP/1.1\r\n\r\n",
    b"CONNECT pkg.test:22 HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\0\x01" + b"x" * 600,
    b"x" * 100_000,
    b"GET http://pkg.test/ HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
    b"\n" * 100,
]


def test_what_is_no_request_is_turned_away(wire: Wire, upstream: Upstream) -> None:
    before = len(upstream.requests)
    assert "reached" not in attempts(wire, NO_REQUESTS)
    assert len(upstream.requests) == before
    assert attempt(wire, "pkg.test", 80) == "reached"


def test_clients_that_want_a_proxy_have_one(wire: Wire) -> None:
    reached = b"CONNECT pkg.test:80 HTTP/1.1\r\nHost: pkg.test:80\r\n\r\nGET / HTTP/1.0\r\n\r\n"
    assert attempt(wire, "127.0.0.1", 80, reached) == "reached"
    assert attempt(wire, "127.0.0.1", 80, b"GET http://pkg.test/ HTTP/1.1\r\nHost: pkg.test\r\n\r\n") == "reached"
    refused = attempt(wire, "127.0.0.1", 80, b"CONNECT example.com:443 HTTP/1.1\r\n\r\n")
    assert refused.startswith("answered:HTTP/1.1 403 Forbidden")
    assert "network: example.com:443 was refused: it is not in sandbox.allowed-hosts" in refused


def test_a_lookup_leaves_the_session_with_no_query_and_other_resolvers_are_this_one(wire: Wire) -> None:
    """A datagram to any resolver is answered by the proxy's own: nothing can be told to the world in a name."""
    code = """
import socket, struct
def ask(server, name, kind=1):
    query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(p)]) + p for p in name.split(b".")) + b"\\0" + struct.pack("!HH", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5); s.connect((server, 53)); s.send(query); answer = s.recv(512)
    return answer[3] & 15, answer[7]
[ask("8.8.8.8", b"pkg.test"), ask("127.0.0.1", b"secret.evil.com"), ask("8.8.8.8", b"pkg.test", 28), ask("1.1.1.1", b"pkg.test", 16)]
"""
    assert wire.run(code).value == "[(0, 1), (3, 0), (0, 0), (0, 0)]"


def test_the_session_cannot_take_the_resolvers_port(wire: Wire) -> None:
    assert "PermissionError" in wire.run("import socket; socket.create_server(('127.0.0.53', 53))").get("err")


def test_what_was_reached_is_an_event_an_audit_line_and_counted(broker: BrokerProcess, wire: Wire) -> None:
    watching = wire.send("subscribe", types=["network/"])
    wire.until(watching, "subscribed")
    assert attempt(wire, "pkg.test", 80, b"GET /?secret=x HTTP/1.0\r\n\r\n", session="watched") == "reached"
    assert attempt(wire, "example.com", 80, session="watched") == "refused"
    seen: dict[str, dict[str, object]] = {}
    while set(seen) != {"network/reached", "network/refused"}:
        message = wire.receive()
        if "event" in message:
            seen[message["event"]["type"]] = message["event"]
    assert (seen["network/reached"]["host"], seen["network/reached"]["port"]) == ("pkg.test", 80)
    assert seen["network/reached"]["received-bytes"] >= len(HELLO)  # type: ignore[operator]
    assert seen["network/refused"]["host"] == "example.com"

    def lines() -> list[dict[str, object]]:
        text = (broker.directory / "audit.ndjson").read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return [line for line in found if line["op"] == "network" and line["session"] == "watched"]

    wait_until(lambda: {line["outcome"] for line in lines()} == {"reached", "refused"}, "both in the audit")
    reached = next(line for line in lines() if line["outcome"] == "reached")
    assert (reached["host"], reached["port"], reached["connections"]) == ("pkg.test", 80, 1)
    assert "secret" not in json.dumps(lines())
    counts = wire.ask("info", session="watched")["info"]["network"]
    assert (counts["reached"], counts["refused"]) == (1, 1)


def test_describe_and_info_show_the_list(wire: Wire) -> None:
    reply = wire.ask("describe")["sandbox"]
    assert (reply["network"], reply["allowed-hosts"]) == ("list", ALLOWED)
    wire.run("1")
    assert wire.ask("info", session="s")["info"]["sandbox"]["allowed-hosts"] == ALLOWED


def test_a_request_may_only_shorten_the_list(wire: Wire) -> None:
    assert attempt(wire, "pkg.test", 80, session="short", allowed_hosts=["a.below.test"]) == "refused"
    notice = wire.run(f"{TRY}\nattempt('pkg.test', 80)", session="short")["notice"]
    assert "pkg.test was refused: it is not in the allowed-hosts of this session" in notice
    assert attempt(wire, "a.below.test", 80, session="short") == "reached"
    assert attempt(wire, "pkg.test", 80, session="without", denied_hosts=["pkg.test"]) == "refused"
    assert attempt(wire, "pkg.test", 80, session="none", network="none") == "refused"
    for wider in ({"allowed_hosts": ["example.com"]}, {"allowed_hosts": ["*"]}, {"network": "host"}):
        result = wire.run("1", session="wide", **wider)
        assert result.status[:3] == ["done", "error", "invalid-request"], (wider, result.messages)
    assert "not NAME" in wire.run("1", session="odd", allowed_hosts=["x/y"])["err"]


def test_an_agents_rule_shortens_the_list_of_its_sessions(wire: Wire) -> None:
    assert attempt(wire, "pkg.test", 80, session="n", agent="narrow") == "refused"
    assert attempt(wire, "a.below.test", 80, session="n", agent="narrow") == "reached"
    assert attempt(wire, "pkg.test", 80, session="z", agent="none") == "refused"
    result = wire.run("1", session="w", agent="narrow", allowed_hosts=["pkg.test"])
    assert result.status[:3] == ["done", "error", "invalid-request"]


def test_a_reload_changes_what_a_running_session_may_reach(
    own: Callable[[str], BrokerProcess], upstream: Upstream
) -> None:
    broker = own(upstream.config(["git.test"]))
    with broker.wire() as wire:
        assert attempt(wire, "pkg.test", 80) == "refused"
        (broker.directory / "config.toml").write_text(upstream.config(["pkg.test"]))
        assert wire.ask("reload-config")["reloaded"] == ["sandbox.allowed-hosts"]
        wait_until(lambda: attempt(wire, "pkg.test", 80) == "reached", "the new list holds")
        assert attempt(wire, "git.test", 80) == "refused"
        assert attempt(wire, "pkg.test", 80, session="later") == "reached"


def test_a_proxy_that_is_killed_costs_its_connections_and_nothing_else(
    own: Callable[[str], BrokerProcess], upstream: Upstream
) -> None:
    broker = own(upstream.config(["pkg.test"]))
    with broker.wire() as wire:
        assert attempt(wire, "pkg.test", 80) == "reached"
        for _ in range(2):
            first = egress_pid(broker)
            os.kill(first, signal.SIGKILL)
            assert attempt(wire, "pkg.test", 80) == "reached"
            wait_until(lambda first=first: egress_pid(broker) not in (None, first), "there is another proxy")
        assert attempt(wire, "pkg.test", 80, session="new") == "reached"


def test_a_proxy_that_keeps_dying_is_given_up_and_sessions_are_refused_quickly_and_told(
    own: Callable[[str], BrokerProcess], upstream: Upstream
) -> None:
    broker = own(upstream.config(["pkg.test"]))
    with broker.wire() as wire:
        assert attempt(wire, "pkg.test", 80) == "reached"
        while "given up" not in broker.log_text() and "reach nothing" not in broker.log_text():
            pid = egress_pid(broker)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        result = wire.run(
            f"import time; t = time.monotonic()\n{TRY}\nattempt('pkg.test', 80), time.monotonic() - t < 2"
        )
        assert result.value == "('refused', True)"
        wait_until(
            lambda: wire.ask("reset", session="s") and attempt(wire, "pkg.test", 80) == "reached",
            "a new worker starts a new proxy",
        )


def test_the_proxy_ends_with_its_broker(own: Callable[[str], BrokerProcess], upstream: Upstream) -> None:
    broker = own(upstream.config(["pkg.test"]))
    with broker.wire() as wire:
        assert attempt(wire, "pkg.test", 80) == "reached"
    pid = egress_pid(broker)
    assert pid is not None
    broker.kill()
    wait_until(lambda: not is_alive(pid), "the proxy is gone")


def test_no_proxy_runs_before_a_session_has_a_list(own: Callable[[str], BrokerProcess]) -> None:
    broker = own("")
    with broker.wire() as wire:
        assert wire.run("1").value == "1"
    assert egress_pid(broker) is None


def test_connections_and_bytes_are_bounded(own: Callable[[str], BrokerProcess], upstream: Upstream) -> None:
    broker = own(upstream.config(["pkg.test"], "network-connections = 4", "network-bytes = 65536"))
    with broker.wire() as wire:
        code = """
import socket
held = [socket.create_connection(("pkg.test", 80), 5) for _ in range(4)]
for each in held:
    each.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n"); assert each.recv(1)
try:
    more = socket.create_connection(("pkg.test", 80), 5); more.sendall(b"x"); print(more.recv(1))
except OSError:
    print("refused")
for each in held:
    each.close()
"""
        result = wire.run(code)
        assert result.out == "refused\n", result.messages
        assert "4 are open (sandbox.network-connections)" in result["notice"]
        wait_until(lambda: attempt(wire, "pkg.test", 80) == "reached", "places come back")
        big = b"GET / HTTP/1.0\r\nX: " + b"y" * 60_000 + b"\r\n\r\n"
        result = wire.run(
            f"{TRY}\n[attempt('pkg.test', 80, b'GET / HTTP/1.0\\\\r\\\\nX: ' + b'y' * {len(big)} + b'\\\\r\\\\n\\\\r\\\\n') for _ in range(3)][-1]"
        )
        assert result.value == "'refused'"
        assert "all 65536 bytes are used (sandbox.network-bytes)" in result["notice"]


def test_everything_goes_through_the_upstream_proxy_where_one_is_set(
    own: Callable[[str], BrokerProcess], upstream: Upstream
) -> None:
    answer = f"HTTP/1.1 200 OK\r\n\r\nHTTP/1.0 200 OK\r\n\r\n{HELLO}".encode()
    server, port = listen_raw(answer)
    with server:
        broker = own(upstream.config(["far.test"], f'upstream-proxy = "http://127.0.0.1:{port}"'))
        with broker.wire() as wire:
            assert attempt(wire, "far.test", 80) == "reached"
            assert attempt(wire, "other.test", 80) == "refused"


def test_a_host_that_answers_without_end_or_not_at_all_holds_up_nobody(
    own: Callable[[str], BrokerProcess], upstream: Upstream
) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    endless = socket.create_server(("127.0.0.1", 0))

    def pour() -> None:
        try:
            connection, _ = endless.accept()
            with connection:
                while True:
                    connection.sendall(bytes(65536))
        except OSError:
            pass

    threading.Thread(target=pour, daemon=True).start()
    with silent, endless:
        ports = [
            f"{name}.test=127.0.0.1:{s.getsockname()[1]}" for name, s in (("silent", silent), ("endless", endless))
        ]
        broker = own(upstream.config(["pkg.test", "silent.test", "endless.test"], more=ports))
        with broker.wire() as wire:
            hold = "import socket; a = [socket.create_connection((h, 80), 5) for h in ('silent.test', 'endless.test')]"
            assert wire.run(hold, session="slow").status == ["done"]
            assert attempt(wire, "pkg.test", 80) == "reached"
            assert attempt(wire, "pkg.test", 80, session="slow") == "reached"


def egress_pid(broker: BrokerProcess) -> int | None:
    """Return the pid of the broker's proxy, by the name of the process."""
    names = read_each(broker.process_tree(), "comm")
    return next((pid for pid, name in names.items() if name == b"replctl-egress\n" and is_alive(pid)), None)

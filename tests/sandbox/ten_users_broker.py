"""A broker that ten users share, each with a session in which there is something, and something that runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import zmq

from attack_environment import PLAIN_UID
from kit import BrokerProcess, free_tcp
from replwire.keys import ClientKey, KeyPair, KeyStore, write_secret

HERE = Path(__file__).parent
FIRST_UID, USERS = 2001, 10
# Binds a socket that everybody may connect to, and becomes the broker that it is passed to, as systemd would do it.
LISTEN = (
    "import os, socket, sys; end = socket.socket(socket.AF_UNIX); end.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); "
    "end.listen(100); os.dup2(end.fileno(), 3); os.set_inheritable(3, True); "
    "os.environ |= {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'}; os.execv(sys.argv[2], sys.argv[2:])"
)


class SessionOwner(NamedTuple):
    """A user with a private session. Others may see only `number` and `identity`."""

    number: int
    identity: str
    name: str
    secret: str
    agent: str
    session: str  # its id


class TenUsersScene:
    """A broker, ten users, and a session of each with something in it and something that runs."""

    def __init__(
        self, broker: BrokerProcess, people: subprocess.Popen[str], place: Path, identities: list[str]
    ) -> None:
        self.broker = broker
        self._people = people
        self.is_root = identities[0].startswith("uid:")
        self.place = place
        self.file = str(place / "load.py")
        self.owners = [self._own(number, identity) for number, identity in enumerate(identities)]
        self.before = self.state()

    def do(self, **commands: list[Any]) -> dict[int, Any]:
        """Let users act at once, by number (`u3=["wire", …]`), and return the answers of each."""
        assert self._people.stdin is not None
        assert self._people.stdout is not None
        self._people.stdin.write(json.dumps({key[1:]: command for key, command in commands.items()}) + "\n")
        self._people.stdin.flush()
        results = {int(key): answer for key, answer in json.loads(self._people.stdout.readline()).items()}
        failed = {
            number: answer for number, answer in results.items() if isinstance(answer, dict) and "failed" in answer
        }
        assert not failed, failed
        return results

    def all_do(self, command: Callable[[int], list[Any]]) -> dict[int, Any]:
        return self.do(**{f"u{number}": command(number) for number in range(USERS)})

    def wire(self, number: int, *requests: dict[str, Any], via: str = "zmq") -> list[list[dict[str, Any]]]:
        answers: list[list[dict[str, Any]]] = self.do(**{f"u{number}": ["wire", via, list(requests)]})[number]
        return answers

    def _own(self, number: int, identity: str) -> SessionOwner:
        name, secret, agent = (f"{what}{os.urandom(6).hex()}" for what in ("n", "s", "a"))
        at = {"op": "eval", "session": name, "agent": agent}
        opened, *ran = self.wire(
            number,
            {"op": "new-session", "name": name, "agent": agent, "env": [f"SECRET={secret}"]},
            at | {"code": f"secret = '{secret}'\nprint(secret)"},
            {"op": "subscribe", "session": name, "id": f"mine-{number}", "types": ["eval/"]},
            at | {"code": "answer = input(); answer", "wait-ms": 0},
            at | {"code": "answer", "wait-ms": 0},
        )
        assert [status(messages)[-1] for messages in ran] == ["done", "subscribed", "running", "running"], ran
        (self.broker.directory / "envs" / f"@{quote(identity, safe='')}" / name).mkdir(parents=True)
        return SessionOwner(number, identity, name, secret, agent, opened[-1]["session"])

    def state(self) -> list[Any]:
        """Return the state in which an owner would notice anything that others did."""
        asked = [{"op": op, "session": None} for op in ("jobs", "history", "info")] + [
            {"op": "ls-sessions"},
            {"op": "ls-environments"},
        ]
        result = self.all_do(
            lambda n: [
                "wire",
                "zmq",
                [each | ({"session": self.owners[n].session} if "session" in each else {}) for each in asked],
            ]
        )
        found = []
        for number in range(USERS):
            jobs, history, info, listed, environments = (messages[-1] for messages in result[number])
            kept = (
                "session",
                "name",
                "owner",
                "shares",
                "session-mode",
                "epoch",
                "state",
                "eval-count",
                "queued",
                "running",
                "env",
                "environment",
            )
            found.append(
                [
                    [(job["eval-id"], job["state"], job["status"]) for job in jobs["jobs"]],
                    [entry["code"] for entry in history["history"]],
                    {key: info["info"].get(key) for key in kept},
                    [
                        (entry["session"], entry["owner"])
                        for entry in listed["sessions"]
                        if entry["session"] == self.owners[number].session
                    ],
                    environments["environments"],
                ]
            )
        return found

    def unheard(self, text: str, of: SessionOwner, sent: str) -> None:
        """Check that a text contains nothing of a session but what its reader sent."""
        for word in (of.secret, of.agent, of.name, of.session):
            assert word in sent or word not in text, (of, sent, text[:2000])


def status(messages: list[dict[str, Any]]) -> list[str]:
    """Return the final status of a request, or the one after which events follow."""
    return next((message["status"] for message in reversed(messages) if "status" in message), [])


def value(messages: list[dict[str, Any]]) -> str | None:
    return next((message["value"] for message in messages if "value" in message), None)


def references(owner: SessionOwner) -> list[str]:
    """All that a session is called by."""
    return [owner.session, f"{owner.identity}/{owner.name}", owner.name]


@contextmanager
def start_scene(who: str) -> Iterator[TenUsersScene]:
    """A broker of root's, or of an ordinary user's."""
    place, directory = (Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp")) for _ in range(2))
    place.chmod(0o755)
    (place / "load.py").write_text("loaded = 1\n")
    (place / "lines").mkdir(mode=0o700)
    broker, people = None, None
    try:
        broker, seats, identities = (_root if who == "root" else _service)(place, directory)
        for path, mode in ((place / "lines", 0o755), (place / "lines/b.sock", 0o666)):
            path.chmod(mode)
        people = subprocess.Popen(
            [sys.executable, str(HERE / "ten_users.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert people.stdin is not None
        assert people.stdout is not None
        people.stdin.write(json.dumps(seats) + "\n")
        people.stdin.flush()
        assert people.stdout.readline() == "ready\n"
        yield TenUsersScene(broker, people, place, identities)
    finally:
        if people is not None:
            _end(people)
        if broker is not None:
            assert broker.stop() == 0
            assert "internal error" not in broker.log_text()
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)


def _end(people: subprocess.Popen[str]) -> None:
    try:
        people.communicate(timeout=20)
    finally:  # where a test has failed, one of them may still wait for an answer
        if people.poll() is None:
            os.killpg(people.pid, signal.SIGKILL)
            people.communicate()


SETTINGS = ["limits.rate-limit-per-min=0", "limits.max-concurrent-evals=40", "broker.tcp=127.0.0.1:0"]


def _seat(place: Path, number: int, uid: int | None, broker: BrokerProcess, **more: Any) -> dict[str, Any]:
    home = place / f"home-{number}"
    home.mkdir(mode=0o700)
    if uid is not None:
        os.chown(home, uid, uid)
    lines = {"tcp": broker.listening["tcp"], "unix": f"lines+unix://{place}/lines/b.sock"}
    return {"uid": uid, "home": str(home), "key": None, "token": None} | lines | more


def _settings(place: Path) -> list[str]:
    return [*SETTINGS, f"broker.unix={place}/lines/b.sock", f'session.load-paths=["{place}"]']


def _root(place: Path, directory: Path) -> tuple[BrokerProcess, list[dict[str, Any]], list[str]]:
    """Everybody may come to its sockets, and the kernel says who comes."""
    broker = BrokerProcess(
        directory, *_settings(place), sandbox=True, through=[sys.executable, "-c", LISTEN, f"{place}/zmq.sock"]
    )
    uids = range(FIRST_UID, FIRST_UID + USERS)
    seats = [_seat(place, number, uid, broker, zmq=f"ipc://{place}/zmq.sock") for number, uid in enumerate(uids)]
    return broker, seats, [f"uid:{uid}" for uid in uids]


def _service(place: Path, directory: Path) -> tuple[BrokerProcess, list[dict[str, Any]], list[str]]:
    """An ordinary user's: who comes shows a key, or a token."""
    is_root = os.getuid() == 0
    keys, endpoint = KeyStore(str(directory)), free_tcp()
    server = KeyPair(*(key.decode() for key in zmq.curve_keypair()))
    keys.set_server(server)
    names = [f"agent-{number}" for number in range(USERS)]
    made = {}
    for name in names:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        keys.allow(name, public)
        keys.add_token(name, f"token of {name}")
        made[name] = ClientKey(name, server.public, public, secret)
    through = [sys.executable, str(HERE / "as_user.py")] if is_root else []
    if is_root:
        os.chown(place / "lines", PLAIN_UID, PLAIN_UID)
    broker = BrokerProcess(
        directory,
        *_settings(place),
        sandbox=True,
        through=through,
        uid=PLAIN_UID if is_root else None,
        more_endpoints=[endpoint],
    )
    seats = []
    for number, name in enumerate(names):
        uid = FIRST_UID + number if is_root else None
        seats.append(_seat(place, number, uid, broker, zmq=endpoint, token=f"token of {name}"))
        key = Path(seats[-1]["home"], "key")
        write_secret(key, made[name])
        if uid is not None:
            os.chown(key, uid, uid)
        seats[-1]["key"] = str(key)
    return broker, seats, names

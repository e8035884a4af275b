"""Several users of the machine in one process tree: `python ten_users.py` with what they do as lines of JSON on stdin.

The first line is a list with a `Seat` each. Every further one maps numbers of users to a command and its arguments; all of
them do it at once, and a line says what each was told. What is imported is imported once, before anybody is somebody.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import zmq
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from replctl import Client, ReplError
from replctl.main import main as replctl_main
from replwire.keys import read_client_key
from replworker.sandbox import identity, private_mounts, runtime_paths

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 20.0
COMMAND_S = 40  # then a user is ended: what waits for nothing must not wait for ever
WINDOW = 50  # requests under way, unless fewer are asked for
Json = dict[str, Any]


def become_seat(seat: Json) -> None:
    """Become the user of a seat, who finds this python, and nothing of anybody's in the environment."""
    if seat["uid"] is not None and os.getuid() == 0:
        private_mounts.expose_paths(
            runtime_paths.find_runtime_paths(sys.executable, more=(str(ROOT),)).paths, (), seat["uid"]
        )
        identity.drop_to_user(seat["uid"])
    os.chdir(seat["home"])
    for name in [name for name in os.environ if name.startswith("REPLCTL_")]:
        del os.environ[name]
    os.environ |= {"HOME": seat["home"], "REPLCTL_STATE_DIR": f"{seat['home']}/state", "REPLCTL_ENDPOINT": seat["zmq"]}
    if seat["key"]:
        os.environ["REPLCTL_KEY_FILE"] = seat["key"]


class UserZmqSocket:
    """A DEALER."""

    def __init__(self, seat: Json) -> None:
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.linger = 0
        if seat["key"]:
            key = read_client_key(seat["key"])
            self._socket.curve_serverkey, self._socket.curve_publickey = key.server.encode(), key.public.encode()
            self._socket.curve_secretkey = key.secret.encode()
        self._socket.connect(seat["zmq"])

    def send(self, body: bytes) -> None:
        self._socket.send(body)

    def receive(self) -> bytes:
        assert self._socket.poll(TIMEOUT_S * 1000), "no message came"
        return bytes(self._socket.recv())

    def close(self) -> None:
        self._socket.close()


class UserLineSocket:
    """A TCP or Unix socket, and a token where there is one."""

    def __init__(self, url: str, token: str | None) -> None:
        kind, _, place = url.partition("://")
        host, _, port = place.rpartition(":")
        self._socket = socket.socket(socket.AF_UNIX if kind == "lines+unix" else socket.AF_INET)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(place if kind == "lines+unix" else (host, int(port)))
        self._file = self._socket.makefile("rb")
        if token:
            self.send(json.dumps({"id": "hello", "op": "hello", "token": token}).encode())
            assert b"identity" in self.receive()

    def send(self, body: bytes) -> None:
        self._socket.sendall(body + b"\n")

    def receive(self) -> bytes:
        line = self._file.readline()
        assert line, "the connection ended"
        return line

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class UserCommands:
    """Commands of a user; each returns all answers as texts."""

    def __init__(self, seat: Json) -> None:
        self._seat = seat
        self._lines: dict[str, UserZmqSocket | UserLineSocket] = {}

    def _line(self, via: str) -> UserZmqSocket | UserLineSocket:
        if via not in self._lines:
            seat = self._seat
            self._lines[via] = UserZmqSocket(seat) if via == "zmq" else UserLineSocket(seat[via], seat["token"])
        return self._lines[via]

    def wire(self, via: str, requests: list[Json], window: int = WINDOW) -> list[list[Json]]:
        """All messages of each request, up to the one that ends it or says that more follows."""
        line = self._line(via)
        results: dict[str, list[Json]] = {}
        base, ended = f"{time.monotonic_ns()}-", set[str]()
        for number, request in enumerate(requests):
            name = request.get("id", f"{base}{number}")
            results[name] = []
            line.send(json.dumps({"id": name} | request).encode())
            while len(results) - len(ended) >= (window if number + 1 < len(requests) else 1):
                message = json.loads(line.receive())
                if message["id"] in results:
                    results[message["id"]].append(message)
                    if {"done", "subscribed"} & set(message.get("status", [])):
                        ended.add(message["id"])
        return list(results.values())

    def client(self, calls: list[list[Any]]) -> list[str]:
        """Methods of `Client`, with arguments, and options at the end."""
        found = []
        with Client(start=False) as client:
            for method, *args in calls:
                options = args.pop() if args and isinstance(args[-1], dict) else {}
                try:
                    found.append(repr(getattr(client, method)(*args, **options)))
                except ReplError as error:
                    found.append(f"{error.code}: {error}")
        return found

    def cli(self, commands: list[list[str]]) -> list[list[Any]]:
        """Commands: exit code and all that was printed."""
        return [self._command(command) for command in commands]

    @staticmethod
    def _command(command: list[str]) -> list[Any]:
        code = 0
        with tempfile.TemporaryFile("w+") as text, _printed_to(text.fileno()):
            try:
                replctl_main(command)
            except SystemExit as ended:
                code = int(ended.code or 0)
            sys.stdout.flush()
            sys.stderr.flush()
            text.seek(0)
            return [code, text.read()]

    def mcp(self, how: str, calls: list[list[Any]], resources: list[str]) -> list[str]:
        """Tools and resources, through the official client."""
        return anyio.run(self._http if how == "http" else self._stdio, calls, resources)

    @staticmethod
    async def _stdio(calls: list[list[Any]], resources: list[str]) -> list[str]:
        how = StdioServerParameters(command=sys.executable, args=["-P", "-m", "replctl", "mcp"], env=dict(os.environ))
        async with McpClient(how) as client:
            return await _ask(client, calls, resources)

    @staticmethod
    async def _http(calls: list[list[Any]], resources: list[str]) -> list[str]:
        with _served() as (url, token):
            headers = {"Authorization": f"Bearer {token}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60) as web,
                McpClient(streamable_http_client(url, http_client=web)) as client,
            ):
                return await _ask(client, calls, resources)

    def acp(self, requests: list[list[Any]]) -> list[str]:
        """Requests to an agent, one after the other: all that came until each was answered. `NEW` is the session that
        one of them has opened."""
        command = [sys.executable, "-P", "-m", "replctl", "acp"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as agent:
            assert agent.stdin is not None
            assert agent.stdout is not None
            found, opened = [], "NEW"
            for number, (method, params) in enumerate([["initialize", {"protocolVersion": 1}], *requests]):
                asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                agent.stdin.write(json.dumps(asked).replace("NEW", opened).encode() + b"\n")
                agent.stdin.flush()
                found.append("")
                while line := agent.stdout.readline():
                    found[-1] += line.decode()
                    message = json.loads(line)
                    if message.get("id") == number and "method" not in message:
                        opened = message.get("result", {}).get("sessionId", opened)
                        break
            agent.stdin.close()
            agent.wait(TIMEOUT_S)
            return found[1:]


@contextmanager
def _printed_to(file: int) -> Iterator[None]:
    """Descriptors 1 and 2 lead there meanwhile."""
    kept = [(number, os.dup(number)) for number in (1, 2)]
    for number, _ in kept:
        os.dup2(file, number)
    try:
        yield
    finally:
        for number, before in kept:
            os.dup2(before, number)
            os.close(before)


@contextmanager
def _served() -> Iterator[tuple[str, str]]:
    """An MCP server over HTTP: its address and its token."""
    command = [sys.executable, "-P", "-m", "replctl", "mcp", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            result = re.fullmatch(r"replctl: MCP at (\S+); its bearer token is in (.*)\n", process.stderr.readline())
            assert result is not None
            yield result[1], Path(result[2]).read_text().strip()
        finally:
            process.terminate()


async def _ask(client: McpClient, calls: list[list[Any]], resources: list[str]) -> list[str]:
    found = [repr(await client.call_tool(name, args)) for name, args in calls]
    found.append(repr(await client.list_resources()))
    for uri in resources:
        try:
            found.append(repr(await client.read_resource(uri)))
        except Exception as error:  # noqa: BLE001 - a refusal is an answer
            found.append(repr(error))
    return found


def serve_user(seat: Json, commands: Any, answers: Any) -> None:
    """One user's process."""
    become_seat(seat)
    user = UserCommands(seat)
    for line in commands:
        name, *args = json.loads(line)
        signal.alarm(COMMAND_S)
        try:
            answer = getattr(user, name)(*args)
        except Exception as error:  # noqa: BLE001 - told to the test, which fails by it
            answer = {"failed": f"{name}: {type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Start a process for each, and hand on what they are asked."""
    seats = json.loads(sys.stdin.readline())
    ends = []
    for seat in seats:
        (read_command, write_command), (read_answer, write_answer) = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(write_command)
            os.close(read_answer)
            for command, answer in ends:
                command.close()
                answer.close()
            with os.fdopen(read_command) as commands, os.fdopen(write_answer, "w") as answers:
                serve_user(seat, commands, answers)
            os._exit(0)
        os.close(read_command)
        os.close(write_answer)
        ends.append((os.fdopen(write_command, "w"), os.fdopen(read_answer)))
    print("ready", flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        for number, command in wanted.items():
            ends[int(number)][0].write(json.dumps(command) + "\n")
            ends[int(number)][0].flush()
        print(json.dumps({number: json.loads(ends[int(number)][1].readline()) for number in wanted}), flush=True)
    for command, _ in ends:
        command.close()
    for _ in ends:
        os.wait()


if __name__ == "__main__":
    main()

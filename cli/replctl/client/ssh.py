"""Brokers of other machines over the user's own ssh: `ssh://[USER@]HOST[:PORT][/SOCKET]`.

ssh forwards a socket of this machine to the broker's socket over there, so the kernel there reports the user that ssh
logs in as. The program `ssh` does all of it, with the user's keys, configuration and known hosts.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from typing import NamedTuple

from replctl.client.errors import ReplError

SCHEME = "ssh://"
LOGIN_SECONDS = 120.0  # a person may have to type a password
END_SECONDS = 5.0
_FORM = re.compile(r"ssh://(?:([\w.-]+)@)?([\w.-]+|\[[0-9a-fA-F:]+\])(?::(\d{1,5}))?(/[^:]+)?\Z")
_READY = b"replctl-ready"
_ASK = "replctl status --json"
_START = "replctl ls --quiet >/dev/null && "  # as any command does, it starts a broker


class SshTarget(NamedTuple):
    """A broker's place: where to log in, and the broker's socket there; None for the user's own broker."""

    login: tuple[str, ...]  # arguments of ssh
    socket: str | None


def parse_ssh(endpoint: str) -> SshTarget:
    """Parse an endpoint. Raises ReplError `invalid-request` for another form."""
    match = _FORM.match(endpoint)
    if match is None or match[2].startswith("-") or (match[1] or "").startswith("-"):
        raise ReplError("invalid-request", f"not ssh://[USER@]HOST[:PORT][/SOCKET]: {endpoint}")
    user, host, port, path = match.groups()
    login = (*(("-p", port) if port else ()), *(("-l", user) if user else ()), "--", host.strip("[]"))
    return SshTarget(login, path)


class SshTunnel:
    """A forwarded socket, in a private directory, and the ssh that serves it.

    The ssh ends when this process closes its input: with `close`, or by dying.

    Args:
        endpoint: Where the broker is.
        start: Start a broker there if none is running.

    Raises:
        ReplError: `no-broker` if ssh is missing or fails, or if no broker is running there.
    """

    def __init__(self, endpoint: str, start: bool) -> None:
        self._target, self._endpoint = parse_ssh(endpoint), endpoint
        if shutil.which("ssh") is None:
            raise ReplError("no-broker", f"{endpoint} needs the program ssh, which is not on the PATH")
        remote = self._target.socket or self._find_socket(start)
        self._directory = tempfile.mkdtemp(prefix="replctl-ssh-")
        self.path = os.path.join(self._directory, "s")
        self._process = self._run_ssh(
            ("-o", "ExitOnForwardFailure=yes", "-L", f"{self.path}:{remote}"), f"echo {_READY.decode()}; exec cat"
        )
        try:
            self._wait_until_ready()
        except ReplError:
            self.close()
            raise

    def _run_ssh(self, options: tuple[str, ...], command: str) -> subprocess.Popen[bytes]:
        # Its stderr is the user's: ssh asks for passwords and names unknown hosts there.
        words = ["ssh", "-T", *options, *self._target.login, command]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=False)

    def _find_socket(self, start: bool) -> str:
        """Return the socket of the user's broker on the other machine, as that one's `replctl` tells."""
        with self._run_ssh((), (_START if start else "") + _ASK) as asked:
            try:
                out, _ = asked.communicate(timeout=LOGIN_SECONDS)
            except subprocess.TimeoutExpired:
                asked.kill()
                raise self._error(f"ssh has not answered for {LOGIN_SECONDS:g} s") from None
        try:
            endpoint = str(json.loads(out.splitlines()[-1])["endpoint"])
        except (ValueError, LookupError, TypeError):
            why = (
                "no broker is running there"
                if asked.returncode == 3
                else f"ssh or replctl there ended with {asked.returncode}"
            )
            raise self._error(why) from None
        if not endpoint.startswith("ipc:///"):
            raise self._error(f"its broker listens at {endpoint}, which ssh cannot forward")
        return endpoint.removeprefix("ipc://")

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        deadline, got = time.monotonic() + LOGIN_SECONDS, b""
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        while _READY not in got:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise self._error(f"ssh has not logged in within {LOGIN_SECONDS:g} s")
            chunk = os.read(self._process.stdout.fileno(), 4096)
            if not chunk:
                raise self._error("ssh ended before the broker's socket was forwarded")
            got += chunk

    def _error(self, why: str) -> ReplError:
        return ReplError("no-broker", f"cannot reach {self._endpoint}: {why}")

    def close(self) -> None:
        """End the ssh and remove the socket."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)

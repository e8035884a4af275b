"""A stub broker in a thread: a ROUTER that answers as each test scripts it; and the environment of a command."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30  # seconds until a test that hangs is given up

Send = Callable[..., None]
Script = Callable[[dict[str, Any], Send], None]


def send_done(say: Send, **fields: Any) -> None:
    """The usual end of an eval in session `default`."""
    say(
        **{
            "status": ["done"],
            "eval-id": 1,
            "epoch": 1,
            "state": "kept",
            "session": "u-1",
            "name": "default",
            "duration-ms": 1.5,
            **fields,
        }
    )


class StubBroker:
    """Answers by `script(request, say)`, where `say(**fields)` sends one message with the request's id."""

    def __init__(self, endpoint: str, script: Script) -> None:
        self.endpoint = endpoint
        self.requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self._script = script
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(endpoint)
        self._end = self._context.socket(zmq.PAIR)
        self._end.bind("inproc://end")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def next_request(self) -> dict[str, Any]:
        """The next request that came."""
        return self.requests.get(timeout=TIMEOUT_S)

    def stop(self) -> None:
        """Go away without a word."""
        if self._thread.is_alive():
            with contextlib.suppress(zmq.ZMQError):
                self._end.send(b"", zmq.NOBLOCK)
        self._thread.join(TIMEOUT_S)
        self._end.close(0)
        self._context.term()  # waits for what was said to leave

    def _run(self) -> None:
        stop = self._context.socket(zmq.PAIR)
        stop.connect("inproc://end")
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(stop, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if stop in ready:
                break
            peer, body = self._router.recv_multipart()
            request = json.loads(body)
            self.requests.put(request)

            def say(peer: bytes = peer, request: dict[str, Any] = request, **fields: Any) -> None:
                body = fields.pop("raw", None) or json.dumps({"id": request["id"], **fields}).encode()
                self._router.send_multipart([peer, body])

            try:
                self._script(request, say)
            except ConnectionAbortedError:  # the script's way to make the broker die
                break
        stop.close(0)
        self._router.close(1000)  # what was said before still arrives


def command_environment(state: Path, **more: str) -> dict[str, str]:
    """The environment of a command: our packages, a state directory of its own, nothing of the user's."""
    parts = [str(ROOT / part) for part in ("wire", "worker", "broker", "cli")]
    roots = os.pathsep.join([*parts, *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REPLCTL_", "XDG_"))}
    return {**kept, "PYTHONPATH": roots, "REPLCTL_STATE_DIR": str(state), "HOME": str(state), **more}

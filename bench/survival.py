"""A broker with few descriptors and default settings: thousands of connections, hundreds of sessions, and what is left.

The broker may open 1024 files. One user opens 5000 connections that say nothing, four others ask for 400 sessions while
they stand. A session that was there before answers all the time, and when the crowd has gone all is as before.
"""

from __future__ import annotations

import json
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zmq

from bench import ours, procs, shared
from bench.floor import dealer
from bench.stats import Check, FactSheet
from bench.turns import BenchPlan
from replwire.faults import FAULTS, ExitCode

_DESCRIPTORS = 1024
_USERS = range(2003, 2007)  # who ask for sessions
_MOST_PING_MS = 100.0
_HEALS_S = 30.0
_CROWD_S = 120.0
_EVERY_S = 0.1


class PriorSession:
    """The session from before, of the broker's own user, and of one who comes later."""

    def __init__(self, url: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = dealer(self._context, url)
        self.pings_ms: list[float] = []
        self._ask(op="eval", session="old", code="x = 41", **{"if-missing": "create"})

    def check(self) -> None:
        """Raise unless it answers, with the state that it had."""
        began = time.perf_counter()
        self._ask(op="ping")
        self.pings_ms.append((time.perf_counter() - began) * 1000)
        if (value := self._ask(op="eval", session="old", code="x + 1")) != "42":
            raise ours.BenchRequestRefused(f"the session from before says {value}")

    def connections(self) -> int:
        """As many as the broker counts."""
        self._socket.send(ours.encode({"id": "s", "op": "stats"}))
        stats = ours.decode(self._socket.recv()).stats or {}
        return int(stats.get("connections", 0))

    def _ask(self, **body: object) -> str | None:
        self._socket.send(ours.encode({"id": "o", **body}))
        value = None
        while True:
            text = ours.decode(self._socket.recv())
            value = text.value or value
            if text.status is not None and "done" in text.status:
                if "error" in text.status:
                    raise ours.BenchRequestRefused(f"{text.status}: {text.err}")
                return value

    def close(self) -> None:
        """End the connection."""
        self._context.destroy(linger=0)


def measure(plan: BenchPlan) -> list[FactSheet]:
    """Return the outcome in counts and words."""
    with shared.broker(wrap=["prlimit", f"--nofile={_DESCRIPTORS}:{_DESCRIPTORS}"]) as broker:
        old = PriorSession(broker.own)
        try:
            return [_measure_survival(broker, old, plan.of(5000, 1500), plan.of(400, 240))]
        finally:
            old.close()


def _measure_survival(broker: shared.SharedBroker, old: PriorSession, connections: int, sessions: int) -> FactSheet:
    found = FactSheet("survival", f"A broker with {_DESCRIPTORS} descriptors, under a crowd ({shared.users()})")
    untyped, opened, healed = sessions, 0, _HEALS_S
    try:
        old.check()
        quiet = old.connections()
        with _start_module("idle", "2002", broker.zmq, broker.lines, str(connections)) as fates:
            found.rows.append((f"{connections} connections that say nothing", _text(fates(old))))
            found.rows.append(("files that the broker has open then", str(_open_files(broker.pid))))
            each = str(sessions // len(_USERS))
            with _openers(broker, each) as words:
                asked = words(old)
                found.rows.append((f"{sessions} sessions asked for at once by {len(_USERS)} others", _text(asked)))
                untyped = sum(count for word, count in asked.items() if not _is_typed(word))
                opened = asked.get("done", 0)
        began = time.monotonic()
        while old.connections() > quiet and time.monotonic() - began < _HEALS_S:
            time.sleep(_EVERY_S)
        with _start_module("openers", str(_USERS[0]), broker.zmq, "1") as word:
            found.rows.append(("one more session, when all of them have gone", _text(word(old))))
        healed = time.monotonic() - began
    except (zmq.Again, zmq.ZMQError, EOFError, OSError, ours.BenchRequestRefused) as error:
        last = broker.log.read_text().splitlines()[-1:]
        found.rows.append(("then", f"{type(error).__name__}: {error}; the broker's log ends: {' '.join(last)}"))
    found.checks += [
        Check("requests for sessions that were neither done nor refused with a word", untyped, 0, True, ""),
        Check("sessions that were opened beside the crowd", opened, 1, False, ""),
        Check("seconds until all is as before", healed, _HEALS_S - 1, True, ""),
        Check("worst ping of the session from before", max(old.pings_ms, default=1e6), _MOST_PING_MS, True, "ms"),
    ]
    return found


@contextmanager
def _start_module(*argv: str) -> Iterator[Callable[[PriorSession], Mapping[str, int]]]:
    """Start a process, and return its report when it has done its worst; the earlier session is asked all the while."""
    process = procs.start_module(*argv)

    def words(old: PriorSession) -> Mapping[str, int]:
        over = time.monotonic() + _CROWD_S
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], _EVERY_S)[0]:
            old.check()
            if time.monotonic() > over:
                raise EOFError(f"{argv[0]} does not come to an end")
        old.check()
        result: dict[str, int] = json.loads(procs.read_line(process))
        return result

    try:
        yield words
        procs.send_line(process)
        process.wait(procs.END_S)
    finally:
        procs.stop(process)


@contextmanager
def _openers(broker: shared.SharedBroker, each: str) -> Iterator[Callable[[PriorSession], Mapping[str, int]]]:
    with ExitStack() as stack:
        running = [stack.enter_context(_start_module("openers", str(uid), broker.zmq, each)) for uid in _USERS]

        def words(old: PriorSession) -> Mapping[str, int]:
            return sum((Counter(each(old)) for each in running), Counter())

        yield words


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _is_typed(word: str) -> bool:
    return word == "done" or (word in FAULTS and FAULTS[word].exit == ExitCode.REFUSED)


def _text(words: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(words.items()) if count)

"""What extensions contribute to a broker, put where it is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from replbroker.core.broker import Core
from replbroker.core.effects import Effect
from replbroker.endpoints import StartError
from replbroker.hooks import Hooks, Judged
from replbroker.watch.base import SessionBackend as Backend
from replwire.ext.contracts import AuthBackend, Hook, Introspect, Runtime, SessionBackend
from replwire.ext.registry import Record, Registry
from replwire.extensions import Extension
from replwire.limits import Limits

_SNAPSHOT_BYTES = 64 * 1024
_SLOW_S = 0.05  # the loop stood still for so long: worth an `extension/error`


def _load(extensions: Sequence[Extension], registry: Registry) -> list[str]:
    from replwire.ext.loading import CannotLoad, load  # most brokers have none, and need no pluggy

    try:
        return load(extensions, registry)
    except CannotLoad as error:
        raise StartError(str(error)) from None


class Extending:
    """The extensions of one broker. What fails is told once the core listens. Raises StartError when one cannot be
    loaded: a broker without a guard that its config names must not serve."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self.registry = Registry(self._failed)
        self._tell: Callable[[Record, str], None] = lambda *_: None
        self.owners = _load(extensions, self.registry) if extensions else []

    # --- before there is a core ---

    @property
    def has_hooks(self) -> bool:
        """Whether evals are judged."""
        return bool(self.registry.of(Hook))

    def runtimes(self) -> dict[str, tuple[str, Runtime]]:
        """Interpreters that this machine has, by name."""
        found = {}
        for record in self.registry.of(Runtime):
            assert isinstance(record.what, Runtime)
            path = self.registry.guarded(record, record.what.interpreter, None)
            if path is not None:
                found[record.what.name] = path, record.what
        return found

    def name_of_token(self, token: str) -> str | None:
        """Whose token it is, as `NAME:IDENTITY`; the first backend that knows it counts."""
        for record in self.registry.of(AuthBackend):
            assert isinstance(record.what, AuthBackend)
            identify = record.what.identify
            who = self._timed(record, partial(identify, token), None)
            if who:
                return f"{record.what.name}:{who}"
        return None

    def standing(self, identity: str) -> frozenset[object]:
        """The backend here that vouches for this identity, if any."""
        found = self.registry.find(AuthBackend, identity.partition(":")[0])
        return frozenset() if found is None else frozenset([found[0]])

    def backend(self, name: str, folder: Path, session_bytes: int) -> Backend:
        """The storage of transcripts of this name. Raises StartError when there is none."""
        found = self.registry.find(SessionBackend, name)
        if found is None:
            some = ["jsonl", "sqlite", "off", *(each.what.name for each in self.registry.of(SessionBackend))]
            raise StartError(f"transcript.backend {name}: there are {', '.join(some)}")
        backend: Backend = found[1].backend(folder, session_bytes)
        return backend

    # --- with it ---

    def join(self, core: Core, limits: Limits, do: Callable[[list[Effect]], None]) -> Hooks | None:
        """Tell the core from here on; the hooks, if there are any. `do` does the core's effects."""

        def tell(record: Record, error: str) -> None:
            about = f"{record.what.kind} {record.what.name}"
            do(core.extension_failed(record.owner, about, error, time.monotonic()))

        def heard(judged: Judged) -> None:
            for record, error in judged.failed:
                tell(record, error)
            do(core.judged(judged.route, judged.question, judged.verdict, judged.hook, time.monotonic()))

        self._tell, begun = tell, time.monotonic()
        for owner in self.owners:
            core.extension_loaded(owner, [f"{each['kind']} {each['name']}" for each in self._of(owner)], begun)
        if not self.has_hooks:
            return None
        return Hooks(self.registry, limits.hook_time_ms / 1000, heard)

    def snapshots(self) -> dict[str, Callable[[], Any]]:
        """For `introspect`: a list of what is loaded, and what extensions show of themselves."""
        table: dict[str, Callable[[], Any]] = {"extensions": self.registry.listing} if self.owners else {}
        for record in self.registry.of(Introspect):
            assert isinstance(record.what, Introspect)
            table[record.label] = partial(self._snapshot, record, record.what.snapshot)
        return table

    def _snapshot(self, record: Record, snapshot: Callable[[], Any]) -> Any:
        body = self._timed(record, lambda: msgspec.json.encode(snapshot()), None)
        if body is None:
            return {"error": "it failed; see the event extension/error"}
        if len(body) > _SNAPSHOT_BYTES:
            return {"error": f"longer than {_SNAPSHOT_BYTES} bytes"}
        return msgspec.Raw(body)

    def _of(self, owner: str) -> list[dict[str, str]]:
        return [each for each in self.registry.listing() if each["owner"] == owner]

    def _timed(self, record: Record, call: Callable[[], Any], otherwise: Any) -> Any:
        begun = time.monotonic()
        found = self.registry.guarded(record, call, otherwise)
        took = time.monotonic() - begun
        if took > _SLOW_S:
            self._tell(record, f"held the broker up for {took * 1000:.0f} ms")
        return found

    def _failed(self, record: Record, error: BaseException) -> None:
        what = "" if record.what.kind == AuthBackend.kind else f": {error}"  # which may quote the token
        self._tell(record, type(error).__name__ + what)

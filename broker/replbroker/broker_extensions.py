"""What extensions contribute to a broker, put where it is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from replbroker.core.effects import Effect
from replbroker.core.engine import BrokerCore
from replbroker.endpoints import StartError
from replbroker.hook_runner import HookOutcome, HookRunner
from replbroker.sinks.event_sink import TranscriptBackend as Backend
from replwire.ext.contracts import Hook, IdentityBackend, IntrospectSource, Runtime, SessionBackend
from replwire.ext.registry import ExtensionRegistry, Registration
from replwire.extensions import Extension
from replwire.limits import Limits

_SNAPSHOT_BYTES = 64 * 1024
_SLOW_CALL_S = 0.05  # the loop stood still for so long: worth an `extension/error`


def _load(extensions: Sequence[Extension], registry: ExtensionRegistry) -> list[str]:
    from replwire.ext.loading import ExtensionLoadError, load  # most brokers have none, and need no pluggy

    try:
        return load(extensions, registry)
    except ExtensionLoadError as error:
        raise StartError(str(error)) from None


class BrokerExtensions:
    """The extensions of one broker. What fails is told once the core listens. Raises StartError when one cannot be
    loaded: a broker without a guard that its config names must not serve."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self.registry = ExtensionRegistry(self._on_failure)
        self._report: Callable[[Registration, str], None] = lambda *_: None
        self.owners = _load(extensions, self.registry) if extensions else []

    # --- before there is a core ---

    @property
    def has_hooks(self) -> bool:
        """Whether evals are judged."""
        return bool(self.registry.by_kind(Hook))

    def runtimes(self) -> dict[str, tuple[str, Runtime]]:
        """Interpreters that this machine has, by name."""
        found = {}
        for record in self.registry.by_kind(Runtime):
            assert isinstance(record.contribution, Runtime)
            path = self.registry.call_safely(record, record.contribution.interpreter, None)
            if path is not None:
                found[record.contribution.name] = path, record.contribution
        return found

    def name_for_token(self, token: str) -> str | None:
        """Whose token it is, as `NAME:IDENTITY`; the first backend that knows it counts."""
        for record in self.registry.by_kind(IdentityBackend):
            assert isinstance(record.contribution, IdentityBackend)
            identify = record.contribution.identify
            who = self._call_timed(record, partial(identify, token), None)
            if who:
                return f"{record.contribution.name}:{who}"
        return None

    def credentials_of(self, identity: str) -> frozenset[object]:
        """The backend here that vouches for this identity, if any."""
        found = self.registry.find(IdentityBackend, identity.partition(":")[0])
        return frozenset() if found is None else frozenset([found[0]])

    def create_transcript_backend(self, name: str, directory: Path, session_bytes: int) -> Backend:
        """The storage of transcripts of this name. Raises StartError when there is none."""
        found = self.registry.find(SessionBackend, name)
        if found is None:
            some = [
                "jsonl",
                "sqlite",
                "off",
                *(each.contribution.name for each in self.registry.by_kind(SessionBackend)),
            ]
            raise StartError(f"transcript.backend {name}: there are {', '.join(some)}")
        backend: Backend = found[1].backend(directory, session_bytes)
        return backend

    # --- with it ---

    def attach(
        self, core: BrokerCore, limits: Limits, apply_effects: Callable[[list[Effect]], None]
    ) -> HookRunner | None:
        """Tell the core from here on; the hooks, if there are any. `do` does the core's effects."""

        def tell(record: Registration, error: str) -> None:
            about = f"{record.contribution.kind} {record.contribution.name}"
            apply_effects(core.on_extension_failed(record.owner, about, error, time.monotonic()))

        def heard(judged: HookOutcome) -> None:
            for record, error in judged.failed:
                tell(record, error)
            apply_effects(
                core.handle_verdict(judged.route, judged.question, judged.verdict, judged.hook, time.monotonic())
            )

        self._report, begun = tell, time.monotonic()
        for owner in self.owners:
            core.on_extension_loaded(
                owner, [f"{each['kind']} {each['name']}" for each in self._contributions_of(owner)], begun
            )
        if not self.has_hooks:
            return None
        return HookRunner(self.registry, limits.hook_time_ms / 1000, heard)

    def snapshots(self) -> dict[str, Callable[[], Any]]:
        """For `introspect`: a list of what is loaded, and what extensions show of themselves."""
        table: dict[str, Callable[[], Any]] = {"extensions": self.registry.listing} if self.owners else {}
        for record in self.registry.by_kind(IntrospectSource):
            assert isinstance(record.contribution, IntrospectSource)
            table[record.label] = partial(self._snapshot, record, record.contribution.snapshot)
        return table

    def _snapshot(self, record: Registration, snapshot: Callable[[], Any]) -> Any:
        body = self._call_timed(record, lambda: msgspec.json.encode(snapshot()), None)
        if body is None:
            return {"error": "it failed; see the event extension/error"}
        if len(body) > _SNAPSHOT_BYTES:
            return {"error": f"longer than {_SNAPSHOT_BYTES} bytes"}
        return msgspec.Raw(body)

    def _contributions_of(self, owner: str) -> list[dict[str, str]]:
        return [each for each in self.registry.listing() if each["owner"] == owner]

    def _call_timed(self, record: Registration, call: Callable[[], Any], otherwise: Any) -> Any:
        begun = time.monotonic()
        found = self.registry.call_safely(record, call, otherwise)
        took = time.monotonic() - begun
        if took > _SLOW_CALL_S:
            self._report(record, f"held the broker up for {took * 1000:.0f} ms")
        return found

    def _on_failure(self, record: Registration, error: BaseException) -> None:
        what = "" if record.contribution.kind == IdentityBackend.kind else f": {error}"  # which may quote the token
        self._report(record, type(error).__name__ + what)

"""The extensions of a broker, connected to the parts that use their contributions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from replbroker.core.engine import BrokerCore
from replbroker.endpoints import StartError
from replbroker.hook_runner import HookFailure, HookRunner
from replbroker.operation_runner import OperationRunner
from replbroker.sinks.transcript_backend import TranscriptBackend
from replwire.ext.contracts import ExtensionOperation, Hook, IdentityBackend, IntrospectSource, Runtime, SessionBackend
from replwire.ext.registry import ExtensionRegistry, Registration
from replwire.extensions import Extension
from replwire.ops.extension import ExtensionRequest

_SNAPSHOT_BYTES = 64 * 1024
_SLOW_CALL_S = 0.05  # a call that held the loop up for longer is worth an `extension/error`


def _load(extensions: Sequence[Extension], registry: ExtensionRegistry) -> list[str]:
    from replwire.ext.loading import ExtensionLoadError, load  # most brokers have no extensions, and need no pluggy

    try:
        owners = load(extensions, registry)
    except ExtensionLoadError as error:
        raise StartError(str(error)) from None
    if missing := registry.missing_operations():
        raise StartError("\n".join(missing))
    return owners


class BrokerExtensions:
    """Loaded extensions, and the failures of their contributions.

    Args:
        extensions: Extensions of the settings.

    Raises:
        StartError: One cannot be loaded; a broker must not serve without a guard that its settings name.
    """

    def __init__(self, extensions: Sequence[Extension]) -> None:
        self._registry = ExtensionRegistry(self._on_failure)
        self._failures: list[HookFailure] = []
        self._owners = _load(extensions, self._registry) if extensions else []

    # --- contributions ---

    @property
    def has_hooks(self) -> bool:
        """True if hooks decide about evals."""
        return bool(self._registry.by_kind(Hook))

    def build_hook_runner(self, timeout_s: float) -> HookRunner | None:
        """Start the runner of the hooks, if there are any; a hook has `timeout_s` seconds to decide."""
        return HookRunner(self._registry, timeout_s) if self.has_hooks else None

    def build_operation_runner(self) -> OperationRunner:
        """Return the runner of the operations; it has no thread while none is under way."""
        return OperationRunner(self._find_operation, self._on_failure)

    def _find_operation(self, name: str) -> Registration:
        found = self._registry.find(ExtensionOperation, name)
        assert found is not None, "the core knows the registered operations only"
        return found[0]

    def describe_operations(self) -> dict[str, dict[str, Any]]:
        """Return the operations as data, as `describe` lists the broker's own."""
        found = {}
        for registration in self._registry.by_kind(ExtensionOperation):
            operation = registration.contribution
            assert isinstance(operation, ExtensionOperation)
            fields = msgspec.structs.fields(operation.args)
            found[operation.name] = {
                "doc": " ".join((operation.args.__doc__ or "").split()),
                "requires": [field.encode_name.replace("_", "-") for field in fields if field.required],
                "optional": [field.encode_name.replace("_", "-") for field in fields if not field.required],
                "returns": list(ExtensionRequest.returns),
                "changes": operation.changes,
                "extension": registration.owner,
            }
        return found

    def runtimes(self) -> dict[str, tuple[str, Runtime]]:
        """Return interpreter and runtime by name, as far as this machine has the interpreter."""
        found = {}
        for registration in self._registry.by_kind(Runtime):
            runtime = registration.contribution
            assert isinstance(runtime, Runtime)
            path = self._registry.call_safely(registration, runtime.interpreter, None)
            if path is not None:
                found[runtime.name] = path, runtime
        return found

    def name_for_token(self, token: str) -> str | None:
        """Return the token's identity as `NAME:IDENTITY`, of the first backend that knows the token."""
        for registration in self._registry.by_kind(IdentityBackend):
            backend = registration.contribution
            assert isinstance(backend, IdentityBackend)
            identity = self._call_timed(registration, partial(backend.identify, token), None)
            if identity:
                return f"{backend.name}:{identity}"
        return None

    def credentials_of(self, identity: str) -> frozenset[object]:
        """Return the registration of the backend that vouches for this identity, if it is loaded."""
        found = self._registry.find(IdentityBackend, identity.partition(":")[0])
        return frozenset() if found is None else frozenset([found[0]])

    def create_transcript_backend(self, name: str, directory: Path, session_bytes: int) -> TranscriptBackend:
        """Create the transcript storage of this name.

        Args:
            name: Name of a `session-backend` contribution.
            directory: Where transcripts are stored.
            session_bytes: Bound on one session's transcript, in bytes.

        Raises:
            StartError: There is none of this name.
        """
        found = self._registry.find(SessionBackend, name)
        if found is None:
            names = [each.contribution.name for each in self._registry.by_kind(SessionBackend)]
            raise StartError(f"transcript.backend {name}: there are {', '.join(['jsonl', 'sqlite', 'off', *names])}")
        backend: TranscriptBackend = found[1].backend(directory, session_bytes)
        return backend

    def snapshots(self) -> dict[str, Callable[[], Any]]:
        """Return the snapshots for `introspect`: the list of contributions, and what extensions contribute."""
        table: dict[str, Callable[[], Any]] = {"extensions": self._registry.listing} if self._owners else {}
        for registration in self._registry.by_kind(IntrospectSource):
            source = registration.contribution
            assert isinstance(source, IntrospectSource)
            table[registration.label] = partial(self._snapshot, registration, source.snapshot)
        return table

    def _snapshot(self, registration: Registration, snapshot: Callable[[], Any]) -> Any:
        body = self._call_timed(registration, lambda: msgspec.json.encode(snapshot()), None)
        if body is None:
            return {"error": "it failed; see the event extension/error"}
        if len(body) > _SNAPSHOT_BYTES:
            return {"error": f"longer than {_SNAPSHOT_BYTES} bytes"}
        return msgspec.Raw(body)

    # --- reports ---

    def announce(self, core: BrokerCore) -> None:
        """Report every loaded extension to the core."""
        now = time.monotonic()
        for owner in self._owners:
            core.on_extension_loaded(owner, self._contributions_of(owner), now)

    @property
    def has_failures(self) -> bool:
        """True if some contribution has failed since the last `take_failures`."""
        return bool(self._failures)

    def take_failures(self) -> list[HookFailure]:
        """Return the failures since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def _contributions_of(self, owner: str) -> list[str]:
        return [f"{each['kind']} {each['name']}" for each in self._registry.listing() if each["owner"] == owner]

    def _call_timed(self, registration: Registration, call: Callable[[], Any], otherwise: Any) -> Any:
        started_at = time.monotonic()
        result = self._registry.call_safely(registration, call, otherwise)
        took = time.monotonic() - started_at
        if took > _SLOW_CALL_S:
            self._failures.append((registration, f"held the broker up for {took * 1000:.0f} ms"))
        return result

    def _on_failure(self, registration: Registration, error: BaseException) -> None:
        is_secret = registration.contribution.kind == IdentityBackend.kind  # its message may quote the token
        self._failures.append((registration, type(error).__name__ + ("" if is_secret else f": {error}")))

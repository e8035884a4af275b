"""What the core knows of the sandbox: whether there is one, what was observed of it, and what a request may ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from replwire.faults import RequestError
from replwire.ops import OpensSession
from replwire.policy import Policy, SandboxOverrides, tighten

_MAX_CAUSE = 2000
_decode_tighter = msgspec.json.Decoder(SandboxOverrides).decode


@dataclass(frozen=True, kw_only=True)
class SandboxStatus:
    """`policy` None: sessions run without one, as the config says. `trouble`: why there is none although there has
    to be. `late_folders`: a sandbox that runs already can be given a folder."""

    policy: Policy | None = None
    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    problem: str | None = None
    can_hot_mount: bool = True

    def require(self) -> None:
        """Raises Refusal when there is none although there has to be."""
        if self.problem is not None:
            hint = "replctl doctor says what is missing; nothing runs unsandboxed unless the config file allows it"
            err = "sessions cannot be sandboxed here"
            raise RequestError("sandbox-unavailable", err, cause=self.problem[:_MAX_CAUSE], hint=hint)

    def encode_overrides(self, request: OpensSession) -> bytes | None:
        """What this request makes tighter, for its spec. Raises Refusal."""
        asked = request.sandbox_overrides()
        if asked is None:
            return None
        if self.policy is None:
            raise RequestError(
                "sandbox-unavailable", "sessions run unsandboxed here, so nothing of it can be made tighter"
            )
        try:
            tighten(self.policy, asked)
        except ValueError as error:
            raise RequestError("invalid-request", str(error)) from None
        return msgspec.json.encode(asked)

    def covers(self, asked: SandboxOverrides, tighter: bytes | None) -> bool:
        """Whether a session of which `tighter` was asked is as tight as `asked`, and allows no less."""
        if self.policy is None:
            return False
        try:
            has = self.policy if tighter is None else tighten(self.policy, _decode_tighter(tighter))
            return tighten(has, asked) == has
        except ValueError:
            return False

    def memory_limit(self, tighter: bytes | None) -> int | None:
        """What one session may use, of which `tighter` was asked; None where it has no sandbox."""
        if self.policy is None:
            return None
        asked = None if tighter is None else _decode_tighter(tighter).memory_bytes
        return self.policy.limits.memory_bytes if asked is None else asked

    def show(self) -> dict[str, Any] | str:
        """For `describe` and `info`."""
        if self.policy is None:
            return "none"
        return {
            "profile": self.policy.profile,
            "network": self.policy.network,
            "read": self.policy.read,
            "layers": list(self.layers),
            "missing": list(self.missing),
        }

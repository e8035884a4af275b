"""Attempts on another user's session: every operation of the wire, through each interface."""

from __future__ import annotations

from typing import Any, NamedTuple

from ten_users_broker import SessionOwner, TenUsersScene

NOT_FOUND = "session-not-found"


class Attempt(NamedTuple):
    """An operation on a session: its fields, `SESSION` being what the session is called by, what a stranger is told, and
    whether the owner is asked for the same here, rather than by a test of its own."""

    fields: dict[str, Any]
    code: str = NOT_FOUND
    own: bool = True


S = {"session": "SESSION"}
ATTEMPTS: dict[str, Attempt] = {
    "eval": Attempt(S | {"code": "secret"}),
    "load-file": Attempt(S | {"file": "FILE"}),
    "reload-file": Attempt(S | {"file": "FILE"}),
    "put-file": Attempt(S | {"file": "planted"}),
    "get-file": Attempt(S | {"file": "planted"}),
    "read": Attempt(S | {"eval-id": 1}),
    "interrupt": Attempt(S | {"all": True}),
    "stdin": Attempt(S | {"input": "not yours\n"}),
    "jobs": Attempt(S),
    "history": Attempt(S),
    "stack": Attempt(S),
    "complete": Attempt(S | {"code": "secr", "pos": 4}),
    "lookup": Attempt(S | {"symbol": "secret"}),
    "ls-bindings": Attempt(S),
    "info": Attempt(S),
    "subscribe": Attempt(S | {"output": True}),
    "share": Attempt(S | {"who": "ATTACKER", "level": "write"}),
    "set-mode": Attempt(S | {"to": "normal"}),
    "env": Attempt(S | {"action": "show"}),
    "clone": Attempt(S | {"name": "copy"}),
    "clone-session": Attempt({"source": "SESSION", "name": "copy-2"}),
    "save": Attempt(S),
    "get-snapshot": Attempt(S | {"snapshot": "0", "offset": 0}, own=False),
    "checkpoint": Attempt(S | {"name": "mine"}),
    "ls-checkpoints": Attempt(S),
    "rollback": Attempt(S | {"to": "1"}, own=False),
    "diff": Attempt(S, own=False),
    "drop-checkpoint": Attempt(S | {"checkpoint": "1"}, own=False),
    "branch": Attempt(S | {"name": "branch"}),
    "hibernate": Attempt(S, own=False),
    "clear-bindings": Attempt(S),
    "reset": Attempt(S),
    "allow-hosts": Attempt(S | {"hosts": ["example.com"]}, own=False),
    "transfer": Attempt(S | {"who": "ATTACKER"}, own=False),
    "close": Attempt(S),
    "close-session": Attempt({"name": "SESSION"}, own=False),
}
# What is about no session that exists, or about none: it is told apart by what it tells.
OTHERS: dict[str, Attempt] = {
    "new-session": Attempt({"name": "SESSION", "if-exists": "reuse"}, ""),
    "ls-sessions": Attempt({}, ""),
    "ls-environments": Attempt({}, ""),
    "put-snapshot": Attempt({"data": ""}, "snapshot-failed"),
    "remove-environment": Attempt({"environment": "ENVIRONMENT"}, "environment-not-found"),
    "find-eval": Attempt({"idempotency-key": "another's"}, ""),
    "describe": Attempt({}, ""),
    "ping": Attempt({}, ""),
    "stats": Attempt({}, ""),
    "hello": Attempt({"token": "a guess"}, "unauthorized"),
    "introspect": Attempt({}, "forbidden"),
    "unsubscribe": Attempt({"subscription": "SUBSCRIPTION"}, "invalid-request"),
    "reload-config": Attempt({}, "forbidden"),
    "shutdown": Attempt({}, "forbidden"),
}


# Root's broker opens files for users of the machine's database alone, unless the kernel tells a user's groups.
FILES = ("load-file", "reload-file")


def request(
    op: str, attempt: Attempt, of: SessionOwner, reference: str, scene: TenUsersScene, attacker: str = "*"
) -> dict[str, Any]:
    """An attempt on the session of somebody."""
    meant = {"SESSION": reference, "ATTACKER": attacker, "FILE": scene.file, "SUBSCRIPTION": f"mine-{of.number}"}
    meant["ENVIRONMENT"] = f"@{of.identity}/{of.name}"
    fields = attempt.fields.items()
    return {"op": op} | {key: meant.get(value, value) if isinstance(value, str) else value for key, value in fields}


def methods(reference: str, attacker: str) -> list[list[Any]]:
    """Return calls of `Client` on a session; not `load`, which would open one of the caller's own."""
    return [
        ["eval", "secret", reference, {"create": False}],
        ["read", reference, 1],
        ["packages", "status", [], reference],
        ["jobs", reference],
        ["info", reference],
        ["interrupt", reference],
        ["stdin", reference, "not yours\n"],
        ["complete", "secr", 4, reference],
        ["lookup", "secret", reference],
        ["bindings", reference],
        ["history", reference],
        ["stack", reference],
        ["env", reference],
        ["deactivate", reference],
        ["set_mode", reference, "plan"],
        ["share", reference, "write"],
        ["clone", reference, "copy"],
        ["clear", reference],
        ["reset", reference],
        ["allow_hosts", ["example.com"], reference],
        ["transfer", reference, attacker],
        ["close", reference],
    ]


def commands(reference: str, attacker: str) -> list[list[str]]:
    """Return commands on a session; not `load`, which would open one of the caller's own."""
    return [
        ["eval", "--no-create", "-s", reference, "secret"],
        ["read", reference, "1"],
        ["history", reference],
        ["jobs", reference],
        ["info", reference],
        ["vars", reference],
        ["stack", reference],
        ["complete", "-s", reference, "secr"],
        ["lookup", "-s", reference, "secret"],
        ["env", "show", "-s", reference],
        ["stdin", reference, "not yours"],
        ["interrupt", reference],
        ["tail", reference],
        ["mode", reference, "plan"],
        ["share", reference, "write"],
        ["clone", reference, "copy"],
        ["save", reference, "copy.session"],
        ["allow-hosts", "-s", reference, "example.com"],
        ["transfer", reference, "--to", attacker],
        ["export", reference],
        ["reset", reference],
        ["close", reference],
    ]


def tools(reference: str, file: str) -> list[list[Any]]:
    """All that the tools of an agent do with a session."""
    session = {"session": reference}
    return [
        *(["info", session | {"what": what}] for what in ("session", "variables", "jobs", "stack")),
        ["info", session | {"what": "lookup", "name": "secret"}],
        ["info", session | {"what": "complete", "code": "secr"}],
        ["read", session | {"eval_id": 1}],
        ["interrupt", session | {"all": True}],
        ["env", session],
        ["reset", session],
        ["eval", session | {"file": file}],
        ["stdin", session | {"text": "not yours"}],
        ["sessions", {"action": "list"}],
        ["sessions", session | {"action": "clone", "to": "copy"}],
        ["sessions", session | {"action": "close"}],
    ]


def turns(reference: str) -> list[list[Any]]:
    """All that an editor can ask of a session that it did not open."""
    prompt = [
        ["session/prompt", {"sessionId": "NEW", "prompt": [{"type": "text", "text": text}]}]
        for text in ("/vars", "/info", "globals().get('secret')")
    ]
    chosen = {"sessionId": "NEW", "configId": "session", "value": reference}
    return [
        ["session/new", {"cwd": "HOME", "mcpServers": []}],
        ["session/set_config_option", chosen],
        *prompt,
        ["session/list", {}],
        *(
            [method, {"sessionId": reference, "cwd": "HOME", "mcpServers": []}]
            for method in ("session/load", "session/resume")
        ),
        *([method, {"sessionId": reference}] for method in ("session/close", "session/delete")),
    ]

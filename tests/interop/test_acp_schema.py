"""Every message of the whole test suite of the agent against the JSON schema that the protocol's authors publish."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).parent))

from peers import HERE, Peers

RESULTS = {
    "initialize": "InitializeResponse",
    "authenticate": "AuthenticateResponse",
    "logout": "LogoutResponse",
    "session/new": "NewSessionResponse",
    "session/load": "LoadSessionResponse",
    "session/list": "ListSessionsResponse",
    "session/resume": "ResumeSessionResponse",
    "session/close": "CloseSessionResponse",
    "session/delete": "DeleteSessionResponse",
    "session/set_mode": "SetSessionModeResponse",
    "session/set_config_option": "SetSessionConfigOptionResponse",
    "session/prompt": "PromptResponse",
}
CALLS = {"session/update": "SessionNotification", "session/request_permission": "RequestPermissionRequest"}


def validator(definitions: dict[str, Any], name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


def test_all_that_the_agent_says_holds_against_the_published_schema(peers: Peers, tmp_path: Path) -> None:
    published = peers.modules / "@agentclientprotocol" / "sdk" / "schema" / "v1" / "schema.json"
    definitions = json.loads(published.read_text())["$defs"]
    checks = {name: validator(definitions, name) for name in [*RESULTS.values(), *CALLS.values(), "Error"]}
    traffic = tmp_path / "traffic"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE.parent / "acp")],
        cwd=HERE.parents[1],
        env={**os.environ, "REPLCTL_ACP_TRAFFIC": str(traffic)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    counts: dict[str, int] = {}
    for line in traffic.read_text().splitlines():
        entry = json.loads(line)
        message = entry["message"]
        if "method" in message:
            name, part = CALLS[message["method"]], message["params"]
        elif "error" in message:
            name, part = "Error", message["error"]
        else:
            name, part = RESULTS[entry["asked"]], message["result"]
        faults = [fault.message for fault in checks[name].iter_errors(part)]
        assert faults == [], (name, part)
        counts[name] = counts.get(name, 0) + 1
    assert set(counts) == set(checks), counts

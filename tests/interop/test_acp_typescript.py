"""The TypeScript SDK's own client, version 1 of the protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from acp_world import world
from peers import Peers


def test_the_typescript_client_drives_every_method(peers: Peers) -> None:
    sdk = peers.modules / "@agentclientprotocol" / "sdk"
    script = Path(__file__).with_name("acp_client.mjs")
    with world() as here:
        done = subprocess.run(
            [peers.node, str(script), str(sdk), str(here.directory / "work"), *here.agent],
            env=here.environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    session = seen["made"]["sessionId"]
    assert seen["initialize"]["agentInfo"]["name"] == "replctl"
    assert [each["id"] for each in seen["made"]["configOptions"]] == ["mode", "runtime", "session"]
    assert seen["value"] == {"stopReason": "end_turn", "text": "42"}
    assert seen["raised"] == {"stopReason": "end_turn", "text": "ZeroDivisionError: division by zero"}
    assert seen["permissions"] == 2
    assert seen["allowed"] == {"stopReason": "end_turn", "text": "43"}
    assert seen["rejected"] == {"stopReason": "end_turn", "text": "Not run: permission was refused."}
    assert seen["options"]["configOptions"][0]["currentValue"] == "auto"
    assert seen["cancelled"]["stopReason"] == "cancelled"
    assert [each["sessionId"] for each in seen["listed"]["sessions"]] == [session]
    assert seen["replayed"] == 5
    assert seen["loaded"]["_meta"]["replctl"]["state"] == seen["resumed"]["_meta"]["replctl"]["state"] == "kept"
    assert seen["closed"] == {}
    assert seen["unknown"] == {"code": -32002, "data": {"sessionId": session}}
    assert seen["missing"] == {"code": -32601}
    assert seen["deleted"] == {}
    assert seen["exit"] == 0
    assert {
        "available_commands_update",
        "tool_call",
        "tool_call_update",
        "agent_message_chunk",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
    } <= set(seen["updates"])

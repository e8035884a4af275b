"""Each client starts the server its own way, runs code, and is told what we meant."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kit import BrokerProcess
from peers import HERE, Peers

OUR_TOOLS = ["eval", "read", "interrupt", "reset", "sessions", "info", "env", "stdin"]
SECONDS = 120

# What the suite asks of servers that have them: fixtures that we do not serve, and what our server does without
# (sampling, elicitation, logging, completion of arguments, subscriptions).
WITHOUT = {
    "completion-complete",
    "elicitation-sep1034-defaults",
    "elicitation-sep1330-enums",
    "logging-set-level",
    "prompts-get-embedded-resource",
    "prompts-get-simple",
    "prompts-get-with-args",
    "prompts-get-with-image",
    "resources-read-binary",
    "resources-read-text",
    "resources-subscribe",
    "resources-templates-read",
    "resources-unsubscribe",
    "tools-call-audio",
    "tools-call-elicitation",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-sampling",
    "tools-call-with-logging",
}


def command(broker: BrokerProcess) -> list[str]:
    return [sys.executable, "-P", "-m", "replctl", "mcp", "--endpoint", broker.endpoint]


def run(broker: BrokerProcess, *words: str) -> str:
    """A client's stdout. It must end well, and leave no server."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, env=broker.environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def inspect(peers: Peers, broker: BrokerProcess, *words: str) -> Any:
    launcher = peers.modules / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
    return json.loads(run(broker, peers.node, str(launcher), "--cli", *command(broker), *words))


@pytest.mark.parametrize("era", ["legacy", "auto", "modern"])
def test_the_inspector(peers: Peers, broker: BrokerProcess, era: str) -> None:
    how = ("--format", "json", "--protocol-era", era)
    tools = inspect(peers, broker, *how, "--strict", "--method", "tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == OUR_TOOLS
    arguments = json.dumps({"code": "6*7", "session": f"inspector-{era}"})
    call = ("--method", "tools/call", "--tool-name", "eval", "--tool-args-json", arguments)
    result = inspect(peers, broker, *how, *call)["result"]
    assert result["content"][0]["text"].splitlines()[0] == "42"
    assert inspect(peers, broker, *how, "--method", "prompts/list")["result"]["prompts"][0]["name"] == "debug"
    assert inspect(peers, broker, *how, "--method", "resources/list")["result"]["resources"]


def test_the_inspectors_load(peers: Peers, broker: BrokerProcess) -> None:
    arguments = json.dumps({"code": "6*7", "session": "load"})
    result = inspect(
        peers,
        broker,
        "--method",
        "tools/call",
        "--tool-name",
        "eval",
        "--tool-args-json",
        arguments,
        "--load",
        "--load-requests",
        "300",
        "--load-concurrency",
        "8",
    )
    assert (result["ok"], result["errors"], result["toolErrors"]) == (300, 0, 0)


@pytest.mark.parametrize("generation", ["v1", "v2"])
def test_the_official_typescript_client(peers: Peers, broker: BrokerProcess, generation: str) -> None:
    script = str(peers.modules.parent / "talk_sdk.mjs")
    result = json.loads(run(broker, peers.node, script, generation, *command(broker), "--structured"))
    assert result["tools"] == OUR_TOOLS
    assert result["value"]["content"][0]["text"].splitlines()[0] == "42"
    assert result["error"]["isError"] is True
    names = [each["name"] for each in result["info"]["structuredContent"]["variables"]]
    assert names == ["x"]
    assert result["progress"]
    assert all(line.startswith("step ") for line in result["progress"])
    assert result["cancelled"] is True
    assert result["last"] == "interrupted"
    assert result["after"]["content"][0]["text"].splitlines()[0] == "41"


def test_the_client_of_fastmcp(peers: Peers, broker: BrokerProcess) -> None:
    result = json.loads(run(broker, peers.python, str(HERE / "talk_fastmcp.py"), *command(broker)))
    assert result["tools"] == OUR_TOOLS
    assert result["value"].splitlines()[0] == "42"
    assert result["error"] is True
    assert [job.split()[1].rstrip(",") for job in result["jobs"].splitlines()] == ["ok", "error"]
    assert "repl://sessions" in result["resources"]
    assert result["prompts"] == ["debug", "benchmark"]


@pytest.fixture(scope="module")
def url(broker: BrokerProcess) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "open_server.py"), broker.endpoint], stdout=subprocess.PIPE, env=broker.environ
    )
    assert process.stdout is not None
    yield process.stdout.readline().decode().strip()
    process.terminate()
    process.communicate(timeout=20)


def conform(peers: Peers, broker: BrokerProcess, url: str, *words: str) -> str:
    suite = [
        peers.node,
        str(peers.modules / "@modelcontextprotocol/conformance/dist/index.js"),
        "server",
        "--url",
        url,
        *words,
    ]
    done = subprocess.run(
        suite, capture_output=True, text=True, timeout=SECONDS, env=broker.environ, cwd=broker.directory, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25", "2026-07-28"])
def test_the_conformance_suite(peers: Peers, broker: BrokerProcess, url: str, revision: str) -> None:
    result = conform(peers, broker, url, "--spec-version", revision)
    results = re.findall(r"^([✓✗]) ([\w-]+): \d+ passed", result, re.M)
    assert {name for mark, name in results if mark == "✗"} - WITHOUT == set(), result[-3000:]
    assert len([name for mark, name in results if mark == "✓"]) >= 9


@pytest.mark.parametrize("scenario", ["caching", "http-header-validation", "sep-2164-resource-not-found"])
def test_scenarios_of_the_stateless_revision(peers: Peers, broker: BrokerProcess, url: str, scenario: str) -> None:
    result = conform(peers, broker, url, "--spec-version", "2026-07-28", "--scenario", scenario, "--verbose")
    assert result.count('"status": "SUCCESS"') > 0, result
    assert '"status": "FAILURE"' not in result


def test_what_fails_of_statelessness_is_what_cannot_be_tested(peers: Peers, broker: BrokerProcess, url: str) -> None:
    result = conform(peers, broker, url, "--spec-version", "2026-07-28", "--scenario", "server-stateless", "--verbose")
    assert result.count('"status": "SUCCESS"') == 21
    assert result.count('"status": "FAILURE"') == result.count('"errorMessage": "Not testable: ')

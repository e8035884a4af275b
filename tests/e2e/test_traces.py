"""Traces from a real broker to a collector on loopback: what they say, what they never say, and that nobody waits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collector_kit import OtlpCollector, ReceivedSpan, collector
from kit import BrokerProcess, wait_until
from replctl import Client

SECRET = "hunter2"


@pytest.fixture
def collected() -> Iterator[OtlpCollector]:
    with collector() as running:
        yield running


@pytest.fixture
def traced(collected: OtlpCollector, start: Callable[..., BrokerProcess]) -> BrokerProcess:  # ends before what it tells
    return start(f"trace.otlp={collected.url}")


def _evals(collected: OtlpCollector, count: int, name: str = "eval") -> list[ReceivedSpan]:
    return wait_until(lambda: len(found := collected.spans_named(name)) >= count and found, f"{count} traces")


def _traces(wire: Any) -> dict[str, Any]:
    found: dict[str, Any] = wire.ask("introspect", name="traces")["snapshots"]["traces"]
    return found


def test_an_eval_is_a_trace_with_its_wait_and_its_run(traced: BrokerProcess, collected: OtlpCollector) -> None:
    before = time.time_ns()
    with traced.wire() as wire:
        wire.run("6*7", "work", agent="ada")
        (span,) = _evals(collected, 1)
        queue, run = collected.spans_named("queue")[0], collected.spans_named("run")[0]
        session = wire.ask("info", session="work")["info"]["session"]
        assert span.attributes == {
            "session.id": session,
            "gen_ai.agent.name": "ada",
            "replctl.session.name": "work",
            "replctl.runtime": "python",
            "replctl.op": "eval",
            "replctl.eval.id": 1,
            "replctl.epoch": 1,
            "replctl.request.id": "r1",
            "replctl.worker": span.attributes["replctl.worker"],
            "replctl.status": "ok",
            "replctl.state": "kept",
        }
        assert not span.failed
        assert (span.parent, queue.parent, run.parent) == ("", span.id, span.id)
        assert queue.trace == run.trace == span.trace
        assert before < span.begin == queue.begin <= queue.end == run.begin < run.end == span.end < time.time_ns()
        assert collected.paths == {"/v1/traces"}
        assert collected.resource["service.name"] == "replctl"
        assert collected.resource["process.pid"] == traced.pid


def test_a_trace_goes_on_from_the_callers_span(traced: BrokerProcess, collected: OtlpCollector) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with Client(traced.endpoint, start=False) as client:
        client.eval("1", traceparent=parent)
        client.eval("2", traceparent=parent.removesuffix("01") + "00")  # the caller takes no sample
        client.eval("3", traceparent="no such thing")
        client.eval("4")
    spans = {span.attributes["replctl.eval.id"]: span for span in _evals(collected, 3)}
    assert (spans[1].trace, spans[1].parent) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    assert sorted(spans) == [1, 3, 4]
    assert spans[3].parent == spans[4].parent == ""
    assert len({spans[number].trace for number in spans}) == 3


def test_the_command_continues_the_trace_of_its_environment(traced: BrokerProcess, collected: OtlpCollector) -> None:
    env = {**traced.environ, "REPLCTL_ENDPOINT": traced.endpoint, "TRACEPARENT": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    command = [sys.executable, "-m", "replctl", "eval", "6*7"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=True).stdout == "42\n"
    (span,) = _evals(collected, 1)
    assert (span.trace, span.parent) == ("ab" * 16, "cd" * 8)


@pytest.mark.parametrize(
    ("code", "status", "error", "why"),
    [
        ("1/0", "error", "ZeroDivisionError", ""),
        (f"class Ours(Exception): pass\nraise Ours({SECRET!r})", "error", "Ours", ""),
        ("import time\nwhile True: time.sleep(0.01)", "timeout", "timeout", None),
        ("import os; os._exit(3)", "died", "worker-lost", None),
    ],
)
def test_a_span_says_how_an_eval_failed(
    traced: BrokerProcess, collected: OtlpCollector, code: str, status: str, error: str, why: str | None
) -> None:
    with traced.wire() as wire:
        wire.run(code, "s", timeout_ms=5000 if status != "timeout" else 200)
        (span,) = _evals(collected, 1)
        run = collected.spans_named("run")[0]
        assert (span.failed, span.attributes["replctl.status"], span.attributes["error.type"]) == (True, status, error)
        assert (run.failed, run.attributes["error.type"]) == (True, error)
        assert span.why == why if why is not None else span.why


def test_an_interrupt_is_no_error_and_an_eval_that_never_ran_has_no_run(
    traced: BrokerProcess, collected: OtlpCollector
) -> None:
    with traced.wire() as wire:
        wire.ask("new-session", name="s")
        running = wire.send("eval", session="s", code="import time\nprint('on')\nwhile True: time.sleep(0.01)")
        next(message for message in wire.messages(running) if "out" in message)
        waiting = wire.send("eval", session="s", code="2")
        wire.ask("interrupt", session="s", all=True, agent="bob")
        assert "interrupted" in wire.answer(waiting).status
        spans = _evals(collected, 2)
        assert {span.attributes["replctl.status"] for span in spans} == {"cancelled"}
        assert not any(span.failed for span in spans)
        assert all(("interrupt-requested", {"replctl.by": "bob"}) in span.events for span in spans)
        assert len(collected.spans_named("run")) == 1
        assert len(collected.spans_named("queue")) == 2


def test_sessions_and_starts_of_workers_have_spans_too(traced: BrokerProcess, collected: OtlpCollector) -> None:
    with traced.wire() as wire:
        wire.run("1", "s", agent="ada")
        wire.ask("reset", session="s")
        wire.run("import os; os._exit(1)", "s")
        wire.ask("close", session="s")
        wire.run("1", None)  # a throw-away session: its eval is all there is to it
        (session,) = _evals(collected, 1, "session")
        assert session.attributes["replctl.session.name"] == "s"
        assert [name for name, _ in session.events] == ["session/reset", "session/lost"]
        evals = _evals(collected, 3)
        assert [span.links for span in evals] == [[session.id], [session.id], []]
    started = collected.spans_named("worker start")
    assert started[0].attributes["replctl.runtime"] == "python"
    assert not any(span.failed for span in started)


def test_what_runs_when_the_broker_ends_is_sent_before_it_is_gone(
    traced: BrokerProcess, collected: OtlpCollector
) -> None:
    with traced.wire() as wire:
        wire.run("1", "s")
    assert traced.stop() == 0
    assert len(collected.spans_named("eval")) == 1
    assert [span.attributes["replctl.session.name"] for span in collected.spans_named("session")] == ["s"]


@pytest.mark.parametrize("code", [True, False])
def test_no_word_of_a_session_leaves_it_and_its_code_only_when_that_is_allowed(
    start: Callable[..., BrokerProcess], collected: OtlpCollector, code: bool
) -> None:
    broker = start(f"trace.otlp={collected.url}", f"trace.code={str(code).lower()}")
    with broker.wire() as wire:
        wire.run("marker = 'the code'", "s")
        secret = f"''.join(reversed({SECRET[::-1]!r}))"  # so that no code has the word itself
        wire.run(f"print({secret}); {secret}", "s")
        wire.run(f"import sys; print({secret}, file=sys.stderr); raise ValueError({secret})", "s")
        wire.run(f"echo {SECRET[:3]}''{SECRET[3:]}; exit 3", "b", runtime="bash")
        _evals(collected, 4)
    assert broker.stop() == 0
    sent = b"".join(collected.bodies)
    assert SECRET.encode() not in sent
    assert (b"the code" in sent) is code


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_without_a_collector_evals_go_on_and_what_is_lost_is_counted(start: Callable[..., BrokerProcess]) -> None:
    broker = start(f"trace.otlp=http://127.0.0.1:{_free_port()}", "limits.rate-limit-per-min=0")
    with broker.wire() as wire:
        assert wire.run("6*7", "s").value == "42"
        lost = wait_until(lambda: (now := _traces(wire))["lost-spans"] and now, "spans are lost")
        assert lost["exported"] == 0
        assert "refused" in lost["last-error"]
        wire.run("1", "s")
        wait_until(lambda: "traces do not arrive" in broker.log_text(), "the log says so")
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text()


def test_a_collector_that_hangs_holds_up_no_eval_and_not_the_end(
    start: Callable[..., BrokerProcess], collected: OtlpCollector
) -> None:
    broker = start(f"trace.otlp={collected.url}", "limits.rate-limit-per-min=0")
    collected.accepting.clear()
    with broker.wire() as wire:
        for number in range(200):
            assert wire.run(str(number), "s").value == str(number)
    assert broker.stop() == 0
    assert "were not sent in time" in broker.log_text() or "Failed to export" in broker.log_text()
    assert not Path(f"/proc/{broker.pid}").exists()


def test_a_collector_that_comes_back_has_the_rest(
    start: Callable[..., BrokerProcess], collected: OtlpCollector
) -> None:
    broker = start(f"trace.otlp={collected.url}", "limits.rate-limit-per-min=0")
    collected.accepting.clear()
    with broker.wire() as wire:
        wire.run("1", "s")
        wait_until(lambda: _traces(wire)["lost-spans"], "the exporter gives up", 30)
        collected.accepting.set()
        wire.run("2", "s")
        wait_until(
            lambda: any(span.attributes["replctl.eval.id"] == 2 for span in collected.spans_named("eval")), "the second"
        )


def _refused(tmp_path: Path, setting: str, **env: str) -> str:
    command = [sys.executable, "-m", "replctl", "serve", "--endpoint", f"ipc://{tmp_path}/b.sock", "--set", setting]
    tmp_path.chmod(0o700)
    environ = {**os.environ, "REPLCTL_STATE_DIR": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), **env}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    return done.stderr


def test_a_broker_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").touch()  # what is found first, and has nothing in it
    result = _refused(tmp_path, "trace.otlp=http://127.0.0.1:4318", PYTHONPATH=str(tmp_path))
    assert "pip install 'replctl[otel]'" in result
    assert "Traceback" not in result


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "ftp://127.0.0.1", "http://", "http://me:hunter2@127.0.0.1:4318"])
def test_what_is_no_collector_is_refused_at_the_start(tmp_path: Path, url: str) -> None:
    result = _refused(tmp_path, f"trace.otlp={url}")
    assert "trace.otlp" in result
    assert SECRET not in result
    assert "Traceback" not in result

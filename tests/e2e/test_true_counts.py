"""Truthful reports of output that is cut, dropped, searched or refused."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from kit import BrokerProcess, LineWire, Wire, wait_until
from replwire.replies import TRUNCATED

LINES = 8_000_000


def has_ended(wire: Wire, session: str, number: int) -> bool:
    return any(job["eval-id"] == number and job["state"] == "done" for job in wire.ask("jobs", session=session)["jobs"])


def test_bytes_that_a_slow_reader_was_not_sent_are_counted_as_text(start: Callable[..., BrokerProcess]) -> None:
    broker = start("limits.max-output-bytes=10000000", "broker.unix=/DIRECTORY/run/lines.sock")
    with LineWire(broker.listening["unix"]) as slow, broker.wire() as other:
        slow.run("1")
        running = slow.send(
            "eval", session="s", code=f"import os\nfor n in range({LINES // 50_000}): os.write(1, b'\\n' * 50_000)"
        )
        wait_until(lambda: has_ended(other, "s", 2), "the eval ends", 60)
        got = dropped = 0
        for message in slow.messages(running):
            got += len(message.get("out", ""))
            dropped += message.get("dropped-bytes", 0) if "output-dropped" in message.get("status", ()) else 0
        assert dropped > 0
        assert got + dropped == LINES


def test_a_page_of_a_read_is_whole_however_slowly_it_is_taken(start: Callable[..., BrokerProcess]) -> None:
    with (broker := start("limits.max-output-bytes=10000000")).wire() as wire, broker.wire() as slow:
        wire.run("for n in range(300_000): print(n)")
        reads = [slow.send("read", session="s", eval_id=1, max_bytes=500_000, offset=at * 500_000) for at in range(3)]
        slow.ask("ping")
        for request in reads:
            time.sleep(0.2)
            page = slow.answer(request)
            assert not any("output-dropped" in message.get("status", ()) for message in page.messages)
            assert len(page.out) == 500_000


def test_an_output_in_many_pieces_comes_in_pages_and_a_search_looks_at_all_of_it(wire: Wire) -> None:
    code = "import sys\nfor n in range(1000):\n    print('out', n, flush=True)\n    print('err', n, file=sys.stderr, flush=True)"
    number = wire.run(code)["eval-id"]
    text, offset = "", 0
    while True:
        page = wire.ask("read", session="s", eval_id=number, offset=offset)
        assert len(page.messages) <= 202
        text, offset = text + "".join(m.get("out", "") + m.get("err", "") for m in page.messages), page["offset"]
        if not page.get("truncated"):
            break
    assert sorted(text.splitlines()) == sorted(f"{name} {n}" for name in ("out", "err") for n in range(1000))
    found = wire.ask("read", session="s", eval_id=number, grep=" 99")
    assert found.out.splitlines() == [f"out {n}" for n in range(1000) if str(n).startswith("99")]
    assert found.get("notice") is None


def test_a_search_says_what_it_has_not_seen(start: Callable[..., BrokerProcess]) -> None:
    with start("limits.max-output-bytes=1000", "limits.output-tail-bytes=100").wire() as wire:
        wire.run("for n in range(1000): print('line', n)")
        found = wire.ask("read", session="s", eval_id=1, grep="line 500")
        assert (found.out, found["notice"].endswith("output after offset 1000 is for the next read")) == ("", True)
        rest = wire.ask("read", session="s", eval_id=1, grep="line 500", offset=1000)
        text = f"{rest['dropped-bytes']} bytes of output not kept"
        assert (rest.out, rest["notice"]) == ("", f"not all of the output was searched: {text}")
        first = wire.ask("read", session="s", eval_id=1, grep="line", max_bytes=100)
        assert first["notice"] == "not all of the output was searched: output after offset 100 is for the next read"


@pytest.mark.parametrize("runtime", ["python", "node"])
def test_texts_and_types_of_exceptions_that_are_cut_say_so(wire: Wire, runtime: str) -> None:
    code = {
        "python": "raise type('T' * 300, (Exception,), {})('m' * 5000)",
        "node": "throw Object.assign(new Error('m'.repeat(5000)), {name: 'T'.repeat(300)})",
    }[runtime]
    answer = wire.run(code, f"cut-{runtime}", runtime=runtime)
    assert answer["ex"] == {"type": "T" * 256 + TRUNCATED, "message": "m" * 4096 + TRUNCATED}
    wire.ask("close", session=f"cut-{runtime}")


def test_a_time_limit_that_is_cut_is_told_at_once_with_what_would_allow_more(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start("limits.max-eval-time-ms=400", "limits.max-job-time-ms=900")
    with broker.wire() as wire:
        answer = wire.run("while True: pass", timeout_ms=100_000)
        notice = next(index for index, message in enumerate(answer.messages) if "notice" in message)
        assert "status" not in answer.messages[notice]
        more = (
            "the limit is 400 ms (max-eval-time-ms)",
            "use `wait-ms` to run the code in the background for up to 900 ms",
        )
        assert answer.messages[notice]["notice"] == f"`timeout-ms` 100000 is reduced: {'; '.join(more)}"
        assert (answer["max-eval-time-ms"], answer["hint"]) == (400, "; ".join(more))
        longest = wire.run("while True: pass", timeout_ms=100_000, wait_ms=20_000)
        assert longest["hint"].startswith("the limit is 900 ms (max-job-time-ms); run it in smaller parts")
        short = wire.run("while True: pass", timeout_ms=100)
        assert short["hint"].startswith("raise `timeout-ms`, or use `wait-ms`")
        assert not any("notice" in message for message in short.messages)
    command = [sys.executable, "-m", "replctl", "eval", "-s", "s", "--timeout", "100s", "while True: pass"]
    result = subprocess.run(
        [*command, "--endpoint", broker.endpoint], capture_output=True, text=True, timeout=60, check=False
    )
    lines = result.stderr.splitlines()
    assert lines[0].startswith(
        "replctl: --timeout 1 min 40 s is reduced: the limit is 400 ms (max-eval-time-ms); use --wait"
    )
    assert (
        lines[-1]
        == "replctl: hint: the limit is 400 ms (max-eval-time-ms); use --wait to run the code in the background for up to 900 ms"
    )
    assert sum("is reduced" in line for line in lines) == 1


def test_input_that_never_fits_is_refused_without_a_time_to_try_again(start: Callable[..., BrokerProcess]) -> None:
    with start("limits.max-stdin-bytes=100").wire() as wire:
        wire.run("1")
        never = wire.ask("stdin", session="s", input="x" * 101)
        assert never.status == ["done", "error", "stdin-buffer-full"]
        assert never.get("retry-after-ms") is None
        assert never["hint"].startswith("send at most 100 bytes at a time")
        assert wire.ask("stdin", session="s", input="x" * 99).status == ["done"]
        later = wire.ask("stdin", session="s", input="yy")
        assert (later.status[-1], later["retry-after-ms"] > 0) == ("stdin-buffer-full", True)

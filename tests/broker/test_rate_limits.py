"""Rate limits: requests of a connection in any 60 seconds, refused ones included."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from core_harness import CoreHarness
from replbroker.core.limits.sliding_window import WINDOW_S, SlidingWindow


def test_the_limit_is_reached_and_heals_request_by_request() -> None:
    window = SlidingWindow()
    assert [window.try_acquire(3, now) for now in (0.0, 10.0, 20.0)] == [0, 0, 0]
    assert window.try_acquire(3, 59.999) > 0
    # The window now holds 10, 20 and 59.999.
    assert window.try_acquire(3, 70.0) == 0
    assert window.try_acquire(3, 80.0) == 0
    assert window.try_acquire(3, 80.0) > 0


def test_a_window_is_no_calendar_minute() -> None:
    window = SlidingWindow()
    assert [window.try_acquire(2, now) for now in (59.0, 59.5)] == [0, 0]
    assert window.try_acquire(2, 60.0) == 59_501  # a fixed window would start anew here


def test_a_refused_request_counts_so_that_hammering_does_not_pay() -> None:
    window = SlidingWindow()
    window.try_acquire(1, 0.0)
    assert all(window.try_acquire(1, float(now)) for now in range(1, 200))
    assert window.try_acquire(1, 199.0 + WINDOW_S) == 0


def test_who_comes_back_when_told_is_admitted() -> None:
    window = SlidingWindow()
    for now in (0.0, 1.0, 2.0):
        window.try_acquire(2, now)
    again = 2.0 + window.try_acquire(2, 2.0) / 1000
    assert window.try_acquire(2, again) == 0


def test_a_window_is_idle_after_a_minute_of_silence() -> None:
    window = SlidingWindow()
    assert window.is_idle(0.0)
    window.try_acquire(5, 0.0)
    assert not window.is_idle(WINDOW_S - 0.001)
    assert window.is_idle(WINDOW_S)


@given(limit=st.integers(1, 5), steps=st.lists(st.floats(0, 30), max_size=60))
def test_the_window_agrees_with_counting(limit: int, steps: list[float]) -> None:
    window, now = SlidingWindow(), 0.0
    results: deque[float] = deque()
    for step in steps:
        now += step
        while results and results[0] <= now - WINDOW_S:
            results.popleft()
        retry = window.try_acquire(limit, now)
        assert (retry == 0) == (len(results) < limit)
        results.append(now)
        # A request at the moment it names passes if nothing else is heard, one much before it would not.
        opens = now + retry / 1000 - WINDOW_S
        assert sum(when > opens + 0.000_001 for when in results) < limit + (retry == 0)
        assert retry == 0 or sum(when > opens - 0.002 for when in results) >= limit


def test_a_connection_that_asks_too_much_is_told_when_to_come_back(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(rate_limit_per_min=2)
    harness.request("ping")
    harness.wait(1)
    harness.request("ping")
    refused = harness.request("ping")
    assert refused["status"] == ["done", "error", "rate-limited"]
    assert refused["err"] == "Rate limit exceeded (rate-limit-per-min = 2)"
    assert (refused["limit"], refused["limit-value"], refused["retry-after-ms"]) == ("rate-limit-per-min", 2, 59_901)
    assert harness.request("ping", peer=b"p2")["status"] == ["done", "pong"]
    harness.wait(60.001)
    assert harness.request("ping")["status"] == ["done", "pong"]


def test_an_unknown_operation_counts_too(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(rate_limit_per_min=1)
    assert harness.request("dance")["status"] == ["done", "error", "unknown-op"]
    assert harness.request("ping")["status"] == ["done", "error", "rate-limited"]


def test_zero_means_no_limit(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(rate_limit_per_min=0)
    assert all(harness.request("ping")["status"] == ["done", "pong"] for _ in range(1000))


def test_windows_of_silent_connections_are_forgotten(harness: CoreHarness) -> None:
    harness.send("ping", peer=b"p1")
    harness.send("ping", peer=b"p2")
    assert len(harness.state.rate_windows) == 2
    harness.wait(50)
    harness.send("ping", peer=b"p2")
    harness.wait(30)
    assert list(harness.state.rate_windows) == [b"p2"]


def test_a_long_request_passes_and_the_next_waits_until_it_is_paid_for(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_request_bytes_per_s=100_000)
    long = {"code": "#" + "x" * 299_000, "session": None}
    harness.eval(**long)
    ((peer, until),) = harness.paused
    assert (peer, round(until - harness.now, 1)) == (b"p1", 2.0)
    asked = harness.eval(**long)
    harness.wait(0.1)
    refused = harness.final_reply(asked)
    assert (refused["status"][-1], refused["limit"]) == ("rate-limited", "max-request-bytes-per-s")
    assert harness.request("ping")["status"] == ["done", "pong"]  # what is short is never in its way
    harness.now += refused["retry-after-ms"] / 1000
    harness.eval(**long)
    assert harness.state.counts["refused.rate-limited"] == 1


def test_bytes_are_counted_for_all_connections_of_an_identity_but_the_brokers_own(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(max_request_bytes_per_s=100_000)
    for peer in (b"q1", b"q2"):
        harness.core.set_identity(peer, "ada")
    long = "#" + "x" * 150_000
    harness.send("eval", b"q1", code=long)
    assert "rate-limited" in harness.request("eval", b"q2", code=long)["status"]
    for peer in (b"p1", b"p2"):
        harness.send("eval", peer, code=long)
    assert harness.state.counts["refused.rate-limited"] == 1

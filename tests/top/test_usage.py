"""Processor time and memory of a session, from reports and heartbeats of its worker."""

from __future__ import annotations

from replctl.top.formatting import SessionUsage


def test_processor_time_is_a_share_between_two_reports() -> None:
    usage = SessionUsage()
    usage.update(10, 1.0, 5)
    assert usage.percent is None
    usage.update(12, 2.0, 6)
    assert (usage.percent, usage.memory_bytes) == (50.0, 6)
    usage.update_from_heartbeat(1.5, 4)  # older than what is known
    assert (usage.percent, usage.cpu_seconds) == (50.0, 2.0)
    usage.update(14, 0.5, 7)  # another worker
    assert (usage.percent, usage.cpu_seconds) == (50.0, 0.5)
    usage.set_idle()
    assert usage.percent == 0.0


def test_a_heartbeat_just_before_a_report_does_not_change_the_share() -> None:
    usage = SessionUsage()
    usage.update(10, 1.0, 5)
    usage.update_from_heartbeat(1.2, 5)
    usage.update(12, 3.0, 5)
    assert usage.percent == 100.0
    usage.update_from_heartbeat(3.5, 5)
    usage.update(12.002, 3.9, 5)  # two looks at once
    assert (usage.percent, usage.cpu_seconds) == (100.0, 3.9)
    usage.update(14, 4.0, 5)
    assert usage.percent == 50.0


def test_the_share_of_an_eval_does_not_count_the_rest_before_it() -> None:
    usage = SessionUsage()
    usage.update(10, 1.0, 5, at_rest=True)
    usage.on_started(110)
    usage.update(112, 3.0, 5)
    assert usage.percent == 100.0
    usage.on_started(113)  # the eval before it was never reported: its time may not count as this one's
    usage.update(114, 5.0, 5)
    assert usage.percent == 100.0


def test_memory_of_a_session_that_rests_follows_its_beats() -> None:
    usage = SessionUsage()
    usage.update_from_heartbeat(0.0, 464_000)  # its interpreter was just being started
    usage.update_from_heartbeat(0.0, 9_500_000)
    assert (usage.memory_bytes, usage.percent) == (9_500_000, None)
    usage.update(3, 0.2, 9_600_000)
    usage.update_from_heartbeat(0.1, 5)  # older than what is known
    assert usage.memory_bytes == 9_600_000

"""What a process fetched and waited for, as figures: rates by its own clock, percentiles, waits by cause."""

import pytest

from tools_utilities.stream_statistics import StreamStatistics


def test_load_times_are_told_by_percentiles_and_their_mean():
    statistics = StreamStatistics()
    for milliseconds in (*range(51, 101), *range(1, 51)):
        statistics.loaded(milliseconds / 1000)
    loads = statistics.to_dict()["load_seconds"]
    expected = {"p50": 0.0505, "p90": 0.0905, "p99": 0.0995, "p100": 0.1}
    assert loads == pytest.approx(expected, abs=0.0006)
    assert statistics.to_dict()["avg_load_time_us"] == pytest.approx(50_500)
    assert StreamStatistics().to_dict()["load_seconds"] == dict.fromkeys(expected, 0.0)


def test_of_very_many_load_times_the_last_count():
    statistics = StreamStatistics()
    for _ in range(5000):
        statistics.loaded(9.0)
    for _ in range(4096):
        statistics.loaded(1.0)
    assert statistics.to_dict()["load_seconds"]["p100"] == 1.0


def test_requests_a_second_are_those_between_the_first_and_the_last():
    times = iter((100.0, 100.5, 101.0, 102.0))
    statistics = StreamStatistics(clock=lambda: next(times))
    assert statistics.to_dict()["requests_per_second"] == 0.0
    for _ in range(4):
        statistics.add(requests=1)
    assert statistics.to_dict()["requests_per_second"] == pytest.approx(1.5)


def test_waits_are_added_up_by_cause():
    statistics = StreamStatistics()
    for cause, seconds in (("store", 1.0), ("retry", 0.25), ("store", 2.0)):
        statistics.waited(cause, seconds)
    waits = statistics.to_dict()["wait_seconds"]
    assert waits == {"store": 3.0, "read_ahead": 0.0, "other_process": 0.0, "retry": 0.25}

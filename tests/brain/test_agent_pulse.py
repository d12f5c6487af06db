"""Machines that fall silent are noticed by those that beat, and by nobody that sleeps."""

import threading
from collections import Counter

from brain.ml.agent_pulse import BEAT_SECONDS, SILENT_SECONDS, Pulse


class _Store:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.beaten = threading.Event()

    def add(self, key: str, amount: int) -> int:
        self.counts[key] += amount
        if amount:
            self.beaten.set()
        return self.counts[key]


class _Machines:
    """Three machines at one store, the time in the test's hand."""

    def __init__(self) -> None:
        self.now, self.store = 100.0, _Store()
        self.all = [
            Pulse(lambda: self.store, "p", own, 3, clock=lambda: self.now) for own in range(3)
        ]

    def pass_time(self, seconds: float, *beating: int) -> None:
        for _ in range(int(seconds / BEAT_SECONDS)):
            self.now += BEAT_SECONDS
            for number in beating:
                self.all[number].beat(self.store)


def test_machine_that_stands_still_is_silent_to_those_that_beat():
    machines = _Machines()
    machines.pass_time(SILENT_SECONDS, 0, 1, 2)
    machines.pass_time(SILENT_SECONDS, 0, 2)
    assert [machines.all[number].silent() for number in (0, 2)] == [[], []]
    machines.pass_time(2, 0, 2)
    assert [machines.all[number].silent() for number in (0, 2)] == [[1], [1]]


def test_machine_that_was_itself_frozen_blames_nobody():
    machines = _Machines()
    machines.pass_time(3, 0, 1, 2)
    machines.pass_time(5 * SILENT_SECONDS, 0, 1)
    assert machines.all[2].silent() == []
    machines.pass_time(2, 0, 1, 2)
    assert machines.all[2].silent() == []
    assert machines.all[0].silent() == []


def test_it_beats_by_itself_until_it_is_stopped():
    store = _Store()
    pulse = Pulse(lambda: store, "p", 0, 2)
    pulse.start()
    assert store.beaten.wait(20 * BEAT_SECONDS)
    pulse.stop()


def test_machine_that_is_alone_needs_no_store():
    def connect() -> _Store:
        raise AssertionError("not needed")

    pulse = Pulse(connect, "p", 0, 1)
    pulse.start()
    assert pulse.silent() == []

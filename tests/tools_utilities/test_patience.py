"""Asking a store again: for how long, with which pauses, and what is never asked twice."""

from collections.abc import Callable

import pytest

from tools_utilities.errors import (
    AccessError,
    ConditionFailedError,
    ObjectNotFoundError,
    StoreError,
)
from tools_utilities.patience import PATIENCE_SECONDS, patiently, told


class Troubled:
    """Fails so many times, then answers; counts."""

    def __init__(self, failures: int, error: BaseException) -> None:
        self.failures, self.error = failures, error
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self.asked <= self.failures:
            raise self.error
        return "answer"


class Time:
    """A clock that only sleeping (and asking, if it takes time) moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def ask(
        self,
        question: Callable[[], str],
        *,
        seconds: float = PATIENCE_SECONDS,
        jitter: float = 0.5,
    ) -> str:
        return patiently(
            question,
            seconds=seconds,
            now=lambda: self.now,
            sleep=self.sleep,
            jitter=lambda: jitter,
        )


BUSY = StoreError("k: 503 SlowDown", status=503, transient=True)


def test_an_answer_is_returned_at_once():
    time, question = Time(), Troubled(0, BUSY)

    assert time.ask(question) == "answer"

    assert (question.asked, time.pauses) == (1, [])


def test_pauses_double_up_to_a_limit():
    time, question = Time(), Troubled(9, BUSY)

    assert time.ask(question) == "answer"

    assert question.asked == 10
    assert time.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0])


@pytest.mark.parametrize(("jitter", "factor"), [(0.0, 0.5), (0.999, 1.499)])
def test_each_pause_is_from_half_to_one_and_a_half_of_it(jitter, factor):
    time = Time()

    time.ask(Troubled(3, BUSY), jitter=jitter)

    assert time.pauses == pytest.approx([0.05 * factor, 0.1 * factor, 0.2 * factor])


def test_patience_ends_with_the_last_failure_and_not_before_its_time():
    time, question = Time(), Troubled(10_000, BUSY)

    with pytest.raises(StoreError) as caught:
        time.ask(question, seconds=30)

    assert caught.value is BUSY
    assert 30 < time.now <= 32
    # Half a minute of trouble is no storm of requests.
    assert question.asked < 25


def test_the_time_that_asking_takes_counts():
    time = Time()

    def slow() -> str:
        time.now += 20
        raise BUSY

    with pytest.raises(StoreError):
        time.ask(slow, seconds=30)

    assert len(time.pauses) == 1


@pytest.mark.parametrize(
    "error",
    [
        StoreError("k: 400", status=400),
        StoreError("k: 501", status=501, transient=False),
        ObjectNotFoundError("k: 404"),
        ConditionFailedError("k: 412"),
        AccessError("k: 403"),
        KeyboardInterrupt(),
    ],
)
def test_what_will_not_pass_is_raised_at_once(error):
    time, question = Time(), Troubled(1, error)

    with pytest.raises(type(error)) as caught:
        time.ask(question)

    assert caught.value is error
    assert (question.asked, time.pauses) == (1, [])


def test_a_failure_that_will_not_pass_ends_patience_with_one_that_will():
    failures = iter([BUSY, BUSY, ObjectNotFoundError("k: 404")])

    def ask() -> str:
        raise next(failures)

    time = Time()
    with pytest.raises(ObjectNotFoundError):
        time.ask(ask)
    assert len(time.pauses) == 2


class TestTold:
    """A conditional put says yes, no, or that nobody knows."""

    def test_yes(self):
        assert told(lambda: "etag") == "etag"

    def test_no_is_final(self):
        error = ConditionFailedError("k: 412", status=412)
        with pytest.raises(ConditionFailedError) as caught:
            told(Troubled(1, error))
        assert caught.value is error

    def test_nobody_knows_is_asked_again(self):
        unknown = ConditionFailedError("k: 409", hint="look", unknown=True)
        with pytest.raises(StoreError) as caught:
            told(Troubled(1, unknown))
        assert not isinstance(caught.value, ConditionFailedError)
        assert (str(caught.value), caught.value.hint) == ("k: 409", "look")
        assert caught.value.__cause__ is unknown

        time, question = Time(), Troubled(2, unknown)
        assert time.ask(lambda: told(question)) == "answer"
        assert question.asked == 3


def test_long_tries_are_counted_too():
    """Three silences of ten seconds used up the half minute, and a write was not tried a fourth time."""
    clock, asked = [0.0], []

    def ask() -> str:
        asked.append(clock[0])
        if len(asked) < 4:
            clock[0] += 10.5
            raise StoreError("no answer", transient=True)
        return "written"

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    assert patiently(ask, least_tries=4, now=lambda: clock[0], sleep=sleep) == "written"
    asked.clear()
    with pytest.raises(StoreError):
        patiently(ask, now=lambda: clock[0], sleep=sleep)
    assert len(asked) == 3

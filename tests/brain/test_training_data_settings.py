"""Settings of a run's data that only a run shows: the budget of bad records, how a mix ends."""

import pytest

from brain.ml.training_job import DataSource
from tests.training import events, make_job, text_shards, train_here, write_shards


def with_bad_lines(shards: dict[str, bytes], each: int) -> dict[str, bytes]:
    return {
        key: data + b'{"id": \n' * each if "/train/" in key else data
        for key, data in shards.items()
    }


@pytest.mark.parametrize(
    ("budget", "code"), [({"bad_budget": 4}, 0), ({"bad_budget": 3}, None), ({}, 0)]
)
def test_the_budget_of_bad_records_is_one_for_the_epoch(tmp_path, budget, code):
    # Two bad records in each of two shards: no split has more than the budget, the epoch has.
    store = write_shards(tmp_path / "data", with_bad_lines(text_shards(shards=2), 2))
    limits = {"epochs": 1.0, "max_steps": None, "on_bad": "skip", **budget}
    found = train_here(make_job(tmp_path / "run", store, **limits))
    if code is None:
        assert found != 0
        [error] = events(tmp_path / "run", "error")
        assert error["message"].startswith("more than 3 records")
        assert "bad_budget" in error["hint"]
    else:
        assert found == code


def test_without_skipping_the_first_bad_record_ends_the_run(tmp_path):
    store = write_shards(tmp_path / "data", with_bad_lines(text_shards(shards=2), 2))
    assert train_here(make_job(tmp_path / "run", store, bad_budget=9)) != 0


def test_a_mix_ends_with_the_first_or_the_last_group(tmp_path):
    short = write_shards(tmp_path / "short", text_shards(shards=1))
    long = write_shards(tmp_path / "long", text_shards(shards=6, seed=1))
    train = (DataSource(store=short, prefix="d/train/"), DataSource(store=long, prefix="d/train/"))
    steps = {}
    for stop in ("first_exhausted", "all_exhausted"):
        job = make_job(
            tmp_path / stop, short, train=train, weights=(1.0, 1.0), epochs=1.0, max_steps=None,
            mix_stop=stop,
        )  # fmt: skip
        assert train_here(job) == 0
        [end] = events(tmp_path / stop, "end")
        steps[stop] = end["step"]
    # By turns: the short group is through after a seventh, its equal in number of the long one seen.
    assert steps["first_exhausted"] * 2 < steps["all_exhausted"]

"""Settings of a run's data that only a run shows: the budget of bad records, how a mix ends."""

import json
from pathlib import Path

import numpy as np
import pytest

from brain.ml.sample_log import final_samples
from brain.ml.training_job import DataSource
from tests.shard_reading import written
from tests.training import events, make_job, text_shards, train_here, write_shards


def all_samples(run_dir: Path) -> list[str]:
    return [sample for step in final_samples(run_dir).values() for sample in step]


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


def test_bad_and_missing_shards_that_may_be_skipped_stop_no_run_before_it_begins(tmp_path):
    shards = text_shards(shards=6)
    names = sorted(key for key in shards if "/train/" in key)
    # Whatever looks at a first record or guesses an epoch's size meets them.
    damaged = {
        **shards,
        names[0]: b'{"id": \n' * 3,
        names[1]: b'{"id": \n' + shards[names[1]],
        names[3]: b"\xff\n",
    }
    store = write_shards(tmp_path / "data", damaged)
    zipped = tmp_path / "data" / (names[2] + ".gz")
    zipped.write_bytes(b"no gzip at all")
    (tmp_path / "data" / names[2]).unlink()
    limits = {"epochs": 1.0, "max_steps": None, "batch_size": 4}
    assert train_here(make_job(tmp_path / "strict", store, **limits)) != 0
    assert train_here(make_job(tmp_path / "run", store, on_bad="skip", **limits)) == 0
    [end] = events(tmp_path / "run", "end")
    told = "left out, over all epochs: 5 bad records, 1 part of a file that cannot be opened"
    assert events(tmp_path / "run", "warning")[-1]["message"] == told
    assert (end["stats"]["skipped_bad"], end["stats"]["skipped_unreadable"]) == (5, 1)
    good = {key: data for key, data in shards.items() if key not in (names[0], names[2], names[3])}
    whole = write_shards(tmp_path / "good", good)
    assert train_here(make_job(tmp_path / "other", whole, **limits)) == 0
    [expected] = events(tmp_path / "other", "end")
    assert end["tokens"] == expected["tokens"]


def test_wide_tokens_are_never_taken_for_narrow_ones(tmp_path):
    def shards(dtype: str) -> dict[str, bytes]:
        ids = np.random.default_rng(1).integers(3, 259, (4, 200))
        places = ["train/train-00000", "train/train-00001", "train/train-00002", "val/val-00000"]
        return {
            f"d/{place}.bin": row.astype(dtype).tobytes()
            for place, row in zip(places, ids, strict=True)
        }

    limits = {"epochs": 1.0, "max_steps": None, "sample_log": True}
    narrow = write_shards(tmp_path / "narrow", shards("<u2"))
    assert train_here(make_job(tmp_path / "a", narrow, **limits)) == 0
    wide = write_shards(tmp_path / "wide", shards("<u4"))
    assert train_here(make_job(tmp_path / "b", wide, **limits)) != 0
    [error] = events(tmp_path / "b", "error")
    assert "every second number is 0" in error["message"]
    assert "token_dtype=uint32" in error["hint"]
    assert train_here(make_job(tmp_path / "c", wide, token_dtype="uint32", **limits)) == 0
    assert set(all_samples(tmp_path / "c")) == set(all_samples(tmp_path / "a"))
    assert len(all_samples(tmp_path / "c")) == len(all_samples(tmp_path / "a")) > 3
    # Said to be narrow, they are read as that.
    assert train_here(make_job(tmp_path / "d", wide, token_dtype="uint16", **limits)) == 0
    # Where an index says it, nobody need.
    for side in ("train", "val"):
        index = {"shards": [{"shard_id": 0, "chunks": []}], "token_dtype": "uint32"}
        (tmp_path / f"wide/d/{side}/manifest.json").write_text(json.dumps(index))
    assert train_here(make_job(tmp_path / "e", wide, **limits)) == 0
    assert set(all_samples(tmp_path / "e")) == set(all_samples(tmp_path / "c"))


def test_a_webdataset_of_texts_is_trained_on_its_texts(tmp_path):
    shards = text_shards(shards=2)
    lines = write_shards(tmp_path / "lines", shards)
    archives = {
        key.replace(".jsonl", ".tar"): written(
            "webdataset",
            (
                {"__key__": f"{row:05}", "txt": record["text"], "cls": str(record["id"])}
                for row, record in enumerate(map(json.loads, data.splitlines()))
            ),
        )
        for key, data in shards.items()
    }
    store = write_shards(tmp_path / "archives", archives)
    limits = {"epochs": 1.0, "max_steps": None, "sample_log": True, "shuffle": False}
    assert train_here(make_job(tmp_path / "a", lines, **limits)) == 0
    assert train_here(make_job(tmp_path / "b", store, **limits)) == 0
    assert all_samples(tmp_path / "a") == all_samples(tmp_path / "b")

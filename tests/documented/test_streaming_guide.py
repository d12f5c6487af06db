"""docs/streaming.md followed literally: its code runs, and every setting and figure it names is there."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from brain.ml.dataset_shards.mixed_stream import MixedStream
from brain.ml.dataset_shards.stream_coordinator import StreamCoordinator
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.stream_data import put_shards
from tests.stream_parts import memory_manager
from tools_utilities.setting_keys import KEYS_BY_NAME, parse_value
from tools_utilities.shard_format import ReadOptions

GUIDE = (Path(__file__).parents[2] / "docs/streaming.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def block(word: str) -> str:
    (found,) = [text for text in BLOCKS if word in text]
    return str(found)


@pytest.fixture
def manager(tmp_path: Path) -> Any:
    made = memory_manager(tmp_path, "guide")
    put_shards(made.store, [10] * 8)
    return made


def test_a_strategy_is_given_with_its_options(manager):
    stream = eval(  # noqa: S307 - it is what the guide prints
        block("num_partitions"), {"StreamDataset": StreamDataset, "manager": manager}
    )
    assert len(list(stream)) == 80


def test_several_datasets_are_mixed(manager):
    names: dict[str, Any] = {"MixedStream": MixedStream, "StreamLoader": StreamLoader}
    names["a"], names["b"] = (StreamDataset(manager, "data/x/", seed=seed) for seed in (1, 2))
    exec(block("MixedStream("), names)  # noqa: S102 - it is what the guide prints
    batches = list(names["mixed"])
    assert 3 <= len(batches) <= 6


def test_a_coordinator_is_used_as_printed(capsys):
    names: dict[str, Any] = {
        "StreamCoordinator": StreamCoordinator,
        "keys": [f"k{number}" for number in range(8)],
        "rank": 1,
    }
    exec(block("StreamCoordinator("), names)  # noqa: S102 - it is what the guide prints
    coordinator = names["coordinator"]
    assert coordinator.shards_of(1) == ("k5",)  # k1 is done
    assert coordinator.get_checkpoint(1) == {"key": "k1", "record": 1200}
    assert capsys.readouterr().out == ""  # nothing had to move


def test_every_setting_it_names_takes_the_value_it_is_given():
    given = re.findall(r"`([a-z_]+)=([^`…()]+)`", GUIDE)
    parameters = {
        name
        for owner in (StreamDataset, StreamLoader, MixedStream, ReadOptions, StreamCoordinator)
        for name in inspect.signature(owner).parameters
    }
    unknown = []
    for name, value in given:
        if name in KEYS_BY_NAME:
            parse_value(name, value.strip('"'))
        elif name not in parameters:
            unknown.append(name)
    assert set(unknown) <= {"label", "lang", "name"}  # names of folders
    assert len(given) > 20


def test_every_figure_it_names_is_in_the_statistics(manager):
    loader = StreamLoader(StreamDataset(manager, "data/x/", rank=0, world_size=1), 4)
    list(loader)
    stats = loader.get_stats()
    loader.close()
    _, _, slow = GUIDE.partition("\n## Slow\n")
    slow = slow.partition("\n## ")[0]
    column = [line.split("|")[1] for line in slow.splitlines() if line.startswith("| ")]
    named = {name for cell in column for name in re.findall(r"`([a-z_]+)`", cell)}
    assert named >= {"cache_hit_rate", "open_wait_seconds", "retries", "worker_utilization"}
    assert sorted(named - set(stats)) == []
    for name in ("dropped_samples", "padded_samples", "schema_drift", "bad_records"):
        assert name in GUIDE
        assert name in stats


def test_the_methods_it_names_are_there():
    for name in ("rank_files", "set_epoch", "load_state_dict", "validate", "get_stats"):
        assert name in GUIDE
        assert callable(getattr(StreamDataset, name))
    assert callable(StreamLoader.samples_in_step)
    assert callable(StreamLoader.close)

"""The distributed loader's names (section L): one test a row, each of what the name does."""

from pathlib import Path
from typing import Any

import pytest

from brain.ml.dataset_shards.partition_strategy import Shard, World, partition_strategies
from brain.ml.dataset_shards.stream_coordinator import StreamCoordinator
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.token_source import TokenSource
from brain.ml.tokenizer import load_tokenizer
from brain.ml.training_job import Every
from knowledge_hub.hub import KnowledgeHub
from tests.brain.stream_data import ids, memory_manager
from tests.training import make_job, text_shards, train_here, write_shards
from tools_utilities.errors import UsageError
from tools_utilities.settings import load_settings
from tools_utilities.worker_health import WorkerHealth

GUIDE = (Path(__file__).parents[2] / "docs/streaming.md").read_text(encoding="utf-8")


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def coordinator(now: list[float]) -> StreamCoordinator:
    return StreamCoordinator(heartbeat_seconds=10, clock=lambda: now[0])


# StreamCoordinator and WorkerHealth


def test_register_worker_and_update_worker_health(coordinator, now):
    coordinator.register_worker(rank=0, shards=["a", "b"])
    now[0] = 4.0
    coordinator.update_worker_health(rank=0, samples=120, throughput=60.0)
    assert coordinator.get_worker_health(0) == WorkerHealth(
        rank=0,
        status="active",
        last_heartbeat=4.0,
        samples_processed=120,
        average_throughput=60.0,
    )


def test_register_checkpoint_and_get_checkpoint(coordinator):
    stream = StreamDataset(memory_manager([10]), "data/x/")
    samples = iter(stream)
    begun = [next(samples)["id"] for _ in range(4)]
    coordinator.register_worker(0, ["a"])
    coordinator.register_checkpoint(0, stream.state_dict())
    found = coordinator.get_checkpoint(0)
    assert found is not None
    stream.load_state_dict(found)
    assert sorted(begun + ids(stream)) == list(range(10))


def test_rebalance_if_needed_moves_from_the_failed_to_the_living(coordinator, now):
    for rank in range(2):
        coordinator.register_worker(rank, [f"{rank}-{n}" for n in range(3)])
        coordinator.update_worker_health(rank, 10, 5.0)
    assert coordinator.rebalance_if_needed() == ()
    now[0] = 29.0
    coordinator.update_worker_health(1, 100, 5.0)
    now[0] = 31.0
    moves = coordinator.rebalance_if_needed()
    assert sorted(move.key for move in moves) == ["0-0", "0-1", "0-2"]
    assert {(move.source, move.target) for move in moves} == {(0, 1)}


def test_the_five_states(coordinator, now):
    for rank in range(5):
        coordinator.register_worker(rank, [f"s{rank}"])
    coordinator.update_worker_health(3, 10, 100.0)  # and then never again
    now[0] = 25.0
    coordinator.update_worker_health(0, 10, 100.0)
    coordinator.update_worker_health(1, 10, 79.0)  # below (1 - 0.2) of the median of 100
    coordinator.update_worker_health(2, 0, 0.0)
    now[0] = 29.0
    coordinator.update_worker_health(0, 20, 100.0)
    coordinator.register_worker(4, ["s4"])
    now[0] = 31.0
    coordinator.register_worker(5, [])
    coordinator.register_worker(6, ["s6"])
    coordinator.update_worker_health(6, 10, 100.0)
    states = [coordinator.get_worker_health(rank).status for rank in (0, 1, 2, 3, 4)]
    assert states == ["active", "slow", "idle", "failed", "unknown"]


# Strategies with their options


def dealt(name: str, world_size: int = 2, **options: Any) -> list[list[int]]:
    shards = [
        Shard(key=f"k{number:04d}", num_samples=1, labels={"ab"[number % 2]: 1})
        for number in range(1000)
    ]
    return partition_strategies()[name].assign(
        shards, World(world_size=world_size, options=options)
    )


def test_hash_has_16_partitions_and_seed_42():
    assert dealt("hash") == dealt("hash", num_partitions=16, hash_seed=42)
    assert dealt("hash") != dealt("hash", hash_seed=43)
    assert partition_strategies()["hash"].num_partitions(World(world_size=2)) == 16


def test_range_takes_half_open_ranges():
    low, high = dealt("range", ranges=[(0, 250), (250, 1000)])
    assert (low, high) == (list(range(250)), list(range(250, 1000)))
    with pytest.raises(UsageError, match="files 250 to 259 are in no range"):
        dealt("range", ranges=[(0, 250), (260, 1000)])


def test_stratified_finds_the_classes_itself():
    parts = dealt("stratified", key="label")
    assert [sum(number % 2 for number in part) for part in parts] == [250, 250]


def test_adaptive_starts_from_a_base_and_has_a_threshold():
    assert dealt("adaptive") == dealt("adaptive", base="round_robin", rebalance_threshold=0.2)
    assert dealt("adaptive") == dealt("round_robin")
    assert dealt("adaptive", base="contiguous") == dealt("contiguous")
    with pytest.raises(UsageError, match=r"rebalance_threshold=1\.5"):
        dealt("adaptive", rebalance_threshold=1.5)
    with pytest.raises(UsageError, match="partition=adaptive: faster workers"):
        StreamDataset(memory_manager([1]), "data/x/", partition="adaptive").prepare()


# `checkpoint_every` also in samples


def test_checkpoints_every_so_many_samples(tmp_path):
    store = write_shards(tmp_path / "data", text_shards(shards=1))
    job = make_job(
        tmp_path / "run", store, batch_size=8, max_steps=6, keep=9, val=(),
        checkpoint_every=Every(samples=16),
    )  # fmt: skip
    assert train_here(job) == 0
    saved = {path.name for path in (tmp_path / "run/checkpoints").iterdir() if path.is_dir()}
    assert sorted(int(name.rpartition("-")[2]) for name in saved) == [2, 4, 6]
    settings = load_settings(
        start_dir=tmp_path, environ={}, overrides={"checkpoint_every": "16samples"}
    )
    assert settings.value("checkpoint_every") == {"samples": 16}


# `fault_tolerance` is refused with the explanation

EXPLAINED = "resume=auto"


def test_fault_tolerance_is_refused_as_a_setting(tmp_path):
    for name in ("fault_tolerance", "replication_factor"):
        with pytest.raises(UsageError, match=f"{name}: not a setting of Quark") as caught:
            load_settings(start_dir=tmp_path, environ={}, overrides={name: "2"})
        assert EXPLAINED in str(caught.value)
        (tmp_path / "quark.yaml").write_text(f"{name}: 2\n")
        with pytest.raises(UsageError, match="taken over"):
            load_settings(start_dir=tmp_path, environ={})
        (tmp_path / "quark.yaml").unlink()


def test_fault_tolerance_is_refused_in_a_sentence_and_as_an_option():
    reading = KnowledgeHub().read("train quark with data/x fault_tolerance=2")
    assert reading.status == "unaccounted"
    assert EXPLAINED in str(reading.unaccounted[0].suggest)
    with pytest.raises(UsageError, match="fault_tolerance: not a setting"):
        StreamDataset(memory_manager([1]), "data/x/", partition_options={"fault_tolerance": True})


# Statistics are a superset


def test_the_statistics_have_every_documented_name_and_count():
    stream = StreamDataset(memory_manager([10, 10]), "data/x/", rank=0, world_size=1)
    assert len(ids(stream)) == 20
    stream.state_dict()
    stats = stream.get_stats()
    assert stats["samples_loaded"] == 20
    assert stats["local_samples"] + stats["remote_samples"] == 20
    assert stats["num_checkpoints"] == 1
    assert 0 <= stats["worker_utilization"] <= 1
    for name in ("prefetch_hits", "prefetch_misses", "avg_load_time_us"):
        assert stats[name] >= 0


# Validation data uses seed + 1


def test_validation_data_uses_seed_plus_one(tmp_path):
    store = write_shards(tmp_path / "data", text_shards())
    job = make_job(tmp_path / "run", store, seed=7)
    tokenizer = load_tokenizer(job.tokenizer)
    train = TokenSource(job, job.train[0], tokenizer, training=True)
    val = TokenSource(job, job.val[0], tokenizer, training=False)
    assert (train.stream.config.seed, val.stream.config.seed) == (7, 8)


# `docs/streaming.md` answers


@pytest.mark.parametrize(
    ("section", "must_name"),
    [
        ("Uneven workers", ["data_wait_share", "equalize=pad", "insufficient files"]),
        ("Out of memory", ["shuffle_mb", "workers=0", "prefetch=2"]),
        ("Slow", ["cache_hit_rate", "worker_utilization", "fetch_concurrency"]),
        ("Not deterministic", ["seed", "samples_in_step", "batch_size"]),
        ("Tuning", ["cache_gb", "displacement"]),
    ],
)
def test_the_guide_answers(section, must_name):
    _, _, text = GUIDE.partition(f"\n## {section}\n")
    text = text.partition("\n## ")[0]
    assert [name for name in must_name if name not in text] == []

"""What a stream does with data as it comes: formats, bad records, missing objects, promises broken."""

import gzip
import json
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import folder_manager, ids, memory_manager, put_shards, shard
from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.errors import (
    DataError,
    DataNotFoundError,
    IntegrityError,
    ObjectNotFoundError,
    RecordError,
    UsageError,
)
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.shard_format import OpenSplit, ReadOptions


def test_the_documented_lines_run_in_a_plain_loader():
    manager = memory_manager([25] * 8)
    stream = StreamDataset(manager, prefix="data/x/train-", deserialize=json.loads)
    one_by_one = list(DataLoader(stream, batch_size=None))
    assert sorted(sample["id"] for sample in one_by_one) == list(range(200))
    stream = StreamDataset(manager, prefix="data/x/train-", deserialize=json.loads)
    batches = list(DataLoader(stream, batch_size=8))
    assert [n for batch in batches for n in batch["id"].tolist()] == ids(one_by_one)


def test_deserialize_gets_a_records_own_bytes():
    stream = StreamDataset(memory_manager([3]), "data/x/", deserialize=bytes, shuffle=False)
    assert list(stream) == [b'{"id": 0}', b'{"id": 1}', b'{"id": 2}']


def test_a_failing_deserialize_names_the_record():
    def refuse(raw: bytes) -> Any:
        if b"4" in raw:
            raise KeyError("no four")
        return json.loads(raw)

    stream = StreamDataset(memory_manager([3, 3]), "data/x/", deserialize=refuse, shuffle=False)
    iterator = iter(stream)
    assert [next(iterator)["id"] for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(RecordError, match="no four") as caught:
        next(iterator)
    assert caught.value.detail["key"] == "data/x/train-00001.jsonl"
    assert caught.value.detail["index"] == 1
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_precedes_a_bad_record_is_delivered_and_the_state_stands_before_it():
    manager = memory_manager([6])
    lines = b"".join(manager.store.get("data/x/train-00000.jsonl")).splitlines(keepends=True)
    lines[4] = b"[]\n"
    manager.store.put("data/x/train-00000.jsonl", b"".join(lines))
    stream = StreamDataset(manager, "data/x/", shuffle=False)
    seen: list[int] = []
    with pytest.raises(RecordError) as caught:
        seen.extend(sample["id"] for sample in stream)
    assert seen == [0, 1, 2, 3]
    assert stream.state_dict()["position"] == 4
    assert caught.value.detail["record"] == 5
    assert caught.value.detail["offset"] == 40
    assert caught.value.detail["store"].startswith("memory://")


def bad_manager(count: int) -> DirectManager:
    manager = memory_manager([20])
    lines = b"".join(manager.store.get("data/x/train-00000.jsonl")).splitlines(keepends=True)
    for number in range(count):
        lines[number * 3] = b"{bad\n"
    manager.store.put("data/x/train-00000.jsonl", b"".join(lines))
    return manager


def test_bad_records_are_skipped_within_the_budget():
    stream = StreamDataset(bad_manager(3), "data/x/", on_bad="skip", bad_budget=3)
    assert len(ids(stream)) == 17
    assert stream.get_stats()["bad_records"] == 3
    assert len(ids(stream)) == 17
    with pytest.raises(DataError, match="more than 2 records"):
        ids(StreamDataset(bad_manager(3), "data/x/", on_bad="skip", bad_budget=2))


def test_a_batch_of_bad_records_alone_is_left_out_or_refused():
    loader = StreamLoader(StreamDataset(bad_manager(3), "data/x/", on_bad="skip"), 1)
    assert len(list(loader)) == 17
    stream = StreamDataset(bad_manager(3), "data/x/", on_bad="skip", rank=0, world_size=2)
    stream_of_other = StreamDataset(bad_manager(3), "data/x/", on_bad="skip", rank=1, world_size=2)
    with pytest.raises(DataError, match="none of the 1 records"):
        list(StreamLoader(stream, 1))
        list(StreamLoader(stream_of_other, 1))


def test_b07_an_object_gone_since_it_was_listed():
    manager = memory_manager([8] * 8)
    stream = StreamDataset(manager, "data/x/")
    assert len(stream.index.table.objects) == 8
    manager.store.delete("data/x/train-00003.jsonl")
    with pytest.raises(ObjectNotFoundError) as caught:
        ids(stream)
    assert caught.value.detail["key"] == "data/x/train-00003.jsonl"

    put_shards(manager.store, [8] * 8)
    stream = StreamDataset(manager, "data/x/", on_missing="skip")
    assert stream.is_empty is False
    manager.store.delete("data/x/train-00003.jsonl")
    assert sorted(ids(stream)) == [n for n in range(64) if n // 8 != 3]
    assert stream.get_stats()["missing_objects"] == 1

    manager.store.put("data/x/train-00008.jsonl", shard(range(64, 72)))
    assert len(StreamDataset(manager, "data/x/").index.table.objects) == 8


def test_missing_objects_with_known_counts_leave_their_slots_empty():
    manager = memory_manager([8] * 8)
    stream = StreamDataset(manager, "data/x/", on_missing="skip")
    order = ids(stream)
    manager.store.delete("data/x/train-00003.jsonl")
    stream.set_epoch(0)
    assert ids(stream) == [number for number in order if number // 8 != 3]
    assert len(stream) == 64


def test_no_data_is_an_error_naming_store_and_prefix():
    manager = memory_manager([1])
    stream = StreamDataset(manager, "data/nothing/")
    assert stream.is_empty
    with pytest.raises(DataNotFoundError, match="data/nothing/") as caught:
        ids(stream)
    assert "memory://" in str(caught.value)


def test_objects_without_records_are_an_empty_epoch():
    stream = StreamDataset(memory_manager([0, 0]), "data/x/")
    assert ids(stream) == []
    assert stream.is_empty
    assert len(stream) == 0


def test_compressed_and_cut_objects_stream_alike(monkeypatch):
    from brain.ml.dataset_shards import stream_index

    monkeypatch.setattr(stream_index, "SPLIT_BYTES", 100)
    manager = memory_manager([50, 3])
    data = shard(range(53, 70))
    manager.store.put(
        "data/x/train-00002.jsonl.gz", gzip.compress(data[:90]) + gzip.compress(data[90:])
    )
    stream = StreamDataset(manager, "data/x/")
    assert sorted(ids(stream)) == list(range(70))
    assert len(stream.index.table) > 5
    truncated = gzip.compress(data)[:-9]
    manager.store.put("data/x/train-00002.jsonl.gz", truncated)
    with pytest.raises(RecordError):
        ids(StreamDataset(manager, "data/x/"))


def test_parquet_counts_come_from_footers(tmp_path):
    folder = tmp_path / "data/x"
    folder.mkdir(parents=True)
    for number in range(4):
        table = pa.table({"id": list(range(number * 10, number * 10 + 10))})
        pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=4)
    spec = StoreSpec(uri=f"file://{tmp_path}")
    manager = StreamingManager.for_store(spec, cache_dir=None, cache_bytes=0)
    stream = StreamDataset(manager, "data/x/")
    assert len(stream) == 40
    assert stream.index.table.num_samples.tolist() == [10] * 4
    assert sorted(ids(stream)) == list(range(40))


def test_a_manifest_is_held_against_what_was_read():
    manager = memory_manager([4, 4])

    def write(counts: list[int], **chunk: Any) -> None:
        shards = [
            {"shard_id": n, "chunks": [{"key": f"train-{n:05d}.jsonl", "num_samples": c, **chunk}]}
            for n, c in enumerate(counts)
        ]
        manifest = {"schema": 1, "kind": "quark-manifest", "shards": shards}
        manager.store.put("data/x/manifest.json", encode_manifest(manifest))

    write([4, 4])
    stream = StreamDataset(manager, "data/x/")
    assert len(stream) == 8
    assert sorted(ids(stream)) == list(range(8))
    write([4, 5])
    with pytest.raises(DataError, match="4 samples"):
        ids(StreamDataset(manager, "data/x/"))
    write([4, 4, 4])
    with pytest.raises(DataNotFoundError, match="train-00002"):
        ids(StreamDataset(manager, "data/x/"))
    write([4, 4], num_bytes=7)
    with pytest.raises(IntegrityError, match="7 in the manifest"):
        ids(StreamDataset(manager, "data/x/"))


@pytest.mark.parametrize("in_place", [True, False])
def test_the_bytes_are_held_against_a_manifests_checksum(tmp_path, in_place):
    spec = StoreSpec(uri=f"file://{tmp_path}" if in_place else f"memory://{uuid.uuid4().hex}")
    store = open_store(spec)
    put_shards(store, [3, 3])
    good = b"".join(store.get("data/x/train-00001.jsonl"))
    chunk = {"key": "train-00001.jsonl", "num_samples": 3, "num_bytes": len(good)}
    shards = [{"shard_id": 0, "chunks": [{**chunk, "crc32c": encode_crc32c(crc32c(good))}]}]
    manifest = {"schema": 1, "kind": "quark-manifest", "shards": shards}
    store.put("data/x/manifest.json", encode_manifest(manifest))

    def read() -> list[int]:
        manager = StreamingManager.for_store(
            spec, cache_dir=str(tmp_path / "cache"), cache_bytes=1 << 20
        )
        return sorted(ids(StreamDataset(manager, "data/x/")))

    assert read() == list(range(6))
    # As long, still JSON: only the checksum tells.
    store.put("data/x/train-00001.jsonl", good.replace(b"4", b"9"))
    with pytest.raises(IntegrityError, match="train-00001"):
        read()


def encode_manifest(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest).encode()


class Doubled:
    """A view in which every record is two samples."""

    def __init__(self, opened: OpenSplit) -> None:
        self._opened = opened
        self.num_samples = opened.num_samples * 2
        self.num_bytes = opened.num_bytes
        self.skipped = opened.skipped

    def read(self, indices: Any) -> list[Any]:
        found = self._opened.read([index // 2 for index in indices])
        return [{"id": s["id"], "half": i % 2} for s, i in zip(found, indices, strict=True)]

    def read_raw(self, indices: Any) -> list[bytes]:
        return self._opened.read_raw([index // 2 for index in indices])

    def close(self) -> None:
        self._opened.close()


class DoubledView:
    identity = "doubled"

    def open(self, split: OpenSplit) -> OpenSplit:
        return Doubled(split)


def test_a_view_changes_samples_counts_and_order_fingerprint():
    manager = memory_manager([5, 5])
    stream = StreamDataset(manager, "data/x/", view=DoubledView())
    found = [(sample["id"], sample["half"]) for sample in stream]
    assert sorted(found) == [(number, half) for number in range(10) for half in (0, 1)]
    assert len(stream) == 20
    plain = StreamDataset(manager, "data/x/")
    assert plain.index.order_fingerprint != stream.index.order_fingerprint


def test_other_read_options_are_another_order():
    manager = memory_manager([5])
    wide = StreamDataset(manager, "data/x/", options=ReadOptions(seq_len=8))
    narrow = StreamDataset(manager, "data/x/", options=ReadOptions(seq_len=4))
    assert wide.index.order_fingerprint != narrow.index.order_fingerprint


@pytest.mark.parametrize(
    "setting",
    [
        {"equalize": "sometimes"},
        {"on_bad": "ignore"},
        {"on_missing": "ignore"},
        {"batch_size": 0},
        {"prefetch": -1},
        {"bad_budget": -1},
        {"partition": "rendezvous"},
        {"partition_options": {"colour": "red"}},
        {"rank": 2, "world_size": 2},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_at_once(setting):
    with pytest.raises(UsageError):
        StreamDataset(memory_manager([1]), "data/x/", **setting)


def test_prefetch_names_the_first_objects_of_the_epoch():
    manager = memory_manager([2] * 30)
    stream = StreamDataset(manager, "data/x/", prefetch=0)
    stream.prefetch(5)
    first = manager.ahead[-1]
    assert len(first) == 5
    next(iter(stream))
    assert set(first) <= set(manager.opened)
    assert len(manager.opened) < 30


def test_one_order_on_memory_local_and_moto(
    moto_endpoint, make_bucket, put_objects, aws_environment, tmp_path
):
    sizes = [5, 0, 7, 3, 9, 1, 4, 8]
    memory = memory_manager(sizes)
    expected = [ids(StreamDataset(memory, "data/x/"))]
    (tmp_path / "local").mkdir()
    local = folder_manager(tmp_path / "local", sizes)
    bucket = make_bucket(moto_endpoint)
    objects = {info.key: b"".join(memory.store.get(info.key)) for info in memory.store.list("")}
    put_objects(moto_endpoint, bucket, objects)
    spec = StoreSpec(uri=f"s3://{bucket}", endpoint_url=moto_endpoint)
    cache = str(tmp_path / "cache")
    for manager in (
        StreamingManager.for_store(local.spec, cache_dir=None, cache_bytes=0),
        StreamingManager.for_store(spec, cache_dir=cache, cache_bytes=10**8),
        StreamingManager.for_store(spec, cache_dir=cache, cache_bytes=10**8),
        StreamingManager.for_store(spec, cache_dir=None, cache_bytes=0),
    ):
        assert [ids(StreamDataset(manager, "data/x/"))] == expected
    stats = StreamDataset(manager, "data/x/").get_stats()
    assert {"samples_loaded", "local_samples", "remote_samples", "prefetch_hits"} <= stats.keys()
    assert {"prefetch_misses", "avg_load_time_us", "num_checkpoints"} <= stats.keys()
    assert "worker_utilization" in stats


def test_an_error_keeps_its_fields_through_torchs_text():
    # What torch's ExceptionWrapper does with an error of a worker: only class and traceback text.
    import traceback

    try:
        error = RecordError("k: line 3: bad", hint="Repair it.", key="k", record=3)
        error.pack()
        raise error
    except RecordError as raised:
        text = "".join(traceback.format_exception(raised))
    again = RecordError(f"Caught RecordError in DataLoader worker process 0.\nOriginal {text}")
    assert str(again) == "k: line 3: bad"
    assert (again.hint, again.detail) == ("Repair it.", {"key": "k", "record": 3})
    assert (
        str(RecordError("Caught RecordError without a note")) == "Caught RecordError without a note"
    )


def test_validate_reports_every_bad_record_and_missing_object():
    manager = bad_manager(3)
    put_shards(manager.store, [4, 4], folder="data/x/more-")
    stream = StreamDataset(manager, "data/x/")
    assert len(stream.index.table.objects) == 3
    manager.store.delete("data/x/more-train-00001.jsonl")
    report = stream.validate()
    assert (report.num_objects, report.num_samples, report.num_problems) == (3, 21, 4)
    assert not report.is_valid
    assert any("line 7" in problem for problem in report.problems)
    assert StreamDataset(memory_manager([3]), "data/x/").validate().is_valid

"""B44 and kills: what an error, SIGTERM or kill -9 leaves, on disk and in a store, and what comes after."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from tests import servers
from tests.scripts.test_create_sharded_dataset import CHECKOUT, digest, write_tasks
from tools_utilities.chunk_publisher import Uploader
from tools_utilities.chunk_writer import WrittenChunk
from tools_utilities.dataset_creation import OutputOptions
from tools_utilities.errors import IntegrityError, StoreError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.object_stores._s3_uploads import etags_of, upload_in_parts
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.sample_source import SourceBlock
from tools_utilities.scripts.create_sharded_dataset import create_sharded_dataset
from tools_utilities.sharding_plan import ShardingPlan

SCRIPT = str(CHECKOUT / "tools_utilities/scripts/create_sharded_dataset.py")


class Generated:
    """A source made of a generator: 2,000 samples, or an error at one of them."""

    uri = "generated"
    fingerprint = "1"
    objects: Mapping[str, str] = MappingProxyType({})
    num_bytes: int | None = None

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at

    def sample(self, number: int) -> dict[str, Any]:
        if number == self.fails_at:
            raise ValueError("boom 500")
        return {"id": number, "text": f"sample {number} " * 5}

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        for first in range(start, 2_000, 100):
            records: list[dict[str, Any]] = []
            failed = None
            for number in range(first, first + 100):
                try:
                    records.append(self.sample(number))
                except ValueError as error:
                    failed = error
                    break
            if records:
                yield SourceBlock(first=first, records=records, position={"index": 0})
            if failed is not None:
                raise failed


B44 = ShardingPlan(layout="flat", samples_per_shard=1000, name="shard", format="parquet")


def test_b44_an_error_of_the_source_is_told_as_it_is_and_publishes_nothing_partial(tmp_path):
    store = MemoryStore(StoreSpec(uri="memory://b44"))
    from tools_utilities.object_stores import memory

    memory._STORES["memory://b44"] = store
    old = store.put("d/shard-00001.parquet", b"older").etag
    output = OutputOptions(state_dir=tmp_path / "state")

    with pytest.raises(ValueError, match="boom 500") as caught:
        create_sharded_dataset(Generated(fails_at=1537), "memory://b44/d", B44, output=output)

    assert str(caught.value) == "generated: at sample 1537: ValueError: boom 500"
    assert type(caught.value.__cause__) is ValueError
    assert [info.key for info in store.list("d/")] == [
        "d/.quark-sharding.json",  # what goes on keeps others away
        "d/shard-00000.parquet",
        "d/shard-00001.parquet",
    ]
    assert store.head("d/shard-00001.parquet").etag == old
    first = store.head("d/shard-00000.parquet").etag

    create_sharded_dataset(Generated(), "memory://b44/d", B44, output=output)

    assert store.head("d/shard-00000.parquet").etag == first  # not written again
    create_sharded_dataset(Generated(), str(tmp_path / "whole"), B44)
    for name in ("shard-00000.parquet", "shard-00001.parquet", "manifest.json"):
        written = b"".join(store.get(f"d/{name}"))
        assert written == (tmp_path / "whole" / name).read_bytes()


TERMINATED = """
import os, signal, sys, time
from pathlib import Path
from tests.scripts.test_create_sharded_faults import B44, Generated
from tools_utilities.dataset_creation import OutputOptions
from tools_utilities.errors import QuarkError
from tools_utilities.scripts.create_sharded_dataset import create_sharded_dataset, stopping_cleanly

class Terminated(Generated):
    def sample(self, number):
        if number == 1500:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        return super().sample(number)

output = OutputOptions(endpoint_url=sys.argv[2], state_dir=Path(sys.argv[3]))
try:
    with stopping_cleanly():
        create_sharded_dataset(Terminated(), sys.argv[1], B44, output=output)
except QuarkError as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
def test_b44_sigterm_at_that_sample_publishes_nothing_partial_either(tmp_path, weed):
    store, client, bucket = weed
    place, endpoint, state = f"s3://{bucket}/d", store.spec.endpoint_url, tmp_path / "state"
    old = store.put("d/shard-00001.parquet", b"older").etag
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}

    ended = subprocess.run(
        [sys.executable, "-c", TERMINATED, place, endpoint, str(state)],
        env=environment,
        check=False,
    )

    assert ended.returncode == 143
    assert store.head("d/shard-00001.parquet").etag == old
    assert not unfinished(client, bucket)
    first = b"".join(store.get("d/shard-00000.parquet"))
    create_sharded_dataset(
        Generated(), place, B44, output=OutputOptions(endpoint_url=endpoint, state_dir=state)
    )
    create_sharded_dataset(Generated(), str(tmp_path / "whole"), B44)
    assert first == (tmp_path / "whole/shard-00000.parquet").read_bytes()
    for name in ("shard-00000.parquet", "shard-00001.parquet", "manifest.json"):
        assert b"".join(store.get(f"d/{name}")) == (tmp_path / "whole" / name).read_bytes()


def chunk_of(path: Path, num_bytes: int) -> WrittenChunk:
    from tools_utilities.checksum import crc32c, encode_crc32c

    data = random.Random(num_bytes).randbytes(num_bytes)
    path.write_bytes(data)
    return WrittenChunk(
        path=path, num_samples=1, num_bytes=num_bytes,
        crc32c=encode_crc32c(crc32c(data)), sha256=hashlib.sha256(data).hexdigest(),
    )  # fmt: skip


class FlippingStore(MemoryStore):
    """Stores another byte than it was given; its etags say nothing of content."""

    def put(self, key, data):
        return super().put(key, data[:-1] + b"?")


def test_an_upload_that_arrived_damaged_is_an_error_and_keeps_the_local_copy(tmp_path):
    store = FlippingStore(StoreSpec(uri="memory://flipping"))
    chunk = chunk_of(tmp_path / "chunk", 1000)

    with pytest.raises(IntegrityError, match="not the 1000 bytes"):
        Uploader(store, "d/")(chunk, "chunk")

    assert chunk.path.exists()


class FailingStore(MemoryStore):
    """Answers 503 to the first writes."""

    failures = 3
    writes = 0

    def put(self, key, data):
        self.writes += 1
        if self.writes <= self.failures:
            raise StoreError(f"{key}: 503", status=503, transient=True)
        return super().put(key, data)


def test_an_upload_is_tried_again_and_never_sent_twice(tmp_path):
    store = FailingStore(StoreSpec(uri="memory://failing"))
    pauses: list[float] = []
    upload = Uploader(store, "d/", sleep=pauses.append)

    upload(chunk_of(tmp_path / "chunk", 1000), "chunk")
    upload(chunk_of(tmp_path / "chunk", 1000), "chunk")

    assert (store.writes, len(pauses)) == (4, 3)
    assert pauses == sorted(pauses) or max(pauses) > min(pauses)


@pytest.fixture
def weed(weed_endpoint, make_bucket, aws_environment):
    """A store of SeaweedFS and a client of the same bucket."""
    bucket = make_bucket(weed_endpoint)
    store = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=weed_endpoint))
    client = servers.s3_client(weed_endpoint)
    yield store, client, bucket
    client.close()


def unfinished(client: Any, bucket: str) -> list[Any]:
    return list(client.list_multipart_uploads(Bucket=bucket).get("Uploads", []))


@pytest.mark.slow
def test_b44_a_shard_of_several_parts_is_uploaded_verified_and_then_removed_here(tmp_path, weed):
    store, client, bucket = weed
    chunk = chunk_of(tmp_path / "chunk", 18 << 20)
    data = chunk.path.read_bytes()
    expected = etags_of(chunk.path)

    Uploader(store, "d/")(chunk, "chunk.bin")

    assert client.get_object(Bucket=bucket, Key="d/chunk.bin")["Body"].read() == data
    assert store.head("d/chunk.bin").etag in expected
    assert expected[1].endswith("-3")
    assert not chunk.path.exists()
    assert not unfinished(client, bucket)


@pytest.mark.slow
def test_b44_an_error_after_the_first_part_leaves_no_part_and_the_older_object(tmp_path, weed):
    store, client, bucket = weed
    client.put_object(Bucket=bucket, Key="d/chunk.bin", Body=b"older")
    chunk = chunk_of(tmp_path / "chunk", 12 << 20)
    calls, params = store._calls, store._params
    sent = []

    class Breaking:
        def once(self, action, key, ask, **rest):
            return calls.once(action, key, ask, **rest)

        def retried(self, action, key, ask):
            if action == "put":
                sent.append(key)
                if len(sent) == 2:
                    raise StoreError("boom 500", status=500)
            return calls.retried(action, key, ask)

    with pytest.raises(StoreError, match="boom 500"):
        upload_in_parts(cast("Any", Breaking()), params, "d/chunk.bin", chunk.path, 5 << 20)

    assert len(sent) == 2
    assert not unfinished(client, bucket)
    assert client.get_object(Bucket=bucket, Key="d/chunk.bin")["Body"].read() == b"older"


@pytest.mark.slow
def test_parts_that_a_kill_left_are_cleaned_by_the_next_run_and_others_are_not(tmp_path, weed):
    store, client, bucket = weed
    source = write_tasks(tmp_path / "in.jsonl", 50)
    for key in ("d/shard_000/chunk_0000.jsonl", "d/other.bin"):
        begun = client.create_multipart_upload(Bucket=bucket, Key=key)
        client.upload_part(
            Bucket=bucket, Key=key, UploadId=begun["UploadId"], PartNumber=1, Body=b"x" * (5 << 20)
        )

    create_sharded_dataset(
        str(source), f"s3://{bucket}/d", ShardingPlan(num_shards=2),
        output=OutputOptions(endpoint_url=store.spec.endpoint_url, state_dir=tmp_path / "state"),
    )  # fmt: skip

    assert [one["Key"] for one in unfinished(client, bucket)] == ["d/other.bin"]


def begin(*arguments: str, home: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(home)}
    with (home / "stderr").open("wb") as told:
        return subprocess.Popen(
            [sys.executable, SCRIPT, *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=told,
        )


@pytest.mark.slow
def test_sigterm_stops_with_143_and_the_next_run_completes_it(tmp_path):
    source = write_tasks(tmp_path / "in.jsonl", 120_000)
    plan = ("--num_shards", "4", "--chunk_size_mb", "0.3", "--format", "parquet")
    files = ("--input_file", str(source), "--output_dir", str(tmp_path / "out"))
    process = begin(*files, *plan, home=tmp_path)
    while not (tmp_path / "out/.quark-progress.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.02)

    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=30) == 143
    assert "Run the same command again" in (tmp_path / "stderr").read_text()
    assert not (tmp_path / "out/master_metadata.json").exists()
    assert begin(*files, *plan, home=tmp_path).wait() == 0
    whole = ("--input_file", str(source), "--output_dir", str(tmp_path / "whole"))
    assert begin(*whole, *plan, home=tmp_path).wait() == 0
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def kill_and_complete(arguments, home: Path, kills: int, seed: int) -> int:
    """Kill a run at random moments, then let it end; returns how many kills met it alive."""
    moments, met = random.Random(seed), 0
    for _ in range(kills):
        process = begin(*arguments, home=home)
        try:
            process.wait(timeout=moments.uniform(0.2, 1.4))
        except subprocess.TimeoutExpired:
            met += 1
            process.kill()
            process.wait()
    assert begin(*arguments, home=home).wait() == 0
    return met


FORMATS = {
    "zstd": ("--compression", "zstd"),
    "gzip": ("--compression", "gzip"),
    "parquet": ("--format", "parquet"),
    "mds": ("--format", "mds"),
    "litdata": ("--format", "litdata"),
    "webdataset": ("--format", "webdataset"),
    "shuffle": ("--shuffle", "--val_fraction", "0.1"),
}


def check_kills(tmp_path: Path, name: str, kills: int, seed: int) -> None:
    source = write_tasks(tmp_path / "in.jsonl", 60_000)
    plan = ("--input_file", str(source), "--num_shards", "4", "--chunk_size_mb", "0.3")
    chosen = (*plan, *FORMATS[name])
    assert begin(*chosen, "--output_dir", str(tmp_path / "whole"), home=tmp_path).wait() == 0

    met = kill_and_complete((*chosen, "--output_dir", str(tmp_path / "out")), tmp_path, kills, seed)

    assert met > 0
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parquet", "shuffle"])
def test_killed_and_run_again_gives_the_same_bytes(tmp_path, name):
    check_kills(tmp_path, name, kills=3, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_killed_twenty_times_gives_the_same_bytes(tmp_path, name):
    check_kills(tmp_path, name, kills=20, seed=2)


def check_kills_in_a_store(tmp_path: Path, weed, kills: int) -> None:
    store, client, bucket = weed
    source = write_tasks(tmp_path / "in.jsonl", 60_000)
    arguments = (
        *("--input_file", str(source), "--num_shards", "2", "--chunk_size_mb", "2"),
        *("--output_endpoint_url", store.spec.endpoint_url),
    )
    whole = ("--output_dir", f"s3://{bucket}/whole")
    assert begin(*arguments, *whole, home=tmp_path).wait() == 0

    out = ("--output_dir", f"s3://{bucket}/out")
    assert kill_and_complete((*arguments, *out), tmp_path, kills, seed=3) > 0

    def content(prefix: str) -> dict[str, bytes]:
        return {
            info.key.removeprefix(prefix): b"".join(store.get(info.key))
            for info in store.list(prefix)
        }

    assert content("out/") == content("whole/")
    assert not unfinished(client, bucket)


@pytest.mark.slow
def test_killed_while_uploading_gives_the_same_objects(tmp_path, weed):
    check_kills_in_a_store(tmp_path, weed, kills=3)


@pytest.mark.nightly
def test_killed_twenty_times_while_uploading_gives_the_same_objects(tmp_path, weed):
    check_kills_in_a_store(tmp_path, weed, kills=20)

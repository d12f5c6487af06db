"""Two machines never write different datasets into one prefix; what is the same goes on from anywhere."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.test_create_sharded_dataset import CHECKOUT, samples_of, write_tasks
from tests.scripts.test_shard_manager import YesStore
from tools_utilities.dataset_creation import OutputOptions, begin_elsewhere, create_sharded_dataset
from tools_utilities.errors import (
    AccessError,
    ChangedError,
    ConditionFailedError,
    StoreError,
    UsageError,
)
from tools_utilities.object_store import StoreSpec
from tools_utilities.object_stores import memory
from tools_utilities.object_stores._failures import Failure
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.patient_store import PatientStore
from tools_utilities.sample_source import SourceBlock, SourceOptions, open_source
from tools_utilities.scripts.create_sharded_dataset import main
from tools_utilities.sharding_marker import MAKER, NAME, PrefixMarker
from tools_utilities.sharding_plan import ShardingPlan
from tools_utilities.sharding_progress import Header

MARKER = f"d/{NAME}.json"
PLAN, OTHER = (ShardingPlan(num_shards=shards, chunk_bytes=2_000) for shards in (2, 3))


class Read:
    """A file's records, with something done at one of them."""

    def __init__(self, path: Path, act: Callable[[], None], at: int = 30) -> None:
        source = open_source(str(path), SourceOptions())
        self.uri, self.fingerprint, self.objects = source.uri, source.fingerprint, source.objects
        self.num_bytes, self._source, self._act, self._at = source.num_bytes, source, act, at

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        del position
        records: list[Any] = [
            one for block in self._source.blocks(0, None) for one in block.records
        ]
        for number in range(start, len(records)):
            if number == self._at:
                self._act()
            yield SourceBlock(
                first=number, records=records[number : number + 1], position={"index": 0}
            )


@pytest.fixture
def store(request, monkeypatch):
    made = getattr(request, "param", MemoryStore)(StoreSpec(uri="memory://apart"))
    monkeypatch.setitem(memory._STORES, "memory://apart", made)
    return made


@pytest.fixture
def make(tmp_path):
    """Make `memory://apart/d` from a file (or a source) as a machine of its own does."""
    write_tasks(tmp_path / "in.jsonl", 60)
    write_tasks(tmp_path / "other.jsonl", 50)

    def run(machine: str, source: Any, plan: ShardingPlan = PLAN, out: str = "d") -> dict[str, Any]:
        read = str(tmp_path / source) if isinstance(source, str) else source
        output = OutputOptions(state_dir=tmp_path / machine)
        return create_sharded_dataset(read, f"memory://apart/{out}", plan, output=output)

    return run


def fail() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("other", [("other.jsonl", PLAN), ("in.jsonl", OTHER)])
def test_another_source_or_plan_is_refused_while_a_run_writes(store, make, tmp_path, other):
    refused: list[str] = []

    def intrude() -> None:
        before = {info.key: info.etag for info in store.list("")}
        with pytest.raises(UsageError, match="another run is writing it") as caught:
            make("b", *other)
        refused.append(f"{caught.value} | {caught.value.hint}")
        assert {info.key: info.etag for info in store.list("")} == before

    make("a", Read(tmp_path / "in.jsonl", intrude))

    [told] = refused
    assert ("another source" if other[0] == "other.jsonl" else "num_shards=2") in told
    assert f"delete {store.endpoint_id}/{MARKER}" in told
    assert sorted(row["id"] for row in samples_of("memory://apart/d")) == list(range(60))
    assert MARKER not in {info.key for info in store.list("")}
    with pytest.raises((UsageError, ChangedError), match="made from"):
        make("b", *other)
    assert MARKER not in {info.key for info in store.list("")}


def test_what_was_broken_off_goes_on_from_any_machine_and_keeps_others_away(store, make, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make("a", Read(tmp_path / "in.jsonl", fail))

    with pytest.raises(UsageError, match="another run is writing it, or was"):
        make("b", "other.jsonl")
    # The machine that began it knows better what is wrong: its own progress.
    with pytest.raises(ChangedError, match="begun with"):
        make("a", "other.jsonl")
    make("c", "in.jsonl")

    assert sorted(row["id"] for row in samples_of("memory://apart/d")) == list(range(60))
    assert MARKER not in {info.key for info in store.list("")}


def test_who_deletes_the_object_that_is_named_may_begin_something_else(store, make, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make("a", Read(tmp_path / "in.jsonl", fail))
    store.delete(MARKER)

    make("b", "other.jsonl")

    assert len(samples_of("memory://apart/d")) == 50


def test_a_run_that_finished_no_chunk_leaves_nothing_in_the_way(store, make, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make("a", Read(tmp_path / "in.jsonl", fail, at=2))

    assert list(store.list("")) == []
    assert not list(tmp_path.rglob(MAKER))
    make("b", "other.jsonl")


def test_a_run_that_was_killed_at_once_is_followed_by_another_of_its_machine(store, make, tmp_path):
    def kill() -> None:
        for path in (tmp_path / "a").iterdir():
            saved.update({file: file.read_bytes() for file in path.glob(".quark-maker")})
        saved[tmp_path] = store.get(MARKER)._data
        raise KeyboardInterrupt

    saved: dict[Path, bytes] = {}
    with pytest.raises(KeyboardInterrupt):
        make("a", Read(tmp_path / "in.jsonl", kill, at=2))
    store.put(MARKER, saved.pop(tmp_path))  # as a kill leaves it
    for path, data in saved.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    with pytest.raises(UsageError, match="another run is writing it"):
        make("b", "other.jsonl")
    make("a", "other.jsonl")

    assert len(samples_of("memory://apart/d")) == 50
    assert MARKER not in {info.key for info in store.list("")}


STALLED = """
import sys, time
from pathlib import Path
from tests.scripts.test_create_sharded_apart import PLAN, Read
from tools_utilities.dataset_creation import OutputOptions, create_sharded_dataset
def stall():
    print("there", flush=True)
    time.sleep(60)
source, target, endpoint = sys.argv[1:]
how = OutputOptions(endpoint_url=endpoint)
create_sharded_dataset(Read(Path(source), stall), target, PLAN, output=how)
"""


def test_a_machine_that_is_killed_and_two_others_on_a_server(
    make, tmp_path, aws_environment, moto_endpoint, make_bucket, capsys
):
    target = f"s3://{make_bucket(moto_endpoint)}/d"
    first = subprocess.Popen(
        [sys.executable, "-c", STALLED, str(tmp_path / "in.jsonl"), target, moto_endpoint],
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
    )
    assert first.stdout is not None
    with first, first.stdout:
        assert first.stdout.readline() == b"there\n"
        to = ["--output_dir", target, "--output_endpoint_url", moto_endpoint]
        same = ["--input_file", str(tmp_path / "in.jsonl"), *to, "--chunk_size_mb", "0.002"]

        assert main([*same, "--num_shards", "3"]) == 2
        told = capsys.readouterr().err
        assert "another run is writing it" in told
        assert f"/{MARKER}" in told
        first.kill()
    assert main([*same, "--num_shards", "3"]) == 2
    assert main([*same, "--num_shards", "2"]) == 0

    source = open_source(target, SourceOptions(endpoint_url=moto_endpoint))
    records: list[Any] = [row for block in source.blocks(0, None) for row in block.records]
    ids = [row["id"] for row in records]
    assert sorted(ids) == list(range(60))
    capsys.readouterr()
    assert main([*same, "--num_shards", "3"]) == 2
    assert "holds a dataset" in capsys.readouterr().err


def test_single_files_keep_apart_by_their_names(store, make, tmp_path):
    def beside() -> None:
        make("b", "other.jsonl", ShardingPlan(), "d/two.jsonl")
        with pytest.raises(UsageError, match="another run is writing it"):
            make("b", "other.jsonl", ShardingPlan(), "d/one.jsonl")

    make("a", Read(tmp_path / "in.jsonl", beside), ShardingPlan(), "d/one.jsonl")

    assert {info.key for info in store.list("")} == {"d/one.jsonl", "d/two.jsonl"}
    assert len(samples_of("memory://apart/d/one.jsonl")) == 60


def test_additions_are_not_kept_from_each_other(store, make, tmp_path):
    make("a", "in.jsonl")

    def add(path: Path | Read) -> None:
        output = OutputOptions(state_dir=tmp_path / "b")
        source = str(path) if isinstance(path, Path) else path
        create_sharded_dataset(source, "memory://apart/d", PLAN, output=output, append=True)

    add(Read(tmp_path / "in.jsonl", lambda: add(tmp_path / "other.jsonl")))


def test_what_another_machine_shall_do_is_kept_for_it(store, make, tmp_path):
    output = OutputOptions(state_dir=tmp_path / "a")
    begin_elsewhere(str(tmp_path / "in.jsonl"), "memory://apart/d", PLAN, output=output)

    with pytest.raises(UsageError, match="another run is writing it"):
        make("b", "other.jsonl")
    make("rented", "in.jsonl")

    assert MARKER not in {info.key for info in store.list("")}


class Unimplemented(MemoryStore):
    """Answers 501 to conditions, as some gateways do."""

    def put_if_absent(self, key, data):
        raise StoreError(f"{key}: 501", status=501, transient=Failure(status=501).transient)


@pytest.mark.parametrize("store", [YesStore, Unimplemented], indirect=True)
def test_a_store_without_conditions_goes_on_and_it_is_told_once(store, make, tmp_path, caplog):
    def intrude() -> None:
        with pytest.raises(UsageError, match="another run is writing it"):
            make("b", "other.jsonl")

    with caplog.at_level(logging.WARNING):
        make("a", Read(tmp_path / "in.jsonl", intrude))

    [told] = [line for line in caplog.messages if "conditional writes" in line]
    assert "at the same moment are not kept apart" in told
    assert len(samples_of("memory://apart/d")) == 60


def test_a_local_folder_and_a_store_that_keeps_conditions_say_nothing(
    store, make, tmp_path, caplog
):
    with caplog.at_level(logging.WARNING):
        make("a", "in.jsonl")
        create_sharded_dataset(str(tmp_path / "in.jsonl"), str(tmp_path / "out"), PLAN)

    assert caplog.messages == []
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(NAME)]


class LostReplies(MemoryStore):
    """Makes the marker, and answers as if nobody could say."""

    lost = 0

    def put_if_absent(self, key, data):
        info = super().put_if_absent(key, data)
        if not self.lost and key == MARKER:
            self.lost = 1
            raise ConditionFailedError(f"{key}: 503", unknown=True)
        return info


@pytest.mark.parametrize("store", [LostReplies], indirect=True)
def test_a_reply_that_was_lost_is_no_other_run(store, make):
    make("a", "in.jsonl")

    assert store.lost
    assert MARKER not in {info.key for info in store.list("")}


class Undeletable(MemoryStore):
    """Lets nothing be deleted."""

    def delete(self, key):
        raise AccessError(f"{key}: 403")


@pytest.mark.parametrize("store", [Undeletable], indirect=True)
def test_who_may_not_delete_makes_datasets_too(store, make):
    for _ in range(2):
        assert make("a", "in.jsonl")["total_tasks"] == 60

    assert MARKER in {info.key for info in store.list("")}


def test_of_runs_that_start_together_one_wins(store, tmp_path):
    start = threading.Barrier(8)

    def race(number: int) -> bool:
        header = Header(source=f"s{number}", fingerprint=str(number), settings={})
        (tmp_path / str(number)).mkdir()
        marker = PrefixMarker(PatientStore(store), MARKER, header, tmp_path / str(number), "d")
        start.wait()
        try:
            marker.take(lambda: None)
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 1

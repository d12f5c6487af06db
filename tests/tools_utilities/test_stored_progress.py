"""Progress beside the output: what one machine began another goes on with, and nothing is made of two."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.test_create_sharded_dataset import write_tasks
from tools_utilities.dataset_creation import OutputOptions, begin_elsewhere, create_sharded_dataset
from tools_utilities.errors import AccessError, ChangedError, RecordError, UsageError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store, read_object
from tools_utilities.object_stores import memory
from tools_utilities.patient_store import PatientStore
from tools_utilities.sample_source import Source, SourceBlock, SourceOptions, open_source
from tools_utilities.sharded_dataset import Dealt
from tools_utilities.sharding_lock import only_run
from tools_utilities.sharding_output import FOUND, HERE, PROGRESS, THERE, ShardingOutput
from tools_utilities.sharding_plan import ShardingPlan
from tools_utilities.sharding_progress import STORE_SECONDS, Header, Round, StoredProgress

PLAN = ShardingPlan(format="jsonl", layout="flat", name="shard", samples_per_shard=100)
SAMPLES = 1500
"""The first block of the source holds some hundred."""


class StopError(Exception):
    """A machine goes away."""


class WatchedSource:
    """A source that writes down where it is read from."""

    def __init__(self, source: Source) -> None:
        self._source, self.starts = source, list[int]()
        self.uri, self.fingerprint = source.uri, source.fingerprint
        self.objects, self.num_bytes = source.objects, source.num_bytes

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        self.starts.append(start)
        return self._source.blocks(start, position)


class Place:
    """An output in a store, and the machines that work on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.input = write_tasks(folder / "in.jsonl", SAMPLES)
        self.uri = f"memory://{folder.name}-{uuid.uuid4().hex}"
        self.store = open_store(StoreSpec(uri=self.uri))

    def options(self, machine: str, progress: str) -> OutputOptions:
        return OutputOptions(state_dir=self.folder / machine, progress=progress)

    def run(self, machine: str, progress: str, *, stops: bool = False) -> int:
        """Run on a machine, which goes away after a block if it `stops`; returns where it began to read."""
        source = WatchedSource(open_source(str(self.input), SourceOptions(json_bytes=True)))

        def report(_dealt: Dealt) -> None:
            if stops:
                raise StopError

        with pytest.raises(StopError) if stops else nullcontext():
            create_sharded_dataset(
                source, f"{self.uri}/set", PLAN, output=self.options(machine, progress),
                report=report,
            )  # fmt: skip
        return source.starts[0]

    def begin(self, machine: str) -> dict[str, Any] | None:
        return begin_elsewhere(
            str(self.input), f"{self.uri}/set", PLAN, output=self.options(machine, HERE)
        )

    def names(self) -> list[str]:
        return [one.key.removeprefix("set/") for one in self.store.list("set/")]

    def work_name(self) -> str:
        output = ShardingOutput(f"{self.uri}/set", PLAN, state_dir=self.folder)
        return output.work_folder.name

    def rounds(self) -> int:
        return len(read_object(self.store, f"set/{PROGRESS}")[0].splitlines()) - 1

    def content(self) -> bytes:
        manifest = load_manifest(self.store, "set/")
        assert manifest is not None
        chunks = [chunk for shard in manifest.shards for chunk in shard.chunks]
        return b"".join(read_object(self.store, f"set/{chunk.key}")[0] for chunk in chunks)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_another_machine_goes_on_with_what_one_began(place):
    assert place.begin("laptop") is None
    assert place.run("first", THERE, stops=True) == 0
    done = place.rounds()
    assert done > 0
    assert PROGRESS in place.names()

    assert place.run("second", THERE) == 100 * done

    assert place.content() == place.input.read_bytes()
    assert PROGRESS not in place.names()


def test_this_machine_goes_on_with_what_another_began(place):
    place.run("rented", THERE, stops=True)
    done = place.rounds()

    assert place.run("laptop", FOUND) == 100 * done

    assert place.content() == place.input.read_bytes()
    assert PROGRESS not in place.names()


def test_what_was_begun_here_is_handed_over(place):
    place.run("laptop", FOUND, stops=True)
    assert PROGRESS not in place.names()  # nobody asked for it
    [noted] = (place.folder / "laptop").rglob(PROGRESS)
    done = len(noted.read_bytes().splitlines()) - 1

    assert place.begin("laptop") is None
    assert not [path for path in (place.folder / "laptop").rglob("*") if path.is_file()]
    assert place.rounds() == done
    assert place.run("rented", THERE) == 100 * done
    assert place.content() == place.input.read_bytes()


def test_what_a_run_here_is_writing_is_not_handed_over(place):
    work = place.folder / "laptop" / place.work_name()
    with only_run(work, "it"), pytest.raises(UsageError, match="another run is writing it"):
        place.begin("laptop")
    assert place.names() == []


def test_what_is_in_the_store_counts_though_the_copy_here_is_longer(place):
    """Another machine may have gone on from there, and have made other bytes of later rounds."""
    place.run("first", THERE, stops=True)
    key = f"set/{PROGRESS}"
    lines = read_object(place.store, key)[0].splitlines(keepends=True)
    place.store.put(key, b"".join(lines[:2]))  # as far as it had come at the last write

    assert place.run("first", THERE) == 100

    assert place.content() == place.input.read_bytes()


def test_what_is_finished_is_not_begun_again(place):
    place.run("laptop", HERE)
    done = place.begin("laptop")
    assert done is not None
    assert (done["total_tasks"], done["num_shards"]) == (SAMPLES, SAMPLES // 100)
    assert PROGRESS not in place.names()


def test_a_source_that_changed_is_told_before_anything_is_rented(place):
    place.run("rented", THERE, stops=True)
    write_tasks(place.input, SAMPLES + 1)
    with pytest.raises(ChangedError, match=f"set/{PROGRESS}: begun with") as caught:
        place.begin("laptop")
    assert "Delete this file" in caught.value.hint


def test_what_cannot_be_read_is_told_before_anything_is_rented(place):
    place.input.write_bytes(b"")
    with pytest.raises(UsageError, match="no records"):
        place.begin("laptop")
    place.input.write_bytes(b'{"id": 1}\n{oops\n')
    with pytest.raises(RecordError):
        place.begin("laptop")
    assert place.names() == []


class NoDeleteStore(memory.MemoryStore):
    """Whose keys may not delete, as the bridge's need not."""

    puts = 0

    def put(self, key: str, data: bytes) -> ObjectInfo:
        self.puts += 1
        return super().put(key, data)

    def delete(self, key: str) -> None:
        raise AccessError(f"{key}: AccessDenied")


def test_it_is_written_now_and_then_and_who_may_not_delete_leaves_it(tmp_path):
    now = [0.0]
    store = NoDeleteStore(StoreSpec(uri="memory://kept"))
    progress = StoredProgress(tmp_path / "p", PatientStore(store), "set/p", clock=lambda: now[0])
    header = Header(source="s", fingerprint="f", settings={})
    assert progress.load(header) == []
    one = Round(samples=1, position={"index": 1}, chunks={})
    for passed in (1.0, STORE_SECONDS, STORE_SECONDS + 1.0):
        now[0] = passed
        progress.append(one)
    assert store.puts == 2  # when it began, and when the seconds were over
    progress.keep()
    assert len(progress.load(header)) == 3
    progress.remove()
    assert not (tmp_path / "p").exists()
    assert progress.is_stored

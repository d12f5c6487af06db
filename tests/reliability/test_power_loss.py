"""The cache after a loss of power: whatever the disk kept, no wrong byte is trusted."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.cache_parts import entries
from tests.reliability.matrix import Cells, matrix
from tests.reliability.power_loss import Disk, recorded
from tests.simulated_store import SimulatedStore
from tools_utilities.checksum import crc32c
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

NUM_OBJECTS = 12
LOSSES = 80
NIGHTLY_LOSSES = 4_000


def manager_of(spec: StoreSpec, folder: Path, budget: int) -> StreamingManager:
    return StreamingManager.for_store(spec, cache_dir=str(folder), cache_bytes=budget)


def record(store: SimulatedStore, folder: Path, budget: int) -> Disk:
    """Fill a cache that evicts, as two runs after each other would."""
    with recorded(folder) as disk:
        for _ in range(2):
            manager = manager_of(store.spec, folder, budget)
            for number in range(NUM_OBJECTS):
                manager.open_shard(store.info(number)).close()
            manager.settle()
    return disk


def run(cells: Cells, tmp_path: Path, num_losses: int) -> None:
    store = SimulatedStore(NUM_OBJECTS, 60)
    store.register()
    rng = random.Random(cells.seed)
    found: Counter[str] = Counter()
    for budget in (1 << 30, 40_000):
        disk = record(store, tmp_path / f"cache-{budget}", budget)
        for number in range(num_losses // 2):
            lying = number % 2 == 1
            case = f"budget {budget}, loss {number}"
            moment, own = rng.randint(1, len(disk.events)), random.Random(f"{cells.seed} {case}")
            if not cells.wanted(case):
                continue
            folder = tmp_path / f"image-{budget}-{number}"
            with cells.case(case):
                disk.image(folder, moment, own, lying=lying)
                found["entries"] += len(entries(folder))
                found["damaged"] += sum(not is_whole(path) for path in entries(folder))
                manager = manager_of(store.spec, folder, budget)
                for each in range(NUM_OBJECTS):
                    info = store.info(each)
                    with manager.open(info.key) as file:
                        right = store.content(info.key, 0, info.size_bytes)
                        assert file.read() == right, f"A WRONG FILE WAS TRUSTED: {info.key}"
                manager.settle()
    cells.notes.update(found)
    assert found["damaged"] or cells.only, (
        "no loss of power damaged anything: the test shows nothing"
    )


def is_whole(path: Path) -> bool:
    """Say whether an entry holds what its name says."""
    return crc32c(path.read_bytes()) == int(path.name.rpartition("-")[2], 16)


@pytest.mark.slow
def test_no_wrong_file_is_trusted(request, tmp_path):
    with matrix("POWER", request) as cells:
        run(cells, tmp_path, LOSSES)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_no_wrong_file_is_trusted_after_thousands(request, tmp_path):
    with matrix("POWER", request) as cells:
        run(cells, tmp_path, NIGHTLY_LOSSES)

"""Cache cases from the field: B10 (originals are never deleted), B16 (a small disk)."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brain.ml.dataset_shards.mixed_stream import MixedStream
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.simulated_store import SimulatedStore
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
LIMIT = 10 * MIB


def write_local(folder: Path) -> None:
    """Write four shards of 3 MiB, as the only copy."""
    (folder / "d").mkdir(parents=True)
    line = b'{"id": -1, "text": "' + b"y" * 1000 + b'"}\n'
    for number in range(4):
        (folder / "d" / f"s-{number}.jsonl").write_bytes(line * (3 * MIB // len(line)))


def sums(folder: Path) -> dict[str, str]:
    """Return what every file of a folder holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[path.relative_to(folder).as_posix()] = digest
    return found


@pytest.mark.parametrize("place", ["inside the cache", "linked into the cache", "is the cache"])
@pytest.mark.parametrize("policy", ["next_use", "lru"])
def test_b10_originals_beside_a_full_cache_are_never_touched(tmp_path, place, policy):
    cache = tmp_path / "c"
    local = {"inside the cache": cache / "mine", "is the cache": cache}.get(place, tmp_path / "l")
    write_local(local)
    cache.mkdir(exist_ok=True)
    if place == "linked into the cache":
        (cache / "mine").symlink_to(local)
    (cache / "notes.txt").write_text("stray")
    before = sums(local) | {"notes": (cache / "notes.txt").read_text()}
    remote = SimulatedStore(8, 3 * 1024, record_bytes=1024)
    options = {"cache_dir": str(cache), "cache_bytes": LIMIT, "cache_policy": policy}
    managers = [
        StreamingManager.for_store(StoreSpec(uri=f"file://{local}"), **options),
        StreamingManager.for_store(remote.register(), **options),
    ]
    streams = [
        StreamDataset(manager, prefix, rank=0, world_size=1)
        for manager, prefix in zip(managers, ("d/", "data/x/"), strict=True)
    ]
    loaders = [
        StreamLoader(stream, 512, collate_fn=lambda batch: [sample["id"] for sample in batch])
        for stream in streams
    ]
    mixed = MixedStream(loaders, [1, 1])
    for _ in range(2):
        ids = [number for batch in mixed for number in batch if number >= 0]
        assert sorted(ids) == list(range(8 * 3 * 1024))
    after = sums(local)
    assert {name: after[name] for name in before if name != "notes"} == {
        name: value for name, value in before.items() if name != "notes"
    }
    assert (cache / "notes.txt").read_text() == "stray"
    # The cache did have to make room: it works beside them, within its budget.
    assert remote.got_bytes > 8 * 3 * MIB
    made = [path for path in (cache / "quark-cache-1").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in made) <= LIMIT


SMALL_DISK = """
import json, logging, os, sys
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.simulated_store import SimulatedStore
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
folder, fill = sys.argv[1:3]
if fill == "full":
    with open(folder + "/other", "wb") as file:
        try:
            while file.write(b"x" * 65536):
                file.flush()
        except OSError:
            pass
logging.basicConfig(level=logging.WARNING)
store = SimulatedStore(4, 3 * 1024, record_bytes=1024)
manager = StreamingManager.for_store(
    store.register(), cache_dir=folder + "/cache", cache_bytes=20_000_000_000
)
stream = StreamDataset(manager, "data/x/", rank=0, world_size=1)
epochs = [sorted(sample["id"] for sample in stream) for _ in range(2)]
assert epochs == [list(range(4 * 3 * 1024))] * 2
cached = sum(
    os.path.getsize(os.path.join(at, name))
    for at, _, names in os.walk(folder + "/cache") for name in names
)
print(json.dumps({"cached": cached}))
"""


@pytest.mark.parametrize("fill", ["empty", "full"])
def test_b16_a_disk_of_eight_mib_loses_no_sample(tmp_path, fill):
    """(c) a small disk under a large CACHE_GB; (d) the same, full of something else."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=8m none "{disk}" && exec "$@"'
    inside = ["unshare", "--user", "--mount", "--map-root-user", "sh", "-c", mount, "sh"]
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("this system does not let a test mount a small disk")
    done = subprocess.run(
        [*inside, sys.executable, "-c", SMALL_DISK, str(disk), fill],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cached = json.loads(done.stdout.splitlines()[-1])["cached"]
    warnings = [line for line in done.stderr.splitlines() if "cache" in line]
    if fill == "empty":
        assert 3 * MIB < cached < 8 * MIB
    else:
        assert cached < MIB
        assert len(warnings) == 1, done.stderr
        assert str(disk) in warnings[0]

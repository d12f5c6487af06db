"""Everything that can be raised in a loader worker, however workers start: told, and resumed, never a hang."""

import warnings
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.stream_data import folder_manager
from tests.brain.worker_parts import list_ids
from tests.reliability.matrix import Cells, matrix
from tests.reliability.worker_errors import KINDS, DecodeAt, RaiseAt
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

STARTS = ("fork", "forkserver", "spawn")
ENDING = (
    *("exit 0", "exit 3", "killed"),
    *("GeneratorExit", "SystemExit", "SystemExit 0", "KeyboardInterrupt", "no Exception"),
)
"""Whatever ends the process: with it goes what it had read and not sent yet."""
FEW = ("ValueError", "needs two", "killed")
FEW_DECODING = ("ValueError", "without words", "huge", "SystemExit")
"""Of every kind, for those ways to start that cost half a second each."""
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def stream_of(folder: Path, **options: Any) -> StreamDataset:
    manager = StreamingManager.for_store(
        StoreSpec(uri=f"file://{folder}"), cache_dir=None, cache_bytes=0
    )
    return StreamDataset(manager, "data/x/", rank=0, world_size=1, **options)


def check(folder: Path, right: list[int], kind: str, start: str, *, decoding: bool = False) -> None:
    """Fail in the middle of an epoch; what was delivered and what a resume brings is the epoch."""
    stream = stream_of(folder, deserialize=DecodeAt(right[20], kind) if decoding else None)
    collate = list_ids if decoding else RaiseAt(right[20], kind)
    loader = StreamLoader(
        stream, 4, num_workers=1, collate_fn=collate, multiprocessing_context=start
    )
    seen: list[int] = []
    caught: BaseException | None = None
    try:
        for batch in loader:
            seen += batch
    except BaseException as error:
        if type(error).__name__ == "HangError":
            raise
        caught = error
    assert caught is not None, f"a short epoch, in silence: {len(seen)} of {len(right)}"
    if not (decoding and kind in ENDING):  # records are decoded well ahead of their batch
        assert seen == right[:20], "batches before the failure are missing, or too many"
    state = loader.state_dict()
    loader.close()
    again = StreamLoader(stream_of(folder), 4, num_workers=0, collate_fn=list_ids)
    again.load_state_dict(state)
    rest = [number for batch in again for number in batch]
    assert seen + rest == right, "the resume is not exact"


def run(cells: Cells, tmp_path: Path, costly: tuple[str, ...], decoding: tuple[str, ...]) -> None:
    folder_manager(tmp_path, [13, 9, 11, 7])
    right = [sample["id"] for sample in stream_of(tmp_path)]
    for start in STARTS:
        for kind in KINDS if start == "fork" else costly:
            case = f"{kind} in a worker by {start}"
            if cells.wanted(case):
                with warnings.catch_warnings(), cells.case(case, 60):
                    warnings.simplefilter("ignore")
                    check(tmp_path, right, kind, start)
    for kind in decoding:
        case = f"{kind} in deserialize"
        if cells.wanted(case):
            with warnings.catch_warnings(), cells.case(case, 60):
                warnings.simplefilter("ignore")
                check(tmp_path, right, kind, "fork", decoding=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_some_failures(request, tmp_path):
    with matrix("WORKERS", request) as cells:
        run(cells, tmp_path, FEW, FEW_DECODING)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_every_failure(request, tmp_path):
    with matrix("WORKERS", request) as cells:
        run(cells, tmp_path, tuple(KINDS), tuple(KINDS))


def started(
    spec: StoreSpec, cache: Path, right: list[int], start: str, loader: str, *, used: bool
) -> None:
    """Read an epoch with workers that a process starts which has, or has not, used its client."""
    from torch.utils.data import DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    manager = StreamingManager.for_store(spec, cache_dir=str(cache), cache_bytes=1 << 30)
    stream = StreamDataset(manager, "data/x/", rank=0, world_size=1, batch_size=4)
    if used:
        assert [sample["id"] for sample in islice(stream, 5)] == right[:5]
        stream.set_epoch(0)
    kinds: dict[str, Any] = {
        "StreamLoader": StreamLoader,
        "DataLoader": DataLoader,
        "StatefulDataLoader": StatefulDataLoader,
    }
    batches = kinds[loader](
        stream, 4, num_workers=1, collate_fn=list_ids, multiprocessing_context=start
    )
    found = [number for batch in batches for number in batch]
    assert found == right


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_every_start_of_workers(
    request, tmp_path, weed_endpoint, make_bucket, put_objects, aws_environment
):
    """18 of 18: three loaders, three ways to start, an S3 client that was used and one that was not."""
    # One that runs already would give workers the keys of when it was started: none.
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # Python has no public way
    folder_manager(tmp_path / "local", [13, 9, 11, 7])
    right = [sample["id"] for sample in stream_of(tmp_path / "local")]
    files = sorted((tmp_path / "local/data/x").iterdir())
    bucket = make_bucket(weed_endpoint)
    put_objects(weed_endpoint, bucket, {f"data/x/{file.name}": file.read_bytes() for file in files})
    spec = StoreSpec(uri=f"s3://{bucket}", endpoint_url=weed_endpoint)
    with matrix("STARTS", request) as cells:
        for start in STARTS:
            for loader in ("StreamLoader", "DataLoader", "StatefulDataLoader"):
                for used in (False, True):
                    case = f"{loader} by {start}, {'used' if used else 'new'}"
                    if cells.wanted(case):
                        with warnings.catch_warnings(), cells.case(case, 100):
                            warnings.simplefilter("ignore")
                            started(spec, tmp_path / case, right, start, loader, used=used)

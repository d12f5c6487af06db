"""One rank's loader in this process: worker ids are made up, everything else is the stream's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

from brain.ml.dataset_shards.stream_dataset import StreamDataset


class Delivered(NamedTuple):
    """One batch, and the stream's state after it."""

    batch: Sequence[Any]
    state: dict[str, Any]


@contextmanager
def as_worker(number: int, num_workers: int, stream: StreamDataset) -> Iterator[None]:
    """Let torch say that this is a loader's worker; nothing at all with no workers."""
    if num_workers == 0:
        yield
        return
    before = get_worker_info()
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=num_workers, seed=number, dataset=stream
    )
    try:
        yield
    finally:
        torch_worker._worker_info = before


def deliver(
    stream_of: Callable[[int], StreamDataset],
    num_workers: int,
    batch_size: int,
    state: Mapping[str, Any] | None = None,
) -> Iterator[Delivered]:
    """Yield one iteration's batches as a loader with so many workers hands them out.

    Workers take turns as DataLoader's do; the state moves on when a batch is handed out, whatever
    its worker has read beyond it. `stream_of(0)` is the loader's own stream, `stream_of(n)` the n-th
    worker's copy; they may have been used before.
    """
    main, *streams = (stream_of(number) for number in range(max(1, num_workers) + 1))
    for stream in [main, *streams]:
        if state is None:
            stream.reset()
        else:
            stream.load_state_dict(state)
    iterations = []
    for number, stream in enumerate(streams):
        with as_worker(number, num_workers, stream):
            iterations.append(stream.begin(batch_size))
    batches = [iteration.batches(drop_last=False) for iteration in iterations]
    alive = list(range(len(batches)))
    while alive:
        for number in list(alive):
            with as_worker(number, num_workers, streams[number]):
                batch = next(batches[number], None)
            if batch is None:
                alive.remove(number)
                continue
            main.bookmark.stand_at(iterations[number].standing())
            yield Delivered(batch, main.state_dict())

"""The counting pass: ranks that do not know how many samples there are each count a share, once.

One process needs none (it learns as it reads), and neither do ranks that are not joined: each then
learns by itself, which is as exact but reads everything everywhere.
"""

import logging
import time

import numpy as np

from brain.ml.dataset_shards.counting_bar import CountingBar
from brain.ml.dataset_shards.open_ahead import OpenAhead
from brain.ml.dataset_shards.place import Place, gather
from brain.ml.dataset_shards.shared_counts import SharedCounts
from brain.ml.dataset_shards.split_source import ShardReader, SplitSource
from brain.ml.dataset_shards.stream_index import StreamIndex
from tools_utilities.errors import ChangedError, ObjectNotFoundError, QuarkError, RecordError
from tools_utilities.patient_store import PatientStore

logger = logging.getLogger(__name__)

_NUM_THREADS = 4
_LOG_SECONDS = 5.0


def agree(outcome: StreamIndex | QuarkError, place: Place) -> StreamIndex:
    """Return this rank's index once all ranks have one, of the same data.

    A collective. What failed on one rank is raised on all of them.

    Raises:
        QuarkError: the first error of any rank.
        ChangedError: the ranks have listed different data.
    """
    index = None if isinstance(outcome, QuarkError) else outcome
    values = gather(outcome if index is None else index.order_fingerprint, place)
    for value in values:
        if isinstance(value, QuarkError):
            raise value
    if index is None or len(set(values)) > 1:
        raise ChangedError(
            f"{place.world_size} ranks have listed different data",
            hint="Something is still writing to the prefix; start again when it is done.",
        )
    return index


def count_together(
    index: StreamIndex, source: SplitSource, place: Place, manager: ShardReader | None = None
) -> None:
    """Fill in every count of the index; a collective that all ranks must join.

    What one rank knows, all do. Then rank 0 looks whether an earlier run has left counts in the
    manager's store; those of a pass are left there.

    Raises:
        QuarkError: a split could not be opened on one of the ranks.
    """
    gathered = [np.asarray(counts) for counts in gather(index.counts, place)]
    if all(bool((counts >= 0).all()) for counts in gathered):
        return
    index.counts[:] = np.maximum.reduce(gathered)
    shared = None if manager is None else SharedCounts(PatientStore(manager.store), index)
    if shared is not None and bool((index.counts < 0).any()):
        found = gather(shared.load() if place.rank == 0 else None, place)[0]
        if isinstance(found, np.ndarray):
            index.counts[:] = np.maximum(index.counts, found)
    unknown = (index.counts < 0).nonzero()[0]
    own = unknown[index.table.object_of[unknown] % place.world_size == place.rank]
    try:
        bar = CountingBar(len(own), shown=place.rank == 0)
        result: object = (own, _count(index, source, own.tolist(), bar))
    except QuarkError as error:
        result = error
    results = gather(result, place)
    for found in results:
        if isinstance(found, QuarkError):
            raise found
    for found in results:
        if isinstance(found, tuple):
            numbers, counts = found
            index.counts[numbers] = counts
    index.save_counts()
    if shared is not None and place.rank == 0 and bool((index.counts[unknown] >= 0).any()):
        shared.save(index.counts)


def count_alone(index: StreamIndex, source: SplitSource) -> None:
    """Fill in the counts of the index without other ranks; what cannot be read stays unknown."""
    unknown = (index.counts < 0).nonzero()[0]
    if len(unknown):
        bar = CountingBar(len(unknown))
        index.counts[unknown] = _count(index, source, unknown.tolist(), bar)
        index.save_counts()


def _count(
    index: StreamIndex, source: SplitSource, numbers: list[int], bar: CountingBar
) -> list[int]:
    """Open splits for their counts; what is gone or cannot be read stays unknown (-1)."""
    ahead = OpenAhead(
        lambda number: source.open_split(index.table, number), num_threads=_NUM_THREADS
    )
    counts, logged = [], time.monotonic()
    try:
        for place, number in enumerate(numbers):
            bar.show(place)
            ahead.request(numbers[place : place + 2 * _NUM_THREADS])
            try:
                opened = ahead.take(number)
            except (ObjectNotFoundError, RecordError):
                counts.append(-1)
                continue
            counts.append(opened.num_samples)
            opened.close()
            if time.monotonic() - logged > _LOG_SECONDS:
                logged = time.monotonic()
                logger.info("counting samples: %d of %d splits", place + 1, len(numbers))
    finally:
        ahead.close()
        bar.end()
    return counts

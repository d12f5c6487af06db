"""What must be known before splits are assigned: every count, and for `stratified` every label."""

from collections.abc import Mapping

from brain.ml.dataset_shards.count_file import LabelFile
from brain.ml.dataset_shards.counting import count_alone
from brain.ml.dataset_shards.epoch_plan import Tolerance
from brain.ml.dataset_shards.partitioning import Labels
from brain.ml.dataset_shards.place import Place, can_exchange, gather
from brain.ml.dataset_shards.split_source import SplitSource
from brain.ml.dataset_shards.stream_index import StreamIndex
from tools_utilities.errors import ObjectNotFoundError, QuarkError, RecordError, UsageError

MAX_CLASSES = 10_000
_BATCH = 256


def know_counts(index: StreamIndex, source: SplitSource, tolerance: Tolerance) -> None:
    """Count every split that is not counted yet; what may be skipped stays unknown.

    Raises:
        QuarkError: a split cannot be read and must not be skipped.
    """
    count_alone(index, source)
    for number in (index.counts < 0).nonzero()[0].tolist():
        try:
            opened = source.open_split(index.table, number)
        except ObjectNotFoundError:
            if tolerance.on_missing != "skip":
                raise
        except RecordError:
            if tolerance.on_bad != "skip":
                raise
        else:
            index.counts[number] = opened.num_samples
            opened.close()


def find_labels(
    index: StreamIndex, source: SplitSource, key: str, place: Place
) -> dict[int, dict[str, int]]:
    """Return the samples of each class in every split; joined ranks read a share each, once.

    Raises:
        UsageError: a sample has no such field, or it is no label.
        QuarkError: a sample cannot be read.
    """
    kept = None if index.count_file is None else LabelFile(index.count_file, key)
    found = None if kept is None else kept.load()
    joined = can_exchange(place)
    if joined and any(value is None for value in gather(found, place)):
        found = None
    if found is not None:
        return found
    num_ranks, rank = (place.world_size, place.rank) if joined else (1, 0)
    numbers = range(rank, len(index.table), num_ranks)
    try:
        result: object = _read_labels(index, source.records(key), key, numbers)
    except QuarkError as error:
        result = error
    labels: dict[int, dict[str, int]] = {}
    for part in gather(result, place) if joined else [result]:
        if isinstance(part, QuarkError):
            raise part
        if isinstance(part, Mapping):
            labels.update(part)
    _check_classes(labels, key)
    if kept is not None:
        kept.save(labels)
    return labels


def _read_labels(
    index: StreamIndex, source: SplitSource, key: str, numbers: range
) -> dict[int, dict[str, int]]:
    labels: dict[int, dict[str, int]] = {}
    for number in numbers:
        if index.counts[number] <= 0:
            continue
        opened, classes = source.open_split(index.table, number), dict[str, int]()
        try:
            for start in range(0, opened.num_samples, _BATCH):
                stop = min(start + _BATCH, opened.num_samples)
                for sample in opened.read(range(start, stop)):
                    name = _label(sample, key, opened.split.key)
                    classes[name] = classes.get(name, 0) + 1
        finally:
            opened.close()
        labels[number] = classes
    return labels


def _label(sample: object, key: str, where: str) -> str:
    value = sample.get(key) if isinstance(sample, Mapping) else None
    if value is None or not isinstance(value, str | int | bytes):
        raise UsageError(
            f"{where}: a sample has no label in field {key!r}: {value!r}",
            hint="partition=stratified needs a text or a whole number there in every sample.",
            key=where,
            field=key,
        )
    return f"{type(value).__name__}:{value!r}"


def _check_classes(labels: Labels, key: str) -> None:
    classes = {name for part in labels.values() for name in part}
    if len(classes) > MAX_CLASSES:
        raise UsageError(
            f"field {key!r} has {len(classes)} different values, more than {MAX_CLASSES}",
            hint="That is no class; name another field.",
            field=key,
        )

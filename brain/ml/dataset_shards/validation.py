"""Reads a whole dataset once and reports what cannot be read, instead of stopping at the first."""

from typing import TYPE_CHECKING

import msgspec

from brain.ml.dataset_shards.split_source import OpenedSplit, SplitSource
from brain.ml.dataset_shards.stream_index import StreamIndex
from tools_utilities.errors import QuarkError, RecordError

if TYPE_CHECKING:
    from tools_utilities.schema_drift import SchemaDrift

_BATCH = 256
MAX_PROBLEMS = 100
"""Further ones are only counted."""


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What reading everything has shown."""

    num_objects: int
    num_bytes: int
    num_samples: int
    """Samples that can be read."""
    skipped: dict[str, int]
    """Records that are no samples by their format's rules, by reason."""
    num_problems: int
    problems: tuple[str, ...]
    """The first of them, each naming store, key and record."""
    schema_drift: str = ""
    """How the columns of the shards differ; that is no problem by itself."""

    @property
    def is_valid(self) -> bool:
        """Whether everything can be read."""
        return self.num_problems == 0


def validate_stream(index: StreamIndex, source: SplitSource) -> Validation:
    """Open every split and decode every sample; memory is that of one split."""
    samples, skipped, problems = 0, dict[str, int](), list[str]()
    for number in range(len(index.table)):
        try:
            opened = source.open_split(index.table, number)
        except QuarkError as error:
            problems.append(str(error))
            continue
        index.counts[number] = opened.num_samples
        for reason, count in opened.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
        for start in range(0, opened.num_samples, _BATCH):
            samples += _read(
                opened, range(start, min(start + _BATCH, opened.num_samples)), problems
            )
        opened.close()
    try:
        index.check_manifest()
    except QuarkError as error:
        problems.append(str(error))
    return Validation(
        num_objects=len(index.table.objects),
        num_bytes=index.table.total_bytes,
        num_samples=samples,
        skipped=skipped,
        num_problems=len(problems),
        problems=tuple(problems[:MAX_PROBLEMS]),
        schema_drift=_drift_text(index, source),
    )


def _drift_text(index: StreamIndex, source: SplitSource) -> str:
    found: SchemaDrift | None = index.drift or getattr(source, "drift", None)
    return "" if found is None else found.text


def _read(opened: OpenedSplit, indices: range, problems: list[str]) -> int:
    """Return how many of the samples can be read."""
    try:
        return len(opened.read(indices))
    except RecordError as error:
        if len(indices) == 1:
            problems.append(str(error))
            return 0
    return sum(_read(opened, range(index, index + 1), problems) for index in indices)

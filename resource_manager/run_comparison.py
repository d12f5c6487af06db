"""`compare`: how runs differ, in what they were told, in their data and code, and in what came of them.

Pure. Losses are compared over equal stretches of training: of steps, or of samples where a step of one
run holds more of them than another's.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from brain.ml.training_job import DataSource, TrainingJob
from resource_manager.plan import data_source_name
from resource_manager.run_figures import Figures, RunRecord, figures_of
from tools_utilities.terminal_curves import averaged

OWN_FIELDS = frozenset(
    {
        "schema",
        "name",
        "run_dir",
        "resume",
        "from_step",
        "checkpoints",
        "detach",
        "counts_dir",
        "track",
    }
)
"""Job fields that say where a run lies, not what it is."""
DATA_FIELDS = ("train", "val")
STRETCHES = 5
CURVE_POINTS = 200
"""Of each run, in the machine's form."""
UNKNOWN = "unknown"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in which the runs differ; `values` in their order."""

    name: str
    values: tuple[Any, ...]


class DataComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How the runs' training data compare with the first one's."""

    verdict: str
    """same, cut otherwise, changed, other, or unknown."""
    train: tuple[tuple[str, ...], ...]
    """The shard groups, by run."""
    val: tuple[tuple[str, ...], ...]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of training that all runs have gone through."""

    after: float
    to: float
    """Steps or samples, by `Comparison.by`."""
    losses: tuple[float | None, ...]
    """Mean of each run over it."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two or more runs side by side."""

    runs: tuple[str, ...]
    statuses: tuple[str, ...]
    settings: tuple[Difference, ...]
    data: DataComparison
    versions: tuple[Difference, ...]
    versions_known: bool
    figures: tuple[Figures, ...]
    counts: tuple[str, ...]
    """What `per_second` counts: tokens or samples."""
    by: str
    """What the losses are aligned by: step or samples."""
    stretches: tuple[Stretch, ...]
    curves: tuple[tuple[tuple[float, float], ...], ...]
    """(step or samples, loss) of each run, averaged to a few points."""


def compare_runs(records: Sequence[RunRecord], jobs: Sequence[TrainingJob]) -> Comparison:
    """Return how runs differ; `jobs` are those of `records`, in their order."""
    by = aligned_by(records, jobs)
    versions = [record.start.get("versions") or {} for record in records]
    told = [found for found in versions if found]
    return Comparison(
        runs=tuple(record.info.name for record in records),
        statuses=tuple(record.info.status for record in records),
        settings=_settings(jobs),
        data=_data(records, jobs),
        versions=tuple(
            Difference(name=name, values=tuple(found.get(name) for found in versions))
            for name in sorted({name for found in told for name in found})
            if len({found.get(name) for found in told}) > 1
        ),
        versions_known=all(versions),
        figures=tuple(figures_of(record) for record in records),
        counts=tuple(str(record.start.get("counts") or "tokens") for record in records),
        by=by,
        stretches=_stretches(records, by),
        curves=tuple(tuple(averaged(each.points("loss", by), CURVE_POINTS)) for each in records),
    )


def aligned_by(records: Sequence[RunRecord], jobs: Sequence[TrainingJob]) -> str:
    """Return what the runs' steps are aligned by: `step` where all hold the same samples."""
    if len({job.batch_size for job in jobs}) == 1:
        return "step"
    return "samples" if all(record.points("loss", "samples") for record in records) else "step"


def _settings(jobs: Sequence[TrainingJob]) -> tuple[Difference, ...]:
    names = [
        name
        for name in TrainingJob.__struct_fields__
        if name not in OWN_FIELDS and name not in DATA_FIELDS
    ]
    return _differences(names, lambda name: [getattr(job, name) for job in jobs])


def _differences(
    names: Sequence[str], values_of: Callable[[str], list[Any]]
) -> tuple[Difference, ...]:
    found = []
    for name in names:
        values = values_of(name)
        if any(value != values[0] for value in values):
            found.append(Difference(name=name, values=tuple(values)))
    return tuple(found)


def _data(records: Sequence[RunRecord], jobs: Sequence[TrainingJob]) -> DataComparison:
    return DataComparison(
        verdict=_verdict(records, jobs),
        train=tuple(_names(job.train) for job in jobs),
        val=tuple(_names(job.val) for job in jobs),
    )


def _names(sources: Sequence[DataSource]) -> tuple[str, ...]:
    return tuple(data_source_name(source) for source in sources)


def _verdict(records: Sequence[RunRecord], jobs: Sequence[TrainingJob]) -> str:
    """Say how the data compares: by its fingerprints, which every start writes down."""
    told = [record.start.get("data") for record in records]
    if not all(told):
        # Runs of an earlier version, or that never began: other names are other data, equal ones may be.
        sources = {_names(job.train) for job in jobs}
        return "other" if len(sources) > 1 else UNKNOWN
    orders = {tuple(each["order"] for each in found or ()) for found in told}
    changes = {tuple(each["change"] for each in found or ()) for found in told}
    if len(changes) == 1:
        return "same" if len(orders) == 1 else "cut otherwise"
    # The order's fingerprint holds keys, sizes and cuts, but neither etags nor checksums.
    return "changed" if len(orders) == 1 else "other"


def _stretches(records: Sequence[RunRecord], by: str) -> tuple[Stretch, ...]:
    points = [record.points("loss", by) for record in records]
    if not all(points):
        return ()
    last = min(found[-1][0] for found in points)
    count = min(STRETCHES, int(last))
    edges = [last * number / count for number in range(count + 1)] if count else []
    if by == "step":
        edges = [float(round(edge)) for edge in edges]
    return tuple(
        Stretch(after=low, to=high, losses=tuple(_mean(found, low, high) for found in points))
        for low, high in pairwise(edges)
    )


def _mean(points: Sequence[tuple[float, float]], low: float, high: float) -> float | None:
    losses = [loss for x, loss in points if low < x <= high]
    return sum(losses) / len(losses) if losses else None

"""Reads records of many open splits in one go, where the formats show where they lie.

That is worth it because a block of the order takes a few records from each of a hundred splits.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.split_source import OpenedSplit

Run = tuple[OpenedSplit | None, Indices]
"""A split, and the indices wanted of it."""


class RowBlock(Sequence[dict[str, Any]]):
    """Samples of one field that are the rows of one array; slices share it, nothing is copied."""

    def __init__(self, rows: npt.NDArray[Any], field: str) -> None:
        self.rows = rows
        self.field = field

    def __len__(self) -> int:
        """Return how many samples there are."""
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> "RowBlock": ...
    def __getitem__(self, place: int | slice) -> "dict[str, Any] | RowBlock":
        """Return a sample, or a block of some."""
        if isinstance(place, slice):
            return RowBlock(self.rows[place], self.field)
        return {self.field: self.rows[place]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the samples."""
        return ({self.field: row} for row in self.rows)


def read_together(
    runs: Sequence[Run], sequence: Indices, *, shared_rows: bool
) -> Sequence[Any] | None:
    """Return the samples of many splits, put into the order of the result.

    Args:
        runs: Splits, each with the indices wanted of it.
        sequence: Where in the result each of those goes.
        shared_rows: Whether samples may be rows of one array (a RowBlock), which stays in memory
            as long as one of them does.

    Returns:
        None where the splits are not made of such records, or one of them cannot be decoded.
    """
    first = runs[0][0]
    if first is None:
        return None
    if first.spans is not None:
        return _read_spans(runs, sequence)
    return None if first.rows is None else _read_rows(runs, sequence, shared=shared_rows)


def _read_spans(
    runs: Sequence[tuple[OpenedSplit | None, Indices]], sequence: Indices
) -> list[Any] | None:
    """Decode the records of many splits in one go, where all of them are spans of bytes.

    Args:
        runs: Splits, each with the indices wanted of it.
        sequence: Where in the result each of those goes.

    Returns:
        The samples; None where a split is not made of such records, or one cannot be decoded.
    """
    spans = [None if opened is None else opened.spans for opened, _ in runs]
    first = spans[0]
    if first is None or any(one is None or one.decode is not first.decode for one in spans):
        return None
    known = [one for one in spans if one is not None]
    # The records' bounds, put into the order of the result.
    bounds = np.empty((3, len(sequence)), np.int64)
    counts = [len(indices) for _, indices in runs]
    bounds[0, sequence] = np.repeat(np.arange(len(runs)), counts)
    for row, shift in ((1, 0), (2, 1)):
        found = [one.starts[indices + shift] for one, (_, indices) in zip(known, runs, strict=True)]
        bounds[row, sequence] = np.concatenate(found)
    views = [one.view for one in known]
    which, begins, ends = bounds.tolist()
    pieces = [views[n][begin:end] for n, begin, end in zip(which, begins, ends, strict=True)]
    return first.decode(pieces)


def _read_rows(
    runs: Sequence[Run], sequence: Indices, *, shared: bool
) -> Sequence[dict[str, Any]] | None:
    """Copy rows of many arrays, each once."""
    found = [None if opened is None else opened.rows for opened, _ in runs]
    known = [one for one in found if one is not None]
    if len(known) < len(runs):
        return None
    rows, field = known[0]
    for one, (_, indices) in zip(known, runs, strict=True):
        alike = one.field == field and one.rows.shape[1:] == rows.shape[1:]
        if not alike or one.rows.dtype != rows.dtype or indices[-1] >= len(one.rows):
            return None  # the last, shorter record of a file is wanted, or the files differ
    if shared:
        block = np.empty((len(sequence), *rows.shape[1:]), rows.dtype)
        start = 0
        for one, (_, indices) in zip(known, runs, strict=True):
            block[sequence[start : start + len(indices)]] = one.rows[indices]
            start += len(indices)
        return RowBlock(block, field)
    samples = [
        {field: one.rows[index].copy()}
        for one, (_, indices) in zip(known, runs, strict=True)
        for index in indices.tolist()
    ]
    return [samples[place] for place in inverse(sequence).tolist()]


def inverse(sequence: Indices) -> Indices:
    """Return the inverse of a permutation of range(len(sequence))."""
    places = np.empty(len(sequence), np.int64)
    places[sequence] = np.arange(len(sequence))
    return places

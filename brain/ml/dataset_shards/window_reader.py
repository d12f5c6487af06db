"""The open windows of the lanes: which splits are open, and samples read from them in bulk.

Holds 4 bytes an open sample (the window's permutation) beside what the formats hold.
"""

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from brain.ml.dataset_shards.epoch_plan import EpochCounts, EpochPlan
from brain.ml.dataset_shards.lane_walk import Chunk, LaneWindow
from brain.ml.dataset_shards.open_ahead import OpenAhead
from brain.ml.dataset_shards.shuffle_order import Indices, window_permutation
from brain.ml.dataset_shards.split_source import OpenedSplit
from tools_utilities.errors import DataError, ObjectNotFoundError, RecordError

NUM_OPEN_THREADS = 4
_SPLIT_SHIFT = 32
_INDEX_MASK = (1 << _SPLIT_SHIFT) - 1


class Unreadable:
    """Stands in the order where a sample should: its record or its object cannot be read."""

    def __init__(self, error: RecordError | ObjectNotFoundError) -> None:
        self.error = error


class WindowReader:
    """Reads (split, index) pairs from the splits of the windows that are open."""

    def __init__(self, plan: EpochPlan, counts: Indices, seen: EpochCounts) -> None:
        self.counts = counts
        """Samples of every split, -1 where not known yet; filled in as splits are opened."""
        self.unread: dict[int, RecordError | ObjectNotFoundError] = {}
        """Splits that cannot be opened and are skipped."""
        self._plan = plan
        self._seen = seen
        self._open: dict[int, OpenedSplit] = {}
        self._windows: dict[LaneWindow, tuple[npt.NDArray[np.uint32], Indices]] = {}
        threads = NUM_OPEN_THREADS if plan.prefetch else 0
        self._ahead = OpenAhead(self._open_split, num_threads=threads)

    def request(self, numbers: Iterable[int]) -> None:
        """Ask for splits to be opened ahead."""
        self._ahead.request(numbers)

    def learn(self, splits: Sequence[int]) -> None:
        """Open splits of a window that is about to be entered, for their counts."""
        for number in splits:
            if self.counts[number] < 0:
                self._get(number)

    def keep(self, windows: Sequence[LaneWindow]) -> None:
        """Close the splits of every window but these."""
        wanted = {number for window in windows for number in window.splits}
        for number in [number for number in self._open if number not in wanted]:
            self._open.pop(number).close()
        for window in self._windows.keys() - set(windows):
            del self._windows[window]

    def mean_bytes(self, windows: Sequence[LaneWindow]) -> float:
        """Return the stored bytes of a sample in these windows, on average."""
        numbers = [number for window in windows for number in window.splits]
        samples = int(self.counts[numbers].sum())
        return float(self._plan.table.num_bytes[numbers].sum()) / max(1, samples)

    def locate(self, chunk: Chunk, entries: Indices) -> Indices:
        """Return the codes (split << 32 | index) of entries of a chunk, counted from its position."""
        rounds, columns = np.divmod(entries + chunk.skip, len(chunk.windows))
        codes = np.empty(len(entries), np.int64)
        for column, window in enumerate(chunk.windows):
            chosen = (columns == column).nonzero()[0]
            if not len(chosen):
                continue
            order, bounds = self._window(window)
            places = order[rounds[chosen] + (chunk.first_round - window.base)].astype(np.int64)
            which = np.searchsorted(bounds, places, side="right") - 1
            numbers = np.array(window.splits, np.int64)[which]
            codes[chosen] = (numbers << _SPLIT_SHIFT) | (places - bounds[which])
        return codes

    def read(self, codes: Indices) -> list[Any]:
        """Return the samples (or what stands for them) of codes, in that order."""
        sequence = np.argsort(codes, kind="stable")
        ordered = codes[sequence]
        numbers, places = split_codes(ordered)
        indices = places.tolist()
        cuts = [0, *((np.diff(numbers).nonzero()[0] + 1).tolist()), len(indices)]
        flat: list[Any] = []
        for start, end in pairwise(cuts):
            if end > start:
                flat += self._read_split(int(numbers[start]), indices[start:end])
        places_of = np.empty(len(sequence), np.int64)
        places_of[sequence] = np.arange(len(sequence))
        return list(map(flat.__getitem__, places_of.tolist()))

    def close(self) -> None:
        """Close everything that is open."""
        self._ahead.close()
        for opened in self._open.values():
            opened.close()
        self._open.clear()
        self._windows.clear()

    def _window(self, window: LaneWindow) -> tuple[npt.NDArray[np.uint32], Indices]:
        found = self._windows.get(window)
        if found is None:
            bounds = np.concatenate(([0], np.cumsum(self.counts[list(window.splits)])))
            length, plan = int(bounds[-1]), self._plan
            if plan.shuffle:
                order = window_permutation(
                    length, plan.seed, plan.start.epoch, window.lane, window.number
                )
            else:
                order = np.arange(length)
            found = self._windows[window] = (order.astype(np.uint32), bounds)
        return found

    def _read_split(self, number: int, indices: list[int]) -> list[Any]:
        opened = self._get(number)
        if opened is None:
            return [Unreadable(self.unread[number])] * len(indices)
        try:
            return opened.read(indices)
        except RecordError as error:
            if len(indices) == 1:
                return [Unreadable(error)]
        # One of them is bad: which one decides where the order breaks off, so each is read alone.
        return [sample for index in indices for sample in self._read_split(number, [index])]

    def _get(self, number: int) -> OpenedSplit | None:
        opened = self._open.get(number)
        if opened is not None or number in self.unread:
            return opened
        started = time.perf_counter()
        try:
            opened = self._ahead.take(number)
        except ObjectNotFoundError as error:
            self._give_up(number, error, self._plan.tolerance.on_missing)
            self._seen.missing.add(self._plan.table.info(number).key)
            return None
        except RecordError as error:
            self._give_up(number, error, self._plan.tolerance.on_bad)
            return None
        finally:
            self._seen.open_seconds += time.perf_counter() - started
        self._check_count(number, opened)
        self._open[number] = opened
        self._seen.splits_opened += 1
        for reason, count in opened.skipped.items():
            self._seen.skipped[reason] = self._seen.skipped.get(reason, 0) + count
        return opened

    def _give_up(self, number: int, error: RecordError | ObjectNotFoundError, policy: str) -> None:
        if policy != "skip":
            raise error
        self.unread[number] = error
        self.counts[number] = max(self.counts[number], 0)

    def _check_count(self, number: int, opened: OpenedSplit) -> None:
        known = int(self.counts[number])
        if known < 0:
            self.counts[number] = opened.num_samples
        elif known != opened.num_samples:
            split = self._plan.table.split(number)
            opened.close()
            raise DataError(
                f"{split.key}: {opened.num_samples} samples from {split.start} to {split.end}, "
                f"{known} expected",
                hint="The object differs from what was counted before; discover the data again.",
                key=split.key,
                expected=known,
                found=opened.num_samples,
            )

    def _open_split(self, number: int) -> OpenedSplit:
        return self._plan.source.open_split(self._plan.table, number)


def split_codes(codes: Indices) -> tuple[Indices, Indices]:
    """Return the split numbers and the indices into them that codes stand for."""
    return codes >> _SPLIT_SHIFT, codes & _INDEX_MASK

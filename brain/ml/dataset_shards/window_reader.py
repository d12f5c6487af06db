"""The open windows of the lanes: which splits are open, and samples read from them in bulk.

Holds 10 bytes an open sample (where it lies, in the window's order) beside what the formats hold; of
windows that are not laid out 8 (their codes).
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from brain.ml.dataset_shards.bulk_reading import Located, LocatedBlock, inverse, read_together
from brain.ml.dataset_shards.epoch_plan import UNREADABLE, EpochCounts, EpochPlan
from brain.ml.dataset_shards.laid_window import LaidWindow, lay_out
from brain.ml.dataset_shards.lane_walk import Chunk, LaneWindow, UpcomingWindow
from brain.ml.dataset_shards.open_ahead import OpenAhead
from brain.ml.dataset_shards.shuffle_order import Indices, window_permutation
from brain.ml.dataset_shards.split_source import OpenedSplit
from tools_utilities.errors import DataError, ObjectNotFoundError, RecordError

NUM_OPEN_THREADS = 4
_LOGGER = logging.getLogger(__name__)
_SPLIT_SHIFT = 32
_INDEX_MASK = (1 << _SPLIT_SHIFT) - 1
_TAKEN = 8
"""One of k workers takes none of as many times k records of a split once in three thousand splits."""
_DENSE = 4
"""From a quarter of a stretch on it is cheaper to lay out all of it than to look up each entry."""


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
        self._windows: dict[LaneWindow, Indices] = {}
        self._laid: dict[LaneWindow, LaidWindow | None] = {}
        self._means: dict[LaneWindow, float] = {}
        """Stored bytes of a window's samples, on average."""
        # Such a reader takes all of its lanes; any other one takes an entry here and one there.
        self._whole_lanes = plan.shape.num_lanes % plan.share.world_size == 0
        threads = NUM_OPEN_THREADS if plan.prefetch else 0
        self._ahead = OpenAhead(self._open_split, num_threads=threads)

    def request(self, numbers: Iterable[int]) -> None:
        """Ask for splits to be opened ahead."""
        self._ahead.request(numbers)

    def request_windows(self, windows: Sequence[UpcomingWindow]) -> None:
        """Ask for windows to be opened ahead, and laid out where that is worth it."""
        self.request(number for window in windows for number in window.splits)
        # First windows are short and wanted at once.
        if self._plan.shuffle and self._whole_lanes:
            for window in windows:
                if window.number:
                    self._ahead.request_layout(window.splits, partial(self._lay_out, window))

    def learn(self, splits: Sequence[int]) -> None:
        """Open splits of a window that is about to be entered, for their counts."""
        for number in splits:
            if self.counts[number] < 0:
                self._get(number)

    def keep(self, windows: Sequence[LaneWindow], to_come: Iterable[int] = ()) -> None:
        """Close the splits of every window but these; of those asked for also keep those to come.

        A reader that takes one entry here and one there passes by splits that were opened for it.
        """
        wanted = {number for window in windows for number in window.splits}
        self._ahead.keep(wanted.union(to_come))
        for number in [number for number in self._open if number not in wanted]:
            self._open.pop(number).close()
        for window in self._windows.keys() - set(windows):
            del self._windows[window]
        for window in self._laid.keys() - set(windows):
            del self._laid[window]
        for window in self._means.keys() - set(windows):
            del self._means[window]

    def mean_bytes(self, windows: Sequence[LaneWindow]) -> float:
        """Return the stored bytes of a sample in these windows, on average."""
        numbers = [number for window in windows for number in window.splits]
        samples = int(self.counts[numbers].sum())
        return float(self._plan.table.num_bytes[numbers].sum()) / max(1, samples)

    def bytes_of(self, chunk: Chunk, num_entries: int) -> float:
        """Return the stored bytes of so many entries of a chunk: they are shared out over its windows.

        Added up over all chunks and readers that is what the splits have.
        """
        return num_entries * sum(map(self._sample_bytes, chunk.windows)) / len(chunk.windows)

    def bytes_of_codes(self, codes: Indices) -> float:
        """Return the stored bytes of entries by their codes."""
        numbers, _ = split_codes(codes)
        return float((self._plan.table.num_bytes[numbers] / self.counts[numbers]).sum())

    def _sample_bytes(self, window: LaneWindow) -> float:
        found = self._means.get(window)
        if found is None:
            found = self._means[window] = self.mean_bytes([window])
        return found

    def locate(self, chunk: Chunk, entries: Indices) -> Indices:
        """Return the codes (split << 32 | index) of entries of a chunk, counted from its position."""
        if len(entries) * _DENSE >= chunk.num_positions:
            grid = np.empty((chunk.num_rounds, len(chunk.windows)), np.int64)
            for column, window in enumerate(chunk.windows):
                first = chunk.first_round - window.base
                grid[:, column] = self._window(window)[first : first + chunk.num_rounds]
            return grid.ravel()[entries + chunk.skip]
        rounds, columns = np.divmod(entries + chunk.skip, len(chunk.windows))
        codes = np.empty(len(entries), np.int64)
        for column, window in enumerate(chunk.windows):
            chosen = (columns == column).nonzero()[0]
            if len(chosen):
                places = rounds[chosen] + (chunk.first_round - window.base)
                codes[chosen] = self._window(window)[places]
        return codes

    def read_chunk(self, chunk: Chunk, entries: Indices) -> Sequence[Any]:
        """Return the samples (or what stands for them) of entries of a chunk, in that order.

        They must be used before the next are asked for: see `LocatedBlock`.
        """
        rounds, columns = np.divmod(entries + chunk.skip, len(chunk.windows))
        grid = self._locate_rounds(chunk, columns)
        if grid is None:
            return self.read(self.locate(chunk, entries))
        located = grid._replace(bounds=grid.bounds[:, rounds, columns])
        recover = partial(self._recover, chunk, entries)
        return LocatedBlock(located, recover, shared_rows=self._plan.shared_rows)

    def read(self, codes: Indices) -> Sequence[Any]:
        """Return the samples (or what stands for them) of codes, in that order.

        They must be used before the next are asked for: see `LocatedBlock`.
        """
        sequence = np.argsort(codes, kind="stable")
        runs = [(self._get(number), indices) for number, indices in _runs(codes[sequence])]
        samples = read_together(
            runs,
            sequence,
            lambda places: self._read_apart(codes[places]),
            shared_rows=self._plan.shared_rows,
        )
        return self._read_apart(codes) if samples is None else samples

    def _read_apart(self, codes: Indices) -> list[Any]:
        """Return the samples (or what stands for them) of codes, split by split."""
        sequence = np.argsort(codes, kind="stable")
        flat: list[Any] = []
        for number, indices in _runs(codes[sequence]):
            flat += self._read_split(number, indices.tolist())
        return [flat[place] for place in inverse(sequence).tolist()]

    def _recover(self, chunk: Chunk, entries: Indices, places: Indices) -> list[Any]:
        return self._read_apart(self.locate(chunk, entries[places]))

    def close(self) -> None:
        """Close everything that is open."""
        self._ahead.close()
        for opened in self._open.values():
            opened.close()
        self._open.clear()
        self._windows.clear()
        self._laid.clear()
        self._plan.source.settle()

    def _window(self, window: LaneWindow) -> Indices:
        """Return the codes of a window's samples, in its order."""
        found = self._windows.get(window)
        if found is None:
            counts = self.counts[list(window.splits)]
            starts = np.cumsum(counts) - counts
            numbers = np.array(window.splits, np.int64) << _SPLIT_SHIFT
            found = np.repeat(numbers - starts, counts) + np.arange(int(counts.sum()))
            if self._plan.shuffle:
                found = found[self._order(window.lane, window.number, len(found))]
            self._windows[window] = found
        return found

    def _order(self, lane: int, number: int, length: int) -> Indices:
        return window_permutation(length, self._plan.seed, self._plan.start.epoch, lane, number)

    def _lay_out(
        self, window: UpcomingWindow | LaneWindow, opened: Sequence[OpenedSplit]
    ) -> LaidWindow | None:
        """Lay out a window; mostly on a thread that opens ahead."""
        length = sum(split.num_samples for split in opened)
        if self._plan.shuffle:
            return lay_out(opened, self._order(window.lane, window.number, length))
        return lay_out(opened, np.arange(length))

    def _laid_window(self, window: LaneWindow) -> LaidWindow | None:
        """Return a window laid out, its splits open; None: read it from its splits."""
        if window not in self._laid:
            if not self._takes_of_all(window):
                return None
            opened = [self._get(number) for number in window.splits]
            whole = [split for split in opened if split is not None]
            if len(whole) < len(opened):
                self._laid[window] = None
            elif self._ahead.has_laid_out(window.splits):
                self._laid[window] = self._ahead.take_layout(window.splits)
            else:
                self._ahead.give_up_layout(window.splits)
                self._laid[window] = self._lay_out(window, whole)
        return self._laid[window]

    def _takes_of_all(self, window: LaneWindow) -> bool:
        """Return whether this reader takes records of every split of a window, almost surely."""
        num_workers = self._plan.share.num_workers
        counts = self.counts[list(window.splits)]
        return num_workers == 1 or bool((counts >= _TAKEN * num_workers).all())

    def _locate_rounds(self, chunk: Chunk, columns: Indices) -> Located | None:
        """Return where records of a chunk lie; None: not all of its `columns` are laid out.

        Bounds have the shape (3, rounds, lanes), of which only those columns are set.
        """
        if not self._whole_lanes:
            return None
        bounds = np.empty((3, chunk.num_rounds, len(chunk.windows)), np.int64)
        parts: list[memoryview] = []
        kind = None
        for column in np.unique(columns).tolist():
            window = chunk.windows[column]
            laid = self._laid_window(window)
            if laid is None or laid.kind != (kind or laid.kind):
                return None
            first, kind = chunk.first_round - window.base, laid.kind
            places = slice(first, first + chunk.num_rounds)
            bounds[0, :, column] = laid.which[places]
            bounds[0, :, column] += len(parts)  # not before: two bytes hold no number above 65,535
            bounds[1, :, column] = laid.begins[places]
            bounds[2, :, column] = laid.ends[places]
            parts += laid.parts
        return None if kind is None else Located(parts, bounds, kind)

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
            self._count_unreadable(number, error)
            return None
        finally:
            self._seen.open_seconds += time.perf_counter() - started
        self._check_count(number, opened)
        self._open[number] = opened
        self._seen.splits_opened += 1
        for reason, count in opened.skipped.items():
            self._seen.skipped[reason] = self._seen.skipped.get(reason, 0) + count
        return opened

    def _count_unreadable(self, number: int, error: RecordError) -> None:
        """Count a split that cannot be opened as one bad record where nobody knows how many it has."""
        if self.counts[number]:
            return  # each of its records is met in the order, and counted then
        _LOGGER.warning("%s; its records are left out", error)
        self._seen.skipped[UNREADABLE] = self._seen.skipped.get(UNREADABLE, 0) + 1
        self._seen.last_unreadable = str(error)

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


def _runs(codes: Indices) -> Iterator[tuple[int, Indices]]:
    """Yield the splits of codes in ascending order, each with its indices."""
    numbers, indices = split_codes(codes)
    cuts = [0, *((np.diff(numbers).nonzero()[0] + 1).tolist()), len(indices)]
    for start, end in pairwise(cuts):
        if end > start:
            yield int(numbers[start]), indices[start:end]


def split_codes(codes: Indices) -> tuple[Indices, Indices]:
    """Return the split numbers and the indices into them that codes stand for."""
    return codes >> _SPLIT_SHIFT, codes & _INDEX_MASK

"""Token lists as samples: `input_ids` or `token_ids` of any integer list type, checked, never wrapped.

Null and empty rows are no samples; they are counted in `skipped`. An id that is negative, null or
too large is an error with file, row and value. `input_ids` wins where a file has both.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tools_utilities.arrow_files import first_column
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.shard_format import OpenSplit, Sample
from tools_utilities.shard_formats.parquet import ParquetSplit

if TYPE_CHECKING:
    from tools_utilities.arrow_rows import ArrowRows

TOKEN_COLUMNS = ("input_ids", "token_ids")
"""In order of preference; for `ReadOptions.first_of`."""
_MAX_IDS = 1 << 32
_SCAN_SAMPLES = 256

Tokens = npt.NDArray[np.uint32]


class _TokenSource(Protocol):
    """Rows as a split holds them, null and empty ones too."""

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return each row's number of tokens; -1 for null."""
        ...

    def values(self, rows: Sequence[int]) -> list[Tokens]:
        """Return the tokens of rows that are neither null nor empty."""
        ...

    def close(self) -> None:
        """Let go of the data."""
        ...


class TokenRows:
    """An open split whose samples are `{"input_ids": uint32 array}`; made by `token_rows`."""

    def __init__(self, split: OpenSplit, source: _TokenSource) -> None:
        self._split = split
        self._source = source
        lengths = source.lengths()
        kept = np.flatnonzero(lengths > 0)
        self._rows = None if len(kept) == len(lengths) else kept.astype(np.uint32)
        self.lengths: Tokens = lengths[kept].astype(np.uint32)
        """Tokens in each sample, in file order."""
        self.num_samples = len(kept)
        self.num_bytes = split.num_bytes + self.lengths.nbytes
        self.skipped = {
            **split.skipped,
            "null": int(np.count_nonzero(lengths == -1)),
            "empty": int(np.count_nonzero(lengths == 0)),
        }

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples with the one field `input_ids`."""
        return [{"input_ids": tokens} for tokens in self.read_tokens(indices)]

    def read_tokens(self, indices: Sequence[int]) -> list[Tokens]:
        """Return the token arrays at `indices`, each of `lengths[index]` ids.

        Raises:
            RecordError: an id is null, negative or too large; detail: key, row, value, index.
        """
        rows = [self._row(index) for index in indices]
        try:
            return self._source.values(rows)
        except RecordError as error:
            place = error.detail.get("index")
            if place in rows:  # the row of the split; callers count samples
                error.detail["index"] = indices[rows.index(place)]
            raise

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Refuse: the tokens are the sample."""
        raise UsageError(f"token rows have no bytes of their own ({len(indices)} asked for)")

    def close(self) -> None:
        """Close the split beneath."""
        self._source.close()
        self._split.close()

    def _row(self, index: int) -> int:
        return index if self._rows is None else int(self._rows[index])


def token_rows(split: OpenSplit, *, num_ids: int = _MAX_IDS) -> TokenRows:
    """Return a split's token lists as samples; ids must lie in [0, `num_ids`).

    Raises:
        RecordError: there is no token column, or it does not hold lists of integers.
    """
    if isinstance(split, ParquetSplit):
        return TokenRows(split, _ArrowTokens(split, num_ids))
    return TokenRows(split, _SampleTokens(split, num_ids))


class _FlatLists(NamedTuple):
    """One batch's lists end to end, and where each begins."""

    ids: npt.NDArray[Any]
    offsets: npt.NDArray[Any]


class _ArrowTokens:
    """A list column of Arrow batches.

    A batch whose ids are all good is sliced as numpy; one that holds a bad id anywhere goes through
    Arrow, row by row, so that the error names the row.
    """

    def __init__(self, split: ParquetSplit, num_ids: int) -> None:
        self._split = split
        self._num_ids = num_ids
        self._column: ArrowRows | None = None
        self._flat: list[_FlatLists | None] = []
        split.check_rows()
        if split.rows.schema.names or split.num_samples:
            name = first_column(split.key, split.rows.schema.names, TOKEN_COLUMNS)
            if _check_type(split.key, name, split.rows.schema.field(name).type):
                self._column = split.rows.select((name,))
                self._flat = [self._flat_lists(batch) for batch in self._column.batches]

    def lengths(self) -> npt.NDArray[np.int64]:
        import pyarrow.compute as pc

        if self._column is None:
            return np.full(self._split.num_samples, -1, np.int64)
        parts: list[Any] = [
            pc.fill_null(pc.list_value_length(batch.column(0)), -1).to_numpy(zero_copy_only=False)
            for batch in self._column.batches
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)

    def values(self, rows: Sequence[int]) -> list[Tokens]:
        if self._column is None:
            return []
        found: list[Tokens] = []
        for batch, row in self._column.locate(rows):
            flat = self._flat[batch]
            if flat is None:
                return self._checked(self._column, rows)
            found.append(flat.ids[flat.offsets[row] : flat.offsets[row + 1]].astype(np.uint32))
        self._column.touched(len(found))
        return found

    def close(self) -> None:
        self._column = None
        self._flat = []

    def _flat_lists(self, batch: Any) -> "_FlatLists | None":
        column = batch.column(0)
        if not len(column.values):
            ids = np.zeros(0, np.uint32)
        elif column.values.null_count:
            return None
        else:
            ids = column.values.to_numpy()
            if ids.min() < 0 or ids.max() >= self._num_ids:
                return None
        if hasattr(column, "offsets"):
            return _FlatLists(ids, column.offsets.to_numpy())
        first, length = column.offset, column.type.list_size
        return _FlatLists(ids, np.arange(first, first + len(column) + 1) * length)

    def _checked(self, column: "ArrowRows", rows: Sequence[int]) -> list[Tokens]:
        import pyarrow.compute as pc

        lists: Any = column.take(rows).column(0)
        ends = np.cumsum(pc.list_value_length(lists).to_numpy(zero_copy_only=False))
        flat: Any = lists.flatten()
        if flat.null_count:
            place = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
            self._refuse(rows, ends, place, None)
        ids = flat.to_numpy(zero_copy_only=False)
        if ids.min() < 0 or ids.max() >= self._num_ids:
            place = int(np.argmax((ids < 0) | (ids >= self._num_ids)))
            self._refuse(rows, ends, place, int(ids[place]))
        return np.split(ids.astype(np.uint32), ends[:-1])

    def _refuse(self, rows: Sequence[int], ends: Any, place: int, value: int | None) -> None:
        row = rows[int(np.searchsorted(ends, place, side="right"))]
        raise self._split.bad_row(row, _why(value, self._num_ids), value=value)


class _SampleTokens:
    """Token lists inside samples of any format; every sample is looked at once, when opened."""

    def __init__(self, split: OpenSplit, num_ids: int) -> None:
        self._split = split
        self._key = str(getattr(split, "key", "the split"))
        self._num_ids = num_ids

    def lengths(self) -> npt.NDArray[np.int64]:
        found: list[int] = []
        for start in range(0, self._split.num_samples, _SCAN_SAMPLES):
            indices = range(start, min(start + _SCAN_SAMPLES, self._split.num_samples))
            found.extend(-1 if ids is None else len(ids) for ids in self._lists(indices))
        return np.array(found, np.int64)

    def values(self, rows: Sequence[int]) -> list[Tokens]:
        return [self._checked(row, ids) for row, ids in zip(rows, self._lists(rows), strict=True)]

    def close(self) -> None:
        """Nothing is held beyond the split."""

    def _lists(self, rows: Sequence[int]) -> list[Any]:
        samples = self._split.read(rows)
        return [self._list_of(row, sample) for row, sample in zip(rows, samples, strict=True)]

    def _list_of(self, row: int, sample: Sample) -> Any:
        ids = sample[first_column(self._key, list(sample), TOKEN_COLUMNS)]
        if ids is not None and not isinstance(ids, (list, tuple, np.ndarray)):
            raise self._bad(row, f"not a list of integers but {type(ids).__name__}", ids)
        return ids

    def _checked(self, row: int, ids: Any) -> Tokens:
        if isinstance(ids, np.ndarray) and ids.dtype.kind == "u" and self._num_ids == _MAX_IDS:
            return ids.astype(np.uint32)
        for value in ids.tolist() if isinstance(ids, np.ndarray) else ids:
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not 0 <= value < self._num_ids:
                raise self._bad(row, _why(value, self._num_ids), value)
        return np.array(ids, np.uint32)

    def _bad(self, row: int, reason: str, value: Any) -> RecordError:
        return RecordError(
            f"{self._key}: sample {row + 1} of the split: {reason}",
            key=self._key, record=row + 1, row=row + 1, index=row, value=value, reason=reason,
        )  # fmt: skip


def _why(value: Any, num_ids: int) -> str:
    if value is None:
        return "a token id is null"
    return f"token id {value!r} is not a whole number in [0, {num_ids})"


def _check_type(key: str, name: str, kind: Any) -> bool:
    """Return whether the column holds lists (False: type null); refuse all but lists of integers."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(kind):
        return False
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list and (types.is_integer(kind.value_type) or types.is_null(kind.value_type)):
        return True
    raise RecordError(
        f"{key}: column {name} holds {kind}, not lists of integers", key=key, reason="columns"
    )

"""Columns in folder names: below `year=2024/` every sample of a table has a field `year`.

As Hive, Spark and DuckDB lay tables out. A column is a whole number where each of its values is one
as Python writes it, else text; `__HIVE_DEFAULT_PARTITION__` is null. A field that a record has itself
stands. Only folders below the dataset's own count, so that a copy elsewhere gives the same samples.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from tools_utilities.shard_format import (
    OpenSplit,
    ReadOptions,
    Sample,
    ShardBytes,
    Split,
    require_format,
)

FolderColumns = tuple[tuple[str, str], ...]
"""Name → `int` or `text`."""

_FOLDER = re.compile(r"(?:^|(?<=/))([^/=]+)=([^/]*)/")
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_TABLES = frozenset({"arrow", "csv", "json", "jsonl", "parquet", "txt"})
"""Formats whose samples are plain records; the others' have their own layouts."""


def find_folder_columns(keys: Iterable[str], folder: str) -> FolderColumns:
    """Return the columns in the folder names of a dataset's keys below `folder`."""
    kinds: dict[str, str] = {}
    seen: set[str] = set()
    for key in keys:
        if "=" not in key:
            continue
        below = key.removeprefix(folder)
        path = below[: below.rfind("/") + 1]
        if path in seen:
            continue
        seen.add(path)
        for name, value in _parts(path):
            is_whole = value == _NULL or _WHOLE.fullmatch(value) is not None
            kinds[name] = "int" if is_whole and kinds.get(name) != "text" else "text"
    return tuple(kinds.items())


def values_of(key: str, columns: FolderColumns) -> dict[str, Any]:
    """Return what a key's folders say of `columns`; of one named twice the innermost counts."""
    kinds = dict(columns)
    found: dict[str, Any] = {}
    for name, value in _parts(key[: key.rfind("/") + 1]):
        if name in kinds:
            whole = kinds[name] == "int" and _WHOLE.fullmatch(value)
            found[name] = None if value == _NULL else int(value) if whole else value
    return found


def open_table_split(shard: ShardBytes, split: Split, options: ReadOptions) -> OpenSplit:
    """Open a split in its format; samples also have the columns of `options.folder_columns`.

    Raises:
        UsageError: no format reads the key.
        RecordError: the split cannot be opened.
    """
    found = require_format(split.key)
    values = values_of(split.key, options.folder_columns) if found.name in _TABLES else {}
    wanted = options.columns
    if wanted is not None:
        values = {name: value for name, value in values.items() if name in wanted}
    if not values or options.first_of:
        return found.open_split(shard, split, options)
    if wanted is None:
        return FolderSplit(found.open_split(shard, split, options), values)
    # A file may have the column all the same; it is not missing in one that has not.
    options = msgspec.structs.replace(options, optional_columns=tuple(values))
    return FolderSplit(found.open_split(shard, split, options), values)


class FolderSplit:
    """An open split whose samples also have the columns of their folders."""

    def __init__(self, opened: OpenSplit, values: dict[str, Any]) -> None:
        self.key = str(getattr(opened, "key", "the split"))
        self.num_samples = opened.num_samples
        self.num_bytes = opened.num_bytes
        self.skipped = opened.skipped
        self.columns = getattr(opened, "columns", None)
        self._opened = opened
        self._values = values

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples with the folders' columns behind their own."""
        samples = self._opened.read(indices)
        for sample in samples:
            for name, value in self._values.items():
                sample.setdefault(name, value)
        return samples

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return the records' own bytes, which know nothing of folders."""
        return self._opened.read_raw(indices)

    def close(self) -> None:
        """Close the split."""
        self._opened.close()


def _parts(path: str) -> list[tuple[str, str]]:
    return [(unquote(name), unquote(value)) for name, value in _FOLDER.findall(path)]

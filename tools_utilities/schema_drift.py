"""Columns that differ between the shards of one dataset: found where schemas are read anyway, told in a line.

A shard's samples always have the columns that the shard has, with its own types: nothing is dropped,
filled in or converted. So differences are no error; they are told, and `strict` refuses them.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import msgspec

from tools_utilities.errors import DataError
from tools_utilities.shard_format import Columns

_LOGGER = logging.getLogger(__name__)
_SHARDS_NAMED = 2
_COLUMNS_NAMED = 4
_SCHEMAS_KEPT = 256
"""Further ones are only counted: that many schemas are no dataset."""
_KEYS_KEPT = 4096
_SAME_KIND = (
    (re.compile(r"\bdictionary<values=([^,]+), [^>]*>"), r"\1"),
    (re.compile(r"\bu?int(8|16|32|64)\b"), "int"),
    (re.compile(r"\b(halffloat|float16|float32|float64|float|double)\b"), "float"),
    (re.compile(r"\blarge_|_view\b"), ""),
    (re.compile(r"\bfixed_size_list<(.*?)>\[\d+\]"), r"list<\1>"),
    (re.compile(r"\b(item|element|array)( not null)?: "), "item: "),
)


class SchemaDrift(msgspec.Struct, frozen=True, kw_only=True):
    """How the columns of a dataset's shards differ."""

    text: str
    """One line that names columns and shards."""
    columns: tuple[str, ...]
    """Those that differ."""
    is_harmless: bool
    """Only widths differ (int32 and int64), or a column is null throughout somewhere."""

    def refuse(self) -> DataError:
        """Return the error under `strict`."""
        return DataError(
            self.text,
            hint="Write the shards with one schema, read fewer columns, or leave strict out.",
            columns=list(self.columns),
        )


class _Seen:
    """The shards of one schema."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[str] = []

    def add(self, key: str) -> None:
        self.count += 1
        if len(self.keys) < _SHARDS_NAMED:
            self.keys.append(key)


class SchemaCensus:
    """Which schemas there are, and which shards have them. Any number of threads may use it."""

    def __init__(self) -> None:
        self._schemas: dict[Columns, _Seen] = {}
        self._others = 0
        self._keys: set[str] = set()
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())

    def add_once(self, key: str, columns: Columns) -> bool:
        """Count a shard that may be met again; of very many, only those with a new schema count."""
        with self._lock:
            if key in self._keys or (len(self._keys) >= _KEYS_KEPT and self._knows(columns)):
                return False
            self._keys.add(key)
            return self._add(key, columns)

    def _knows(self, columns: Columns) -> bool:
        return tuple(sorted(columns)) in self._schemas

    def add(self, key: str, columns: Columns) -> bool:
        """Count a shard; return whether its schema is a new one beside others."""
        with self._lock:
            return self._add(key, columns)

    def _add(self, key: str, columns: Columns) -> bool:
        columns = tuple(sorted(columns))
        is_new = columns not in self._schemas
        if is_new and len(self._schemas) >= _SCHEMAS_KEPT:
            self._others += 1
            return False
        self._schemas.setdefault(columns, _Seen()).add(key)
        return is_new and len(self._schemas) > 1

    def drift(self) -> SchemaDrift | None:
        """Return how the shards differ; None: all are alike."""
        with self._lock:
            return self._drift()

    def _drift(self) -> SchemaDrift | None:
        if len(self._schemas) < 2:  # noqa: PLR2004 - to differ
            return None
        total = sum(seen.count for seen in self._schemas.values())
        names = dict.fromkeys(name for columns in self._schemas for name, _ in columns)
        told: dict[str, str] = {}
        harmless = True
        for name in names:
            kinds = self._kinds(name)
            if len(kinds) == 1 and _count(kinds) == total:
                continue
            told[name] = _tell(name, kinds, total)
            families = {_family(kind) for kind in kinds} - {"null"}
            harmless &= len(families) <= 1 and _count(kinds) == total
        parts = list(told.values())
        if len(parts) > _COLUMNS_NAMED:
            parts = [*parts[:_COLUMNS_NAMED], f"and {len(parts) - _COLUMNS_NAMED} more columns"]
        return SchemaDrift(
            text=f"columns differ between shards: {'; '.join(parts)}",
            columns=tuple(told),
            is_harmless=harmless and not self._others,
        )

    def _kinds(self, name: str) -> dict[str, list[_Seen]]:
        """Return the types that a column has, and the shards of each."""
        kinds: dict[str, list[_Seen]] = {}
        for columns, seen in self._schemas.items():
            kind = dict(columns).get(name)
            if kind is not None:
                kinds.setdefault(kind, []).append(seen)
        return kinds


def tell_drift(census: SchemaCensus, *, strict: bool) -> SchemaDrift | None:
    """Return how the shards differ after logging it; None: all are alike.

    Raises:
        DataError: they differ, and `strict`.
    """
    drift = census.drift()
    if drift is not None:
        if strict:
            raise drift.refuse()
        log = _LOGGER.info if drift.is_harmless else _LOGGER.warning
        log("%s; samples have the columns of their own shard", drift.text)
    return drift


def _tell(name: str, kinds: Mapping[str, Sequence[_Seen]], total: int) -> str:
    if len(kinds) == 1:
        (shards,) = kinds.values()
        return f"{name} is in {_shards(shards)} of {total} alone"
    parts = [f"{kind} in {_shards(shards)}" for kind, shards in kinds.items()]
    missing = total - _count(kinds)
    return f"{name} is {', '.join(parts)}{f', missing in {missing}' if missing else ''}"


def _shards(shards: Sequence[_Seen]) -> str:
    count = sum(seen.count for seen in shards)
    keys = [key for seen in shards for key in seen.keys][:_SHARDS_NAMED]
    return f"{count} ({', '.join(keys)}{' …' if count > len(keys) else ''})"


def _count(kinds: Mapping[str, Sequence[_Seen]]) -> int:
    return sum(seen.count for shards in kinds.values() for seen in shards)


def _family(kind: str) -> str:
    """Return what types of different widths and layouts have in common."""
    for pattern, plain in _SAME_KIND:
        kind = pattern.sub(plain, kind)
    return kind

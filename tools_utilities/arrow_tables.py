"""Writes samples as Arrow tables: what Parquet and Arrow IPC share.

The first table (about 4 MiB) settles columns and types: a column may begin with nulls, or be missing, there.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from tools_utilities.errors import RecordError
from tools_utilities.shard_format import Sample

if TYPE_CHECKING:
    import pyarrow as pa

WRITE_ROWS = 256
"""Samples turned into a table at a time."""
TABLE_BYTES = 4 << 20
_GROUPS_A_TABLE = 4
_LOOKED_AT = 4
_SCALARS = frozenset({bool, float, int, type(None)})
_SCALAR_BYTES = 8
_DEEPEST = 100
"""Levels of a column: Arrow takes minutes for ten times as many."""
_TOO_DEEP = "nested too deeply"


def write_tables(
    samples: Iterable[Sample],
    what: str,
    open_writer: "Callable[[pa.Table], Any]",
    write: "Callable[[Any, pa.Table], None]",
    *,
    table_bytes: int = TABLE_BYTES,
) -> int:
    """Write samples as tables of about `table_bytes`, and return how many.

    Args:
        samples: What to write.
        what: The format, for errors.
        open_writer: Returns a writer, as a context, for tables like the first.
        write: Writes one table with it.
        table_bytes: Of a table, in memory.

    Raises:
        RecordError: a sample does not fit the columns and types of the first table.
    """
    import pyarrow as pa

    groups = _groups(samples, table_bytes // _GROUPS_A_TABLE)
    made = _Tables(what)
    try:
        more = made.fill(groups, table_bytes)
        first = made.take()
        with open_writer(first) as writer:
            if first.num_rows:
                write(writer, first)
            while more:
                more = made.fill(groups, table_bytes)
                if made.pending_bytes:
                    write(writer, made.take())
    except pa.ArrowException as error:
        raise _unwritable(0, made.count, str(error), what) from error
    except RecursionError as error:
        raise _unwritable(made.count, 1, _TOO_DEEP, what) from error
    return made.count


class _Tables:
    """Samples as tables of one schema, until they are taken."""

    def __init__(self, what: str) -> None:
        self.count = 0
        self.pending_bytes = 0
        self._what = what
        self._schema: pa.Schema | None = None
        self._settled = False
        self._pending: list[pa.Table] = []

    def fill(self, groups: Iterator[list[Sample]], num_bytes: int) -> bool:
        """Take groups until tables hold about `num_bytes`; False when there are no more."""
        for group in groups:
            table = self._fit(group)
            self._pending.append(table)
            self.pending_bytes += table.nbytes
            self.count += table.num_rows
            if self.pending_bytes >= num_bytes:
                return True
        return False

    def take(self) -> "pa.Table":
        """Return everything pending as one table; its columns and types stand from now on."""
        import pyarrow as pa

        tables, self._pending, self.pending_bytes, self._settled = self._pending, [], 0, True
        if self._schema is None:
            return pa.table({})
        # In the first table a column may have been added, or had nothing but nulls before.
        joined = pa.concat_tables(tables, promote_options="default")
        return joined if joined.schema == self._schema else joined.cast(self._schema)

    def _fit(self, samples: list[Sample]) -> "pa.Table":
        try:
            table = _table(samples, self._schema, self.count, self._what)
        except RecordError:
            wider = self._wider(samples)
            if wider is None:
                raise
            table = _table(samples, wider, self.count, self._what)
        self._schema = table.schema
        return table

    def _wider(self, samples: list[Sample]) -> "pa.Schema | None":
        """Return the schema with new columns, and types of those that had none; None: it is settled."""
        import pyarrow as pa

        if self._settled or self._schema is None:
            return None
        try:
            other = _table(samples, None, self.count, self._what)
            wider = pa.unify_schemas([self._schema, other.schema], promote_options="default")
        except (RecordError, pa.ArrowException):
            return None
        return None if wider == self._schema else wider


def _groups(samples: Iterable[Sample], num_bytes: int) -> Iterator[list[Sample]]:
    """Yield samples in groups of `WRITE_ROWS` at most, and of about `num_bytes`, or of one."""
    held: list[Sample] = []
    held_bytes = 0
    for sample in samples:
        size = _sample_bytes(sample)
        if held and (held_bytes + size > num_bytes or len(held) >= WRITE_ROWS):
            yield held
            held, held_bytes = [], 0
        held.append(sample)
        held_bytes += size
    if held:
        yield held


def _sample_bytes(sample: Sample) -> int:
    held = 0
    for value in sample.values():  # every value of a dataset passes here
        held += len(value) if type(value) is str else _about_bytes(value)
    return held


def _about_bytes(value: Any) -> int:
    if type(value) in _SCALARS:
        return _SCALAR_BYTES
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple) and value:
        shown = value[:_LOOKED_AT]
        return (8 + sum(map(_about_bytes, shown)) // len(shown)) * len(value)
    if isinstance(value, dict):
        return 64 + sum(map(_about_bytes, value.values()))
    return int(getattr(value, "nbytes", _SCALAR_BYTES))


def _table(samples: list[Sample], schema: "pa.Schema | None", first: int, what: str) -> "pa.Table":
    import pyarrow as pa

    shapes = dict.fromkeys(map(tuple, samples))  # few, so that not every name is looked at
    names = list(dict.fromkeys(chain.from_iterable(shapes)))
    try:
        if schema is None:
            if samples and not names:  # pyarrow would write a table without rows
                raise _unwritable(first, len(samples), "they have no fields", what)
            if _is_deep(samples):
                raise _unwritable(first, len(samples), _TOO_DEEP, what)
            return pa.table({name: [sample.get(name) for sample in samples] for name in names})
        if new := [name for name in names if name not in schema.names]:
            at = next(at for at, sample in enumerate(samples) if any(map(sample.__contains__, new)))
            raise _unwritable(first + at, 1, f"not in the first ones: {', '.join(new)}", what)
        table = pa.Table.from_pylist(samples, schema=schema)
        _refuse_lost_fields(samples, schema, first, what)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        first, count = _narrowed(samples, schema, first)
        raise _unwritable(first, count, str(error), what) from error
    return table


def _is_deep(samples: list[Sample]) -> bool:
    """Say whether a value is nested deeper than columns should be."""
    level: list[Any] = list(samples)
    for _ in range(_DEEPEST):
        if not level:
            return False
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list | tuple)
        ]
    return True


def _refuse_lost_fields(samples: list[Sample], schema: "pa.Schema", first: int, what: str) -> None:
    import pyarrow as pa

    for field in schema:
        if pa.types.is_nested(field.type):
            for at, sample in enumerate(samples):
                if lost := _lost_fields(sample.get(field.name), field.type, field.name):
                    raise _unwritable(first + at, 1, f"not in the first ones: {lost}", what)


def _lost_fields(value: Any, kind: "pa.DataType", path: str) -> str:
    """Return the first inner field that a type has no place for: pyarrow leaves it out in silence."""
    import pyarrow as pa

    if pa.types.is_struct(kind) and isinstance(value, dict):
        known = {field.name: field.type for field in kind}
        found = (
            _lost_fields(inner, known[name], f"{path}.{name}")
            if name in known
            else f"{path}.{name}"
            for name, inner in value.items()
        )
        return next(filter(None, found), "")
    inside = getattr(kind, "value_type", None)
    if inside is not None and pa.types.is_nested(inside) and isinstance(value, list | tuple):
        return next(filter(None, (_lost_fields(one, inside, f"{path}[]") for one in value)), "")
    return ""


def _narrowed(samples: list[Sample], schema: "pa.Schema | None", first: int) -> tuple[int, int]:
    """Return the first and the number of the samples that do not fit: the one, where it can be told."""
    import pyarrow as pa

    if schema is not None:
        for at, sample in enumerate(samples):
            try:
                pa.Table.from_pylist([sample], schema=schema)
            except (pa.ArrowException, TypeError, OverflowError):
                return first + at, 1
    return first, len(samples)


def _unwritable(first: int, num_samples: int, why: str, what: str) -> RecordError:
    last = first + max(0, num_samples - 1)
    which = f"sample {first}" if first == last else f"samples {first} to {last}"
    return RecordError(
        f"{which} cannot be written as {what}: {why}",
        hint="Give every sample the same columns and types, or write jsonl.",
        record=first + 1,
    )

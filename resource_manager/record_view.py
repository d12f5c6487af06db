"""`inspect`: what a dataset's records look like, their fields and a few of them, as tables."""

import json
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from resource_manager.data_finding import DataFinder, DataTarget, NoGroupsError
from resource_manager.group_choice import choose_groups
from tools_utilities.console import Console
from tools_utilities.decode_probe import TooLargeError, first_records
from tools_utilities.errors import DataError
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.scripts.dataset_discovery import ShardGroup, group_objects, list_group
from tools_utilities.shard_format import Sample
from tools_utilities.terminal_text import Line, Span, pairs, table

DEFAULT_RECORDS = 5
CELL_CHARACTERS = 60
VALUE_CHARACTERS = 400
MOST_SHARDS = 16
"""Shards opened for more records; the first ones may be small or empty."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the records that were read."""

    name: str
    types: str
    """`str`, `int | null`, `list[int] of 12`."""
    present: int
    """Records that have it."""
    example: str


def inspect_target(
    target: DataTarget, finder: DataFinder, console: Console, *, wanted: Any, order: "RecordOrder"
) -> dict[str, Any]:
    """Print fields and records of a target's data and return them as JSON.

    Raises:
        NoGroupsError: there is no data below the target.
        DataError: a record cannot be decoded.
    """
    store = finder.store(target.spec)
    name, infos, others = _objects(target, finder, store, wanted)
    records = read_records(store, infos, order)
    if not records:
        raise DataError(
            f"{target.spec.uri}/{name}: no records in the first {MOST_SHARDS} shards",
            hint="Name another group, or shards that are not empty.",
        )
    fields = fields_of(records)
    data = {
        "store": target.spec.uri,
        "prefix": name,
        "fields": [msgspec.to_builtins(field) for field in fields],
        "records": [json_value(record) for record in records],
    }
    if not console.about.json:
        width = console.result_width
        console.result(
            [
                [Span(f"{target.spec.uri}/{name}", "title")],
                *field_lines(fields, len(records), width),
            ]
        )
        console.result(["", *record_lines(records, [field.name for field in fields], width)])
        if others:
            console.note(f"also there: {', '.join(others)} (groups 1 to {len(others) + 1})")
    return data


class RecordOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are shown."""

    count: int = DEFAULT_RECORDS
    shuffle: bool = False
    """Of shards at random; else from the first on."""
    seed: int = 42


def read_records(
    store: ObjectStore, infos: Sequence[ObjectInfo], order: RecordOrder
) -> list[Sample]:
    """Return records: the first ones, or some of random shards; each shard's beginning is read."""
    source = random.Random(order.seed)  # noqa: S311 - a choice to look at, no secret
    filled = [info for info in infos if info.size_bytes]
    if order.shuffle:
        filled = source.sample(filled, len(filled))
    records: list[Sample] = []
    too_large: TooLargeError | None = None
    for info in filled[:MOST_SHARDS]:
        wanted = order.count - len(records)
        try:
            found = first_records(store, info, max(wanted, 64) if order.shuffle else wanted)
        except TooLargeError as error:
            too_large = error
            continue
        if order.shuffle:
            # Not all of one shard: the person wants to see how different they are.
            share = max(1, math.ceil(order.count / min(len(filled), 4)))
            found = source.sample(found, min(len(found), share, wanted))
        records += found
        if len(records) >= order.count:
            break
    if not records and too_large is not None:
        raise too_large
    return records


def fields_of(records: Sequence[Sample]) -> list[Field]:
    """Return the fields of records, in the order in which they are first seen."""
    names = list(dict.fromkeys(name for record in records for name in record))
    fields = []
    for name in names:
        values = [record[name] for record in records if name in record]
        types = Counter(type_of(value) for value in values)
        fields.append(
            Field(
                name=name,
                types=" | ".join(kind for kind, _ in types.most_common()),
                present=len(values),
                example=_text(values[0], CELL_CHARACTERS),
            )
        )
    return fields


def type_of(value: Any) -> str:
    """Return a value's type as people name it, arrays with what they hold."""
    if value is None:
        return "null"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}[{','.join(str(size) for size in value.shape)}]"
    if isinstance(value, list | tuple):
        kinds = sorted({type_of(item) for item in value[:100]})
        return f"list[{' | '.join(kinds)}]"
    if isinstance(value, Mapping):
        return "object"
    return {"bytearray": "bytes", "memoryview": "bytes"}.get(
        type(value).__name__, type(value).__name__
    )


def field_lines(fields: Sequence[Field], num_records: int, width: int | None) -> list[Line]:
    """Return the fields as a table, or one under the other where it is too wide."""
    rows = [
        (field.name, field.types, f"{field.present}/{num_records}", field.example)
        for field in fields
    ]
    lines = table(("field", "type", "in", "example"), rows, width=width)
    if lines is not None:
        return list(lines)
    return pairs([(f.name, f"{f.types}: {f.example}") for f in fields], width=width)


def record_lines(records: Sequence[Sample], names: Sequence[str], width: int | None) -> list[Line]:
    """Return records as a table where they fit, else each field on a line of its own."""
    rows = [
        [
            str(number),
            *(_text(record[name], CELL_CHARACTERS) if name in record else "" for name in names),
        ]
        for number, record in enumerate(records, start=1)
    ]
    lines = table(("#", *names), rows, width=width or 160)
    if lines is not None:
        return list(lines)
    found: list[Line] = []
    for number, record in enumerate(records, start=1):
        found.append([Span(f"record {number}", "bold")])
        shown = [(name, _text(value, VALUE_CHARACTERS)) for name, value in record.items()]
        found += pairs(shown, width=width)
    return found


def json_value(value: Any) -> Any:
    """Return a value as JSON can hold it: bytes as their length and beginning, NaN as text."""
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        return {"bytes": len(raw), "starts": raw[:16].hex()}
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _text(value: Any, most: int) -> str:
    plain = json_value(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    if isinstance(value, bytes | bytearray | memoryview):
        text = f"{plain['bytes']} bytes {plain['starts']}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _objects(
    target: DataTarget, finder: DataFinder, store: ObjectStore, wanted: Any
) -> tuple[str, list[ObjectInfo], list[str]]:
    """Return the prefix that is shown, its objects, and the other groups that are there."""
    if target.prefix and not target.prefix.endswith("/"):
        infos = group_objects(store, target.prefix)
        if infos:
            return target.prefix, infos, []
        raise NoGroupsError(
            f"{target.spec.uri}/{target.prefix}: no data objects start with this prefix",
            hint="`quark discover` shows what is there.",
        )
    found = finder.discover(target)
    groups = [*found.groups, *found.candidates]
    if not groups and not found.loose:
        raise NoGroupsError(
            f"{target.spec.uri}/{target.prefix}: no data in it", hint="Name another folder."
        )
    if not groups:
        return target.prefix, list(found.loose), []
    chosen = _chosen(groups, wanted)
    others = [group.prefix for group in groups if group != chosen]
    return chosen.prefix, list_group(store, chosen), others


def _chosen(groups: Sequence[ShardGroup], wanted: Any) -> ShardGroup:
    # A look needs no choice: the best group, unless another is named.
    return choose_groups(groups, wanted, lambda offered: offered[:1])[0][0]

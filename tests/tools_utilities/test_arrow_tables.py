"""JSON lines as Arrow tables: what Arrow's parser gives is what Python's values give, or it is not taken."""

import io
import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tools_utilities.arrow_lines import lines_table, takes_schema
from tools_utilities.errors import RecordError
from tools_utilities.line_samples import samples_of_lines
from tools_utilities.shard_formats.parquet import SHARD_FORMAT, dictionary_columns

KINDS: dict[str, pa.DataType] = {
    "i": pa.int64(), "f": pa.float64(), "t": pa.string(), "b": pa.bool_(),
}  # fmt: skip
SCHEMA = pa.schema(KINDS)
NUMBERS = [
    "0", "-0", "7", "-1", "1.0", "1e2", "1E-3", "0.1", "-0.0", "9007199254740993", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "1e308", "2.5e-324", "123456789.123456789123", "null",
    "1e400", "0.30000000000000004", "17976931348623157e292",
]  # fmt: skip
TEXTS = [
    '"x"', '""', '"\\u00e9\\n\\t\\"\\\\\\/"', '"\\u0000"', '"\\ud83d\\ude00"', '"é\u2028"', "null", '"2024-01-01"',
    '"2024-01-01T00:00:00Z"', '"1"', '"null"', '"true"',
]  # fmt: skip
KEYS = ['"i"', '"\\u0069"', '"f"', '"t"', '"b"']


def line(chance: random.Random) -> str:
    """Return a record of the schema, or nearly: odd numbers, escapes, repeated and missing keys."""
    parts = []
    for key in chance.sample(KEYS, chance.randint(0, 5)):
        plain = {'"t"': TEXTS, '"b"': ["true", "false", "null"]}.get(key, NUMBERS)
        value = chance.choice(plain if chance.random() < 0.97 else [*NUMBERS, *TEXTS, "[]", "{}"])
        parts.append(f"{key}{chance.choice(['', ' '])}:{chance.choice(['', ' '])}{value}")
    return "{" + chance.choice([",", ", "]).join(parts) + "}"


def by_python(lines: Sequence[bytes]) -> pa.Table | None:
    try:
        return pa.Table.from_pylist(samples_of_lines(lines), schema=SCHEMA)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None


def test_arrows_parser_gives_pythons_values_or_nothing():
    chance = random.Random(0)
    taken = 0
    for _ in range(3000):
        lines = [line(chance).encode() for _ in range(chance.randint(1, 3))]
        table = lines_table(lines, SCHEMA)
        if table is None:
            continue
        taken += 1
        expected = by_python(lines)
        assert expected is not None, lines
        assert table.to_pylist() == expected.to_pylist(), lines
    assert taken > 300


@pytest.mark.parametrize(
    "odd",
    [
        '{"f": 9007199254740993}', '{"f": 1e300}', '{"i": 1.5}', '{"i": "1"}', '{"t": 1}', '{"b": 1}',
        '{"i": 1, "i": 2}', '{"new": 1}', '{"i": 9223372036854775808}', '{"t": {}}', '{"t": []}',
    ],
)  # fmt: skip
def test_what_arrow_would_read_otherwise_is_left_to_python(odd):
    assert lines_table([b'{"i": 1, "f": 0.5, "t": "x"}', odd.encode()], SCHEMA) is None


def test_only_plain_columns_are_read_by_arrow():
    assert takes_schema(SCHEMA)
    nested: list[Any] = [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.null(),
        pa.uint64(),
    ]
    for kind in (*nested, pa.int32(), pa.binary(), pa.timestamp("us")):
        assert not takes_schema(pa.schema([("i", pa.int64()), ("x", kind)]))
    assert not takes_schema(pa.schema([]))


def file_of(batches: list[list[Any]]) -> bytes:
    file = io.BytesIO()
    SHARD_FORMAT.write_batches(batches, file, 12 << 20)  # type: ignore[attr-defined] # Parquet has it
    return file.getvalue()


def test_the_bytes_do_not_depend_on_how_lines_are_batched_or_whether_they_are_lines():
    chance = random.Random(1)
    rows = [
        {"id": n, "text": "x" * chance.randint(0, 3000), "r": chance.random()} for n in range(6000)
    ]
    lines = [json.dumps(row).encode() for row in rows]

    one = file_of([lines])

    cuts = sorted(chance.sample(range(1, 6000), 40))
    pieces = [lines[a:b] for a, b in zip([0, *cuts], [*cuts, 6000], strict=True)]
    assert file_of(pieces) == one
    assert pq.ParquetFile(io.BytesIO(one)).metadata.num_row_groups > 1
    for found in (one, file_of([rows]), file_of([rows[:3000], lines[3000:]])):
        assert pq.read_table(io.BytesIO(found)).to_pylist() == rows


def test_a_line_that_does_not_fit_is_named():
    lines = [b'{"a": %d}' % number for number in range(2000)]
    lines[1500] = b'{"a": "x"}'

    with pytest.raises(RecordError, match="sample 1500 cannot be written as Parquet"):
        file_of([lines])


def test_values_that_come_again_get_a_dictionary_and_long_texts_none():
    first = pa.table(
        {
            "id": range(300),
            "label": [n % 10 for n in range(300)],
            "text": [f"text {n}" for n in range(300)],
        }
    )
    assert dictionary_columns(first) == ["label"]
    assert dictionary_columns(first.append_column("ids", pa.array([[1]] * 300))) is True
    rows = [{"id": n, "label": n % 10, "text": f"text {n}", "same": "a"} for n in range(300)]
    group = pq.ParquetFile(io.BytesIO(file_of([rows]))).metadata.row_group(0)
    has = {group.column(at).path_in_schema: group.column(at).has_dictionary_page for at in range(4)}
    assert has == {"id": False, "label": True, "text": False, "same": True}

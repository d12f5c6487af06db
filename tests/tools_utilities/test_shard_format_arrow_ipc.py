"""Arrow IPC: files and streams, in place where they lie, with the values of the Parquet reader."""

import datetime as dt
import io
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from tests.shard_mutations import assert_damage_is_an_error
from tests.shard_reading import in_memory, one_split, open_splits, plan, read_all, written
from tools_utilities.arrow_messages import MessageError, file_messages, messages_as_stream
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.shard_bytes import FileShardBytes, MemoryShardBytes
from tools_utilities.shard_format import ReadOptions, format_of
from tools_utilities.shard_formats.arrow_ipc import SHARD_FORMAT
from tools_utilities.token_rows import token_rows

KEY = "d/x.arrow"
ROWS = [{"id": i, "text": "é" * i, "ids": list(range(i))} for i in range(40)]


def as_file(table: pa.Table, rows: int = 10, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


def as_stream(table: pa.Table, rows: int = 10, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


TABLE = pa.Table.from_pylist(ROWS)
FORMS = {"file": as_file, "stream": as_stream}


def test_the_suffixes_are_known() -> None:
    for key in ("a.arrow", "a.ipc", "a.feather"):
        found = format_of(key)
        assert found is not None
        assert found.name == "arrow"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options", [{}, {"compression": "zstd"}, {"compression": "lz4"}, {"use_legacy_format": True}]
)
@pytest.mark.parametrize("place", ["mapped", "memory"])
def test_files_and_streams_are_read(
    form: str, options: dict[str, Any], place: str, tmp_path: Path
) -> None:
    data = FORMS[form](TABLE, **options)
    path = tmp_path / "x.arrow"
    path.write_bytes(data)
    shard: Any = FileShardBytes(path) if place == "mapped" else in_memory(KEY, data)
    assert read_all("arrow", shard, target_bytes=len(data) // 3) == ROWS


def test_a_file_is_cut_at_its_batches_and_a_stream_is_one_split() -> None:
    data = as_file(TABLE)
    splits = plan("arrow", in_memory(KEY, data), target_bytes=len(data) // 2)
    assert [(split.start, split.end) for split in splits] == [(0, 2), (2, 4)]
    assert sum(split.num_bytes for split in splits) == len(data)
    assert len(plan("arrow", in_memory(KEY, as_stream(TABLE)), target_bytes=1)) == 1


@pytest.mark.parametrize("form", FORMS)
def test_batches_of_a_mapped_file_are_used_in_place(form: str, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(FORMS[form](TABLE))
    before = pa.total_allocated_bytes()
    opened: Any = one_split("arrow", FileShardBytes(path))
    assert opened.num_samples == 40
    assert opened.num_bytes == 0
    assert pa.total_allocated_bytes() - before < 1000
    assert len(opened.rows.batches) == 4
    assert opened.read([39, 0, 21]) == [ROWS[39], ROWS[0], ROWS[21]]


def test_values_are_those_of_the_parquet_reader() -> None:
    when = dt.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    table = pa.table(
        {
            "when": pa.array([when, None], pa.timestamp("ns", "UTC")),
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "raw": pa.array([b"x", None], pa.large_binary()),
            "half": pa.array([0.5, 1], pa.float16()),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int8())),
        }
    )
    parquet = io.BytesIO()
    pq.write_table(table, parquet)
    expected = read_all("parquet", in_memory("d/x.parquet", parquet.getvalue()))
    for form in FORMS.values():
        assert read_all("arrow", in_memory(KEY, form(table))) == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.struct([("x", pa.string_view())]), pa.list_(pa.string_view())]
)
def test_the_views_that_polars_writes_are_read(form: str, kind: Any, tmp_path: Path) -> None:
    texts = ["é", "longer than twelve bytes", None] * 5
    shapes: dict[str, list[Any]] = {
        "string_view": texts,
        "struct": [{"x": text} for text in texts],
        "list": [[text] for text in texts],
    }
    values = next(found for name, found in shapes.items() if str(kind).startswith(name))
    path = tmp_path / "x.arrow"
    path.write_bytes(FORMS[form](pa.table({"v": pa.array(values, kind)}), 100))
    opened = one_split("arrow", FileShardBytes(path))
    assert opened.read([1, 14, 0]) == [{"v": values[i]} for i in (1, 14, 0)]


def test_dictionaries_that_change_between_batches_are_read(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    first, second = (
        pa.record_batch({"k": pa.array(words).dictionary_encode()}) for words in ("ab", "cd")
    )
    with pa.ipc.new_stream(sink, first.schema) as writer:
        writer.write_batch(first)
        writer.write_batch(second)
    path = tmp_path / "x.arrow"
    path.write_bytes(sink.getvalue().to_pybytes())
    assert [row["k"] for row in read_all("arrow", FileShardBytes(path))] == list("abcd")


def test_feather_is_read_and_version_1_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.feather"
    pa.feather.write_feather(TABLE, str(path))
    assert read_all("arrow", FileShardBytes(path)) == ROWS
    with pytest.raises(RecordError, match="Feather version 1"):
        plan("arrow", in_memory("d/x.feather", b"FEA1" + bytes(100)))


@pytest.mark.parametrize("form", FORMS)
def test_only_columns_asked_for_are_read(form: str) -> None:
    shard = in_memory(KEY, FORMS[form](TABLE))
    read = read_all("arrow", shard, options=ReadOptions(columns=("id",)))
    assert read == [{"id": i} for i in range(40)]
    with pytest.raises(RecordError, match="no column nope; found id, text, ids"):
        read_all("arrow", shard, options=ReadOptions(columns=("nope",)))


def test_a_stream_cut_between_two_batches_is_an_error() -> None:
    """Pyarrow itself takes it for a shorter stream."""
    whole, shorter = as_stream(TABLE), as_stream(TABLE.slice(0, 30))
    cut = whole[: len(shorter) - 8]
    assert pa.ipc.open_stream(cut).read_all().num_rows == 30
    with pytest.raises(RecordError, match="without the end mark"):
        read_all("arrow", in_memory(KEY, cut))
    with pytest.raises(RecordError, match="without the end mark"):
        read_all("arrow", in_memory(KEY, whole + b"more"))


def test_an_empty_stream_and_file_have_no_rows() -> None:
    for form in FORMS.values():
        assert read_all("arrow", in_memory(KEY, form(TABLE.slice(0, 0)))) == []


def test_a_bad_value_names_its_row_in_the_file(tmp_path: Path) -> None:
    odd = pa.array([0, 1, 2, 3, 1001], pa.timestamp("ns"))
    path = tmp_path / "x.arrow"
    path.write_bytes(as_file(pa.table({"t": odd.cast(pa.int64()).cast(pa.timestamp("ns"))}), 2))
    shard = FileShardBytes(path)
    splits = list(open_splits("arrow", shard, target_bytes=1))
    with pytest.raises(RecordError, match="row 2: a value cannot be read"):
        read_all("arrow", shard, target_bytes=1)
    assert len(splits) == 3


def test_rows_have_no_bytes_of_their_own() -> None:
    with pytest.raises(UsageError, match="no bytes of its own"):
        one_split("arrow", in_memory(KEY, as_file(TABLE))).read_raw([0])


@pytest.mark.parametrize("form", FORMS)
def test_token_lists_are_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(FORMS[form](TABLE.rename_columns(["id", "text", "input_ids"])))
    rows = token_rows(one_split("arrow", FileShardBytes(path)))
    assert rows.skipped["empty"] == 1
    assert [ids.tolist() for ids in rows.read_tokens([0, 38])] == [[0], list(range(39))]


def test_pyarrow_reads_what_is_written() -> None:
    assert pa.ipc.open_file(written("arrow", ROWS)).read_all().to_pylist() == ROWS


def test_a_later_sample_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RecordError, match="cannot be written as Arrow IPC"):
        written("arrow", [{"a": 1}, {"a": "x"}])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_damage_is_an_error(form: str, compression: str | None) -> None:
    data = FORMS[form](TABLE, compression=compression)
    assert_damage_is_an_error("arrow", KEY, data)


@pytest.mark.parametrize("form", FORMS)
def test_damaged_offsets_of_a_mapped_file_are_an_error(form: str, tmp_path: Path) -> None:
    data = bytearray(FORMS[form](TABLE, rows=40))
    marker = b"".join(i.to_bytes(4, "little") for i in (0, 0, 2, 6))  # where each text begins
    place = data.index(marker)
    data[place + 8 : place + 12] = (2**31 - 1).to_bytes(4, "little")
    path = tmp_path / "x.arrow"
    path.write_bytes(data)
    opened = one_split("arrow", FileShardBytes(path))
    with pytest.raises(RecordError, match="batch 1 is damaged"):
        opened.read([1])
    with pytest.raises(RecordError, match="batch 1 is damaged"):
        token_rows(one_split("arrow", FileShardBytes(path)))


def dictionary_file(**options: Any) -> bytes:
    """Return a file whose dictionary grows from batch to batch."""
    kind = pa.dictionary(pa.int32(), pa.string())
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.DictionaryArray.from_arrays(range(count), [f"v{i}" for i in range(count)])],
            ["word"],
        )
        for count in (2, 5, 9)
    ]
    sink = pa.BufferOutputStream()
    wanted = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, **options)
    with pa.ipc.new_file(sink, pa.schema([("word", kind)]), options=wanted) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(pa.schema([("word", kind)])))
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_growing_dictionaries_are_read_from_any_batch_on(compression: str | None) -> None:
    shard = in_memory(KEY, dictionary_file(compression=compression))
    found = [opened.read(range(opened.num_samples)) for opened in open_splits("arrow", shard, target_bytes=1)]  # fmt: skip
    assert found == [[{"word": f"v{i}"} for i in range(count)] for count in (2, 5, 9)]


def test_a_split_looks_at_its_own_batches_alone() -> None:
    data = as_file(pa.table({"n": range(100_000)}), rows=10_000)
    splits = plan("arrow", in_memory(KEY, data), target_bytes=1)
    read = 0

    class Counted(MemoryShardBytes):
        def read(self, start: int, end: int) -> memoryview:
            nonlocal read
            view = super().read(start, end)
            read += len(view)
            return view

    opened = SHARD_FORMAT.open_split(Counted(KEY, data), splits[7], ReadOptions())
    assert opened.read([0, 9_999]) == [{"n": 70_000}, {"n": 79_999}]
    assert read < len(data) // 5


@pytest.mark.parametrize("places", [[3], [-8], [1 << 40]])
def test_a_place_without_a_message_is_an_error(places: list[int]) -> None:
    data = as_file(TABLE)
    with pytest.raises(MessageError, match=r"no message at byte|outside of its message"):
        messages_as_stream(lambda start, end: data[start:end], len(data), places)


def test_messages_named_again_and_again_are_an_error() -> None:
    data = as_file(TABLE)

    def read(start: int, end: int) -> bytes:
        return data[start:end]

    _, batches = file_messages(read, len(data))
    with pytest.raises(MessageError, match="more than the whole file"):
        messages_as_stream(read, len(data), batches * 5)


@pytest.mark.parametrize("cut", [1, 9, 10, 11, 60])
def test_a_cut_file_is_an_error(cut: int) -> None:
    data = as_file(TABLE)
    with pytest.raises(RecordError, match=re.escape(KEY)):
        read_all("arrow", in_memory(KEY, data[:-cut]))


def test_a_batch_that_is_no_batch_is_missed() -> None:
    """A footer that names a dictionary as a batch: pyarrow's stream passes over it."""
    data = dictionary_file()
    shard = in_memory(KEY, data)
    dictionaries, batches = file_messages(shard.read, len(data))
    at = data.rindex(batches[0].to_bytes(8, "little"))
    wrong = data[:at] + dictionaries[-1].to_bytes(8, "little") + data[at + 8 :]
    with pytest.raises(RecordError, match="2 record batches where its end names 3"):
        read_all("arrow", in_memory(KEY, wrong))


def test_columns_that_change_between_a_files_ends_are_an_error() -> None:
    data = bytearray(as_file(pa.table({"abcdefgh": [1, 2]})))
    at = data.index(b"abcdefgh")
    data[at : at + 8] = b"hgfedcba"
    with pytest.raises(RecordError, match="its beginning and its end name other columns"):
        read_all("arrow", in_memory(KEY, bytes(data)))

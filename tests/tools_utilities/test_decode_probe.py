"""The probe decodes a few records for few bytes, and calls nothing broken that it did not read."""

import gzip
import io
import json
import random
from collections.abc import Callable
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests import discovery_trees as trees
from tools_utilities.decode_probe import MAX_BYTES, ProbeRules, RangeBytes, TooLargeError, probe
from tools_utilities.errors import ObjectReplacedError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import ReadOptions


@pytest.fixture
def store() -> trees.CountingStore:
    return trees.CountingStore(trees.new_store().spec)


def put(store: trees.CountingStore, **objects: bytes) -> list[ObjectInfo]:
    return [store.put(name.replace("__", "."), data) for name, data in objects.items()]


def parquet(num_rows: int, row_group: int, width: int = 8) -> bytes:
    file = io.BytesIO()
    table = pa.table({"a": list(range(num_rows)), "b": ["x" * width] * num_rows})
    pq.write_table(table, file, row_group_size=row_group, compression="none", use_dictionary=False)
    return file.getvalue()


def test_the_first_and_the_last_shard_are_read(store: trees.CountingStore):
    infos = put(store, a__jsonl=b'{"n": 1}\n' * 20, b__jsonl=b"broken\n", c__jsonl=b'{"n": 3}\n')

    found = probe(store, infos)

    assert (found.decodes, found.num_records, found.num_shards) == (True, 9, 2)
    assert found.samples == ({"n": 1},) * 8
    assert {key for verb, key in store.requests if verb == "get"} == {"a.jsonl", "c.jsonl"}


def test_a_lone_shard_is_read_once(store: trees.CountingStore):
    assert probe(store, put(store, a__jsonl=b'{"n": 1}\n')).num_shards == 1
    assert len(store.requests) == 1


def test_empty_shards_are_passed_over(store: trees.CountingStore):
    infos = put(store, a__jsonl=b"", b__jsonl=b'{"n": 2}\n', c__jsonl=b"")

    assert probe(store, infos).samples == ({"n": 2},)
    assert probe(store, infos[:1]).decodes is None
    assert probe(store, []).decodes is None


def test_a_broken_last_shard_is_named_and_the_error_kept(store: trees.CountingStore):
    infos = put(store, a__jsonl=b'{"n": 1}\n', z__jsonl=b'{"n": \n')

    found = probe(store, infos)

    assert found.decodes is False
    assert "z.jsonl" in found.message
    assert found.error is not None
    assert found.error.detail["key"] == "z.jsonl"


def test_a_large_parquet_file_costs_its_footer_and_its_first_row_group(
    store: trees.CountingStore,
):
    data = parquet(400_000, row_group=20_000, width=40)
    infos = put(store, a__parquet=data)

    found = probe(store, infos)

    assert len(data) > MAX_BYTES
    assert (found.decodes, found.samples[0]) == (True, {"a": 0, "b": "x" * 40})
    assert len(store.requests) <= 8


def test_a_row_group_that_is_too_large_is_not_called_broken(store: trees.CountingStore):
    infos = put(store, a__parquet=parquet(400_000, row_group=400_000, width=40))

    found = probe(store, infos)

    assert found.decodes is None
    assert "more than 8 MiB" in found.message


@cache
def noisy_lines(num_bytes: int) -> bytes:
    """Lines that no compression makes small."""
    noise = random.Random(7).randbytes(num_bytes // 2).hex()
    return b"".join(
        b'{"n": "%s"}\n' % noise[i : i + 9000].encode() for i in range(0, len(noise), 9000)
    )


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1)


PACK: dict[str, Callable[[bytes], bytes]] = {
    "jsonl__gz": gzipped, "json__gz": gzipped, "json": bytes,
    "jsonl__zst": lambda data: zstandard.compress(data, 1),
}  # fmt: skip


@pytest.mark.parametrize("suffix", PACK)
def test_of_a_large_object_of_lines_the_beginning_is_decoded(
    store: trees.CountingStore, suffix: str
):
    lines = noisy_lines(18 << 20)
    infos = put(store, **{f"a__{suffix}": PACK[suffix](lines)})

    found = probe(store, infos)

    assert infos[0].size_bytes > MAX_BYTES
    assert (found.decodes, found.num_records) == (True, 8)
    assert found.samples[0] == json.loads(lines.partition(b"\n")[0])
    assert len([verb for verb, _ in store.requests if verb == "get"]) == 1


def test_a_large_object_of_bad_lines_is_broken(store: trees.CountingStore):
    infos = put(store, a__jsonl__gz=gzipped(b"no json\n" + noisy_lines(18 << 20)))

    found = probe(store, infos)

    assert found.decodes is False
    assert "a.jsonl" in found.message


def test_a_large_object_that_is_no_gzip_is_broken(store: trees.CountingStore):
    infos = put(store, a__jsonl__gz=noisy_lines(18 << 20))

    assert probe(store, infos).decodes is False


def test_a_large_list_is_not_called_broken(store: trees.CountingStore):
    infos = put(store, a__json=b"[" + noisy_lines(18 << 20).replace(b"\n", b",\n") + b"{}]")

    assert probe(store, infos).decodes is None


def test_a_small_compressed_object_is_decoded(store: trees.CountingStore):
    infos = put(store, a__jsonl__gz=gzip.compress(b'{"n": 1}\n'))

    assert probe(store, infos).samples == ({"n": 1},)


def test_a_truncated_compressed_object_is_broken(store: trees.CountingStore):
    infos = put(store, a__jsonl__gz=gzip.compress(b'{"n": 1}\n' * 1000)[:-20])

    assert probe(store, infos).decodes is False


def test_a_record_longer_than_a_block_is_decoded(store: trees.CountingStore):
    line = json.dumps({"text": "x" * (3 << 20)}).encode() + b"\n"

    found = probe(store, put(store, a__jsonl=line * 2))

    assert found.decodes is True
    assert len(found.samples[0]["text"]) == 3 << 20


def test_a_shard_replaced_since_the_listing_is_told(store: trees.CountingStore):
    infos = put(store, a__jsonl=b'{"n": 1}\n')
    store.put("a.jsonl", b'{"n": 2}\n')

    found = probe(store, infos)

    assert found.decodes is False
    assert isinstance(found.error, ObjectReplacedError)


def test_ranges_are_exact_at_every_offset(store: trees.CountingStore):
    data = bytes(range(256)) * 4096
    (info,) = put(store, a__bin=data)
    shard = RangeBytes(store, info)

    for start, end in ((0, 1), (5, 300_000), (len(data) - 8, len(data)), (700_000, 700_001),
                       (len(data) - 8, len(data) + 50), (len(data), len(data) + 1), (9, 9)):  # fmt: skip
        assert bytes(shard.read(start, end)) == data[start:end]
    assert len(store.requests) <= 4


def test_a_range_beyond_the_allowance_is_refused(store: trees.CountingStore):
    (info,) = put(store, a__bin=bytes(2000))

    with pytest.raises(TooLargeError):
        RangeBytes(store, info, max_bytes=1000).read(0, 2000)


def test_a_name_that_no_format_reads_is_not_decoded(store: trees.CountingStore):
    assert probe(store, put(store, a__db=b"x")).decodes is None


def test_where_bad_ones_may_be_skipped_others_stand_in_for_them(store: trees.CountingStore):
    lines = b'{"n": \n{"n": 1}\n{"n": NaN}\n{"n": 2}\n'
    infos = put(store, a__jsonl=b"{\n" * 9, b__jsonl=lines, c__jsonl=b'{"n": 3}\n', z__jsonl=b"?\n")
    assert probe(store, infos).decodes is False
    found = probe(store, infos, ProbeRules(skip_bad=True))
    assert (found.decodes, found.num_shards, found.num_records) == (True, 2, 3)
    assert found.samples == ({"n": 1}, {"n": 2})
    nothing = probe(store, [infos[0], infos[-1]], ProbeRules(skip_bad=True))
    assert (nothing.decodes, nothing.num_shards) == (False, 0)
    assert "z.jsonl" in nothing.message


def test_records_are_read_as_the_run_reads_them(store: trees.CountingStore):
    infos = put(store, a__jsonl=b'{"n": NaN}\n')
    assert probe(store, infos).decodes is False
    assert probe(store, infos, ProbeRules(options=ReadOptions(allow_nan=True))).decodes is True


def test_an_object_that_is_gone_may_be_skipped_by_itself(store: trees.CountingStore):
    infos = put(store, a__jsonl=b'{"n": 1}\n', b__jsonl=b'{"n": 2}\n', c__jsonl=b'{"n": 3}\n')
    store.delete("a.jsonl")
    assert probe(store, infos, ProbeRules(skip_bad=True)).decodes is False
    assert probe(store, infos, ProbeRules(skip_missing=True)).num_records == 2

"""Token files: exact sequences, nothing dropped, nothing wrapped."""

import gzip
import io
from typing import Any

import numpy as np
import pytest

from tests.shard_reading import in_memory, one_split, plan, read_all, written
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.shard_format import ReadOptions
from tools_utilities.shard_formats.tokens import (
    TokenSplit,
    likely_dtype,
    refuse_wide,
    write_tokens,
)

FOUR = ReadOptions(seq_len=4)


def ids(samples: list[Any]) -> list[list[int]]:
    return [sample["input_ids"].tolist() for sample in samples]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("target_bytes", [1, 9, 17, 1000])
def test_the_last_short_sequence_is_kept(dtype: str, target_bytes: int) -> None:
    options = ReadOptions(seq_len=4, token_dtype=dtype)
    data = np.arange(65_000, 65_010).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    shard = in_memory("d/x.bin", data)
    samples = read_all("tokens", shard, target_bytes=target_bytes, options=options)
    assert ids(samples) == [
        [65_000, 65_001, 65_002, 65_003],
        [65_004, 65_005, 65_006, 65_007],
        [65_008, 65_009],
    ]
    assert {sample["input_ids"].dtype for sample in samples} == {np.dtype(dtype)}
    splits = plan("tokens", shard, target_bytes=target_bytes, options=options)
    assert sum(split.num_samples or 0 for split in splits) == 3
    assert all(split.start % (4 * np.dtype(dtype).itemsize) == 0 for split in splits)


def test_a_size_that_is_no_whole_number_of_tokens() -> None:
    with pytest.raises(RecordError, match=r"d/x.bin: 7 bytes are not a whole number of 2-byte"):
        plan("tokens", in_memory("d/x.bin", bytes(7)))
    with pytest.raises(RecordError, match=r"d/x.bin: 6 bytes are not a whole number of 4-byte"):
        plan("tokens", in_memory("d/x.bin", bytes(6)), options=ReadOptions(token_dtype="uint32"))


def test_a_compressed_file_of_half_a_token() -> None:
    with pytest.raises(RecordError, match=r"d/x.bin.gz: 7 bytes are not a whole number"):
        one_split("tokens", in_memory("d/x.bin.gz", gzip.compress(bytes(7))))


def test_arrays_may_be_changed_and_outlive_the_split() -> None:
    opened = one_split("tokens", in_memory("d/x.bin", bytes(range(20))), FOUR)
    samples = opened.read([1, 0, 0, 2])
    opened.close()
    assert samples[0]["input_ids"].flags.writeable
    samples[1]["input_ids"][0] = 9
    assert [array[0] for array in (s["input_ids"] for s in samples[:3])] == [0x0908, 9, 0x0100]
    assert ids(samples)[3] == [0x1110, 0x1312]


def test_full_sequences_come_as_one_block() -> None:
    data = np.arange(40, dtype="<u2").tobytes()
    opened = one_split("tokens", in_memory("d/x.bin", data), FOUR)
    assert isinstance(opened, TokenSplit)
    block = opened.read_block([9, 0])
    assert block.tolist() == [[36, 37, 38, 39], [0, 1, 2, 3]]
    assert opened.read_raw([0]) == [data[:8]]


@pytest.mark.parametrize(
    "options",
    [ReadOptions(token_dtype="int32"), ReadOptions(token_dtype=">u2"), ReadOptions(seq_len=0)],
)
def test_other_settings_are_refused(options: ReadOptions) -> None:
    with pytest.raises(UsageError):
        plan("tokens", in_memory("d/x.bin", bytes(8)), options=options)


def test_the_last_written_sample_may_be_shorter() -> None:
    data = written("tokens", [{"input_ids": [1, 2, 3, 4]}, {"input_ids": np.array([5])}])
    assert ids(read_all("tokens", in_memory("d/x.bin", data), options=FOUR)) == [[1, 2, 3, 4], [5]]


def test_wide_ids_are_written_as_uint32() -> None:
    file = io.BytesIO()
    assert write_tokens([{"input_ids": [70_000, 2**32 - 1]}], file, "uint32") == 1
    options = ReadOptions(seq_len=2, token_dtype="uint32")
    shard = in_memory("d/x.bin", file.getvalue())
    assert ids(read_all("tokens", shard, options=options)) == [[70_000, 2**32 - 1]]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"input_ids": [65_536]}, "do not fit"),
        ({"input_ids": [-1]}, "do not fit"),
        ({"input_ids": []}, "needs the one field"),
        ({"input_ids": [1.5]}, "needs the one field"),
        ({"input_ids": [[1]]}, "needs the one field"),
        ({"input_ids": [1], "x": 1}, "needs the one field"),
        ({"input_ids": [1, 2, 3]}, "only the last"),
    ],
)
def test_what_does_not_fit_is_refused(bad: Any, why: str) -> None:
    with pytest.raises(RecordError, match=f"sample 1 cannot be written as tokens: .*{why}"):
        written("tokens", [{"input_ids": [1, 2]}, bad])


def test_a_short_sample_before_the_last_is_refused() -> None:
    with pytest.raises(RecordError, match=r"sample 2 .*only the last"):
        written("tokens", [{"input_ids": [1, 2]}, {"input_ids": [3]}, {"input_ids": [4, 5]}])


def test_the_type_of_numbers_follows_the_vocabulary_unless_it_is_said():
    assert likely_dtype(None) == likely_dtype(65_536) == "uint16"
    assert likely_dtype(65_537) == "uint32"


def test_ids_of_four_bytes_read_as_two_are_refused():
    ids = np.arange(5, 21, dtype=np.uint32)
    with pytest.raises(UsageError, match="every second number is 0"):
        refuse_wide({"input_ids": ids.view(np.uint16)}, "a.bin")
    for fine in (ids.astype(np.uint16), ids, np.zeros(32, np.uint16), ids[:3].view(np.uint16)):
        refuse_wide({"input_ids": fine}, "a.bin")

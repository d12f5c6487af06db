"""Every shard format, found through the registry, keeps the contract of `shard_format.py`."""

import io
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shard_reading import in_memory, one_split, open_splits, plan, read_all, written
from tools_utilities.compression import compressed_writer
from tools_utilities.errors import RecordError
from tools_utilities.shard_bytes import FileShardBytes, MemoryShardBytes
from tools_utilities.shard_format import (
    COMPRESSIONS,
    ReadOptions,
    Sample,
    format_of,
    shard_formats,
)

SEQ_LEN = 5
OPTIONS = ReadOptions(seq_len=SEQ_LEN)
FORMATS = sorted(shard_formats())
COMPRESSIBLE = [name for name in FORMATS if shard_formats()[name].compressible]


def text_sample(i: int, rng: random.Random) -> Sample:
    return {
        "id": i,
        "text": "é\u2028 " * rng.randrange(9),
        "tags": [None, {"k": i / 3}],
        "no": None,
    }


SAMPLES: dict[str, Callable[[int, random.Random], Sample]] = {
    "arrow": text_sample,
    "csv": lambda i, rng: {"id": str(i), "text": 'a "b",\n' * rng.randrange(4)},
    "json": text_sample,
    "jsonl": text_sample,
    "litdata": lambda i, rng: {
        **text_sample(i, rng),
        "raw": rng.randbytes(rng.randrange(9)),
        "flat": np.arange(rng.randrange(9), dtype="<i4"),
        "array": np.arange(rng.randrange(9), dtype="<f4").reshape(1, -1),
        "good": i % 2 == 0,
    },
    "mds": lambda i, rng: {
        **text_sample(i, rng),
        "raw": rng.randbytes(rng.randrange(9)),
        "array": np.arange(rng.randrange(1, 9), dtype="<f4").reshape(1, -1),
        "score": np.float16(i / 2),
    },
    "npy": lambda _, rng: {"array": np.array(rng.choices(range(99), k=6), "<f4").reshape(2, 3)},
    "npz": lambda i, rng: {
        "x": np.array(rng.choices(range(99), k=6), "<f4").reshape(2, 3),
        "label": np.int64(i),
        "word": np.array("é\u2028" * rng.randrange(3), "<U9"),
    },
    "parquet": text_sample,
    "tokens": lambda _, rng: {"input_ids": np.array(rng.choices(range(65536), k=SEQ_LEN), "<u2")},
    "txt": lambda i, rng: {"text": f"line {i} \u2028\x85" * rng.randrange(3)},
    "webdataset": lambda i, rng: {
        "__key__": f"folder.v1/ö{i:04d}" + "x" * rng.randrange(200),
        "cls": str(i).encode(),
        "seg.bin": rng.randbytes(rng.randrange(1500)),
    },
}


def samples_of(name: str, count: int, seed: int = 0) -> list[Sample]:
    if name not in SAMPLES:
        pytest.fail(f"add samples of the new format {name!r} to this file")
    rng = random.Random(seed)
    return [SAMPLES[name](i, rng) for i in range(count)]


def key_of(name: str, compression_suffix: str = "") -> str:
    if name == "litdata":  # told by its name; the suffix is that of token files
        return "d/chunk-0-0.bin"
    return f"d/train-00000{shard_formats()[name].suffixes[0]}{compression_suffix}"


def plain(value: Any) -> Any:
    """Make samples comparable: arrays as lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_read_back(name: str) -> None:
    samples = samples_of(name, 67)
    file = io.BytesIO()
    assert shard_formats()[name].write(iter(samples), file) == 67
    shard = in_memory(key_of(name), file.getvalue())
    assert plain(read_all(name, shard, options=OPTIONS)) == plain(samples)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_reads_as_memory_does(name: str, tmp_path: Path) -> None:
    samples = samples_of(name, 50)
    path = tmp_path / key_of(name).rpartition("/")[2]
    path.write_bytes(written(name, samples))
    shard = FileShardBytes(path)
    read = read_all(name, shard, target_bytes=700, options=OPTIONS)
    assert plain(read) == plain(samples)
    shard.close()
    assert plain(read) == plain(samples)  # samples do not hang on the mapping


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_are_read_on_the_thread_that_asks_for_samples(name: str) -> None:
    """A library's own thread, still holding our file when the process ends, aborts it."""
    threads = set()

    class Watched(MemoryShardBytes):
        def read(self, start: int, end: int) -> memoryview:
            threads.add(threading.get_ident())
            return super().read(start, end)

    samples = samples_of(name, 40)
    shard = Watched(key_of(name), written(name, samples))
    assert plain(read_all(name, shard, target_bytes=300, options=OPTIONS)) == plain(samples)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("name", FORMATS)
def test_writing_twice_gives_the_same_bytes(name: str) -> None:
    assert written(name, samples_of(name, 9)) == written(name, samples_of(name, 9))


@pytest.mark.parametrize("name", FORMATS)
def test_any_order_reads_the_same_samples(name: str) -> None:
    samples = samples_of(name, 40)
    shard = in_memory(key_of(name), written(name, samples))
    opened = one_split(name, shard, OPTIONS)
    order = random.Random(1).choices(range(40), k=100)
    for start in range(0, 100, 7):
        some = order[start : start + 7]
        assert plain(opened.read(some)) == plain([samples[i] for i in some])
    assert opened.read([]) == []
    assert opened.num_bytes >= 0
    opened.close()
    opened.close()


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 30), target_bytes=st.integers(1, 3000), seed=st.integers(0, 99))
def test_splits_hold_every_sample_once(name: str, count: int, target_bytes: int, seed: int) -> None:
    samples = samples_of(name, count, seed)
    shard = in_memory(key_of(name), written(name, samples))
    splits = plan(name, shard, target_bytes=target_bytes, options=OPTIONS)
    assert splits == plan(name, shard, target_bytes=target_bytes, options=OPTIONS)
    bounds = [(split.start, split.end) for split in splits]
    assert bounds == sorted(bounds)
    assert all(end == start for (_, end), (start, _) in pairwise(bounds))
    counts = [
        opened.num_samples
        for opened in open_splits(name, shard, target_bytes=target_bytes, options=OPTIONS)
    ]
    known = [split.num_samples for split in splits]
    assert all(a is None or a == b for a, b in zip(known, counts, strict=True))
    read = read_all(name, shard, target_bytes=target_bytes, options=OPTIONS)
    assert plain(read) == plain(samples)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", ["", *COMPRESSIONS])
def test_an_empty_object_is_one_empty_split(name: str, suffix: str) -> None:
    if suffix and not shard_formats()[name].compressible:
        pytest.skip("this format is not compressed from outside")
    opened = one_split(name, in_memory(key_of(name, suffix), b""), OPTIONS)
    assert opened.num_samples == 0
    assert opened.read([]) == []


@pytest.mark.parametrize("name", COMPRESSIBLE)
@pytest.mark.parametrize(("suffix", "compression"), COMPRESSIONS.items())
def test_compressed_objects_are_read_whole(name: str, suffix: str, compression: str) -> None:
    samples = samples_of(name, 30)
    file = io.BytesIO()
    writer = compressed_writer(file, compression)
    writer.write(written(name, samples))
    writer.close()
    key = key_of(name, suffix)
    assert format_of(key) is shard_formats()[name]
    shard = in_memory(key, file.getvalue())
    assert len(plan(name, shard, target_bytes=10, options=OPTIONS)) == 1
    assert plain(read_all(name, shard, options=OPTIONS)) == plain(samples)
    for cut in (1, len(file.getvalue()) // 2):
        cut_shard = in_memory(key, file.getvalue()[:-cut])
        with pytest.raises(RecordError, match="truncated") as failure:
            read_all(name, cut_shard, options=OPTIONS)
        assert failure.value.detail["key"] == key


@pytest.mark.parametrize("name", FORMATS)
def test_a_cut_file_is_never_a_short_success(name: str) -> None:
    """Cut anywhere: an error, or exactly the whole samples before a cut at a record's border."""
    samples = samples_of(name, 12)
    data = written(name, samples)
    key = key_of(name)
    cuts = {*range(1, 40), *range(1, len(data), max(1, len(data) // 60))}
    num_errors = 0
    for cut in sorted(cut for cut in cuts if cut < len(data)):
        try:
            read = plain(read_all(name, in_memory(key, data[:-cut]), options=OPTIONS))
        except RecordError as error:
            num_errors += 1
            assert error.detail["key"] == key  # noqa: PT017 - both ways out are checked
            continue
        assert_whole_lines_or_tokens(name, data[:-cut], read, samples)
    assert num_errors > 0


def assert_whole_lines_or_tokens(
    name: str, data: bytes, read: list[Any], samples: list[Sample]
) -> None:
    """Check what may be read from a file that happens to end at a border (or in plain text)."""
    if name == "tokens":  # no structure beyond its size: the last sequence is short
        flat = [token for sample in samples for token in sample["input_ids"].tolist()]
        assert [token for sample in read for token in sample["input_ids"]] == flat[: len(data) // 2]
    elif name == "txt":  # a cut line is a line
        assert "\n".join(sample["text"] for sample in read) == data.decode().removesuffix("\n")
    elif name == "jsonl":
        assert read == plain(samples[: len(read)])
        assert data.endswith((b"\n", b"}"))
    elif name == "csv":  # no end mark either: the last value may be short
        last = max(0, len(read) - 1)
        assert read[:last] == samples[:last]
        for cut, whole in zip(read[last:], samples[last:], strict=False):
            assert all(whole[key].startswith(cut[key]) for key in cut)
    elif name in {"json", "webdataset"}:  # only what follows the end mark was cut
        assert read == plain(samples)
    else:
        pytest.fail(f"{name} read {len(read)} samples of a cut file without an error")


@pytest.mark.parametrize("name", FORMATS)
def test_names_are_found_by_suffix_in_any_case(name: str) -> None:
    for suffix in shard_formats()[name].suffixes:
        assert format_of(f"a/B{suffix.upper()}") is shard_formats()[name]


def test_formats_share_no_suffix() -> None:
    suffixes = [suffix for found in shard_formats().values() for suffix in found.suffixes]
    assert len(suffixes) == len(set(suffixes))

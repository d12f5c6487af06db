"""Chunks from waiting files: the same bytes on a thread and in a process; errors and deaths are told."""

import datetime as dt
import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tools_utilities.chunk_spool import (
    ChunkJob,
    ChunkPool,
    ChunkProcessError,
    SpooledChunkWriter,
    do_job,
    waiting,
)
from tools_utilities.chunk_writer import write_chunk
from tools_utilities.chunk_writers import ChunkWriters, takes_lines
from tools_utilities.errors import RecordError
from tools_utilities.shard_format import shard_formats

LINES = [b'{"text":"%d %s"}' % (number, b"x" * (number % 9)) for number in range(700)]


def job(
    folder: Path, name: str, shard_format: str = "mds", compression: str | None = None
) -> ChunkJob:
    return ChunkJob(
        spool=folder / f"{name}.spool.tmp",
        path=folder / f"{name}.tmp",
        format=shard_format,
        compression=compression,
        memory_bytes=1 << 20,
    )


@pytest.fixture(scope="module")
def pool() -> Any:
    made = ChunkPool(1, processes=True)
    yield made
    made.close()


def test_what_waits_keeps_every_type(tmp_path: Path, pool: ChunkPool) -> None:
    samples: list[Any] = [
        {"at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC), "n": 1 << 70},
        {"raw": b"\0\n", "price": Decimal("1.10"), "nothing": None, "list": [1, 2.5, "x\n"]},
    ]
    writer = SpooledChunkWriter(job(tmp_path, "a"), pool)
    writer.add(samples)
    writer.add([b'{"a":1}', b'{"a":2}'])
    writer.add([{"array": np.arange(4, dtype=np.uint16)}])
    writer._file.flush()

    with (tmp_path / "a.spool.tmp").open("rb") as file:
        batches = list(waiting(file))
    writer.abandon()

    assert batches[:2] == [samples, [b'{"a":1}', b'{"a":2}']]
    assert batches[2][0]["array"].dtype == np.uint16
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("shard_format", "compression"),
    [("mds", None), ("litdata", None), ("parquet", None), ("jsonl", "zstd"), ("txt", "gzip")],
)
def test_a_process_writes_the_bytes_of_a_thread(
    tmp_path: Path, pool: ChunkPool, shard_format: str, compression: str | None
) -> None:
    written = []
    for name, submit in (("here", do_job), ("there", None)):
        one = job(tmp_path, name, shard_format, compression)
        writer = SpooledChunkWriter(one, pool)
        for start in range(0, 700, 64):
            writer.add(LINES[start : start + 64])
        if submit is None:
            written.append(writer.finish())
        else:
            writer._file.close()
            written.append(submit(one))

    here, there = written
    assert here.path.read_bytes() == there.path.read_bytes()
    assert (here.num_samples, here.sha256) == (700, there.sha256)
    assert (here.num_bytes, here.crc32c) == (there.num_bytes, there.crc32c)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.tmp", "there.tmp"]


def test_a_bad_record_is_told_as_such_and_leaves_nothing(tmp_path: Path, pool: ChunkPool) -> None:
    writer = SpooledChunkWriter(job(tmp_path, "bad"), pool)
    writer.add([b'{"a":1}', b'{"b":2}'])

    with pytest.raises(RecordError, match="sample 1 cannot be written to MDS") as caught:
        writer.finish()
    writer.abandon()

    assert caught.value.detail["record"] == 2
    assert not list(tmp_path.iterdir())


def test_an_unknown_error_names_its_kind(tmp_path: Path, pool: ChunkPool) -> None:
    writer = SpooledChunkWriter(job(tmp_path, "odd", "no-such-format"), pool)
    writer.add(LINES)

    with pytest.raises(ChunkProcessError, match=r"odd\.tmp: KeyError: 'no-such-format'"):
        writer.finish()


def test_a_process_that_died_is_an_error_and_close_ends_the_others(tmp_path: Path) -> None:
    pool = ChunkPool(1, processes=True)
    first = SpooledChunkWriter(job(tmp_path, "first"), pool)
    first.add(LINES)
    first.finish()
    os.kill(pool._started[0].pid, signal.SIGKILL)
    pool._started[0].wait()
    second = SpooledChunkWriter(job(tmp_path, "second"), pool)
    second.add(LINES)

    with pytest.raises(ChunkProcessError, match="ended with -9") as caught:
        second.finish()
    pool.close()

    assert "Run the same command again" in caught.value.hint
    assert all(process.returncode is not None for process in pool._started)


@pytest.mark.parametrize(
    ("shard_format", "num_growing", "workers", "source_bytes", "pooled"),
    [
        ("jsonl", 64, 2, None, None),
        ("parquet", 8, 2, 1 << 40, None),
        ("parquet", 9, 2, 1 << 10, "threads"),
        ("mds", 8, 2, 1 << 40, "processes"),
        ("mds", 8, 2, None, "processes"),
        ("mds", 8, 2, 1 << 20, None),
        ("mds", 8, 1, 1 << 40, None),
        ("mds", 64, 1, 1 << 40, "threads"),
    ],
)
def test_where_chunks_are_written(
    tmp_path: Path,
    shard_format: str,
    num_growing: int,
    workers: int,
    source_bytes: int | None,
    pooled: str | None,
) -> None:
    writers = ChunkWriters(
        tmp_path,
        format_name=shard_format,
        compression=None,
        num_growing=num_growing,
        workers=workers,
        source_bytes=source_bytes,
    )

    found = writers._pool and ("processes" if writers._pool._processes else "threads")
    writers.close()

    assert found == pooled


def test_whether_lines_are_copied_depends_on_the_plan_alone() -> None:
    assert takes_lines("jsonl", 1)
    assert takes_lines("mds", 1)
    assert takes_lines("parquet", 1)
    assert not takes_lines("arrow", 8)
    assert takes_lines("arrow", 9)


def test_lines_with_numbers_that_only_python_reads_are_written_all_the_same(tmp_path: Path) -> None:
    lines = [b'{"a":1.5}', b'{"a":NaN}', b'{"a":-Infinity}']

    written = write_chunk(
        [lines], tmp_path / "a.parquet", shard_formats()["parquet"], None, memory_bytes=1 << 20
    )

    assert written.num_samples == 3
    column = pq.read_table(written.path).column("a").to_pylist()
    assert [str(value) for value in column] == ["1.5", "nan", "-inf"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_full_disk_leaves_no_file_of_a_chunk_and_is_told_once(tmp_path: Path) -> None:
    made = job(tmp_path, "a", "jsonl")
    threads = ChunkPool(1, processes=False)
    for path in (made.spool, made.path):
        path.symlink_to("/dev/full")
    writer = SpooledChunkWriter(made, threads)
    writer.add(LINES[:3])  # still in the buffer
    writer.abandon()
    threads.close()
    assert not list(tmp_path.iterdir())

    made.path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_chunk([LINES[:3]], made.path, shard_formats()["jsonl"], None, memory_bytes=1 << 20)
    assert not list(tmp_path.iterdir())

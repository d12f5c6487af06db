"""Bytes at hand as a shard: clipped, zero-copy, never changed."""

from pathlib import Path

import pytest

from tools_utilities.errors import DataNotFoundError, IntegrityError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_bytes import FileShardBytes, MemoryShardBytes


@pytest.fixture(params=["memory", "file"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryShardBytes | FileShardBytes:
    if request.param == "memory":
        return MemoryShardBytes("d/x.bin", b"0123456789")
    (tmp_path / "x.bin").write_bytes(b"0123456789")
    return FileShardBytes(tmp_path / "x.bin", info=ObjectInfo(key="d/x.bin", size_bytes=10))


def test_ranges_are_clipped(shard: MemoryShardBytes | FileShardBytes) -> None:
    assert shard.info.key == "d/x.bin"
    assert bytes(shard.read(0, 10)) == b"0123456789"
    assert bytes(shard.read(3, 5)) == b"34"
    assert bytes(shard.read(8, 99)) == b"89"
    assert bytes(shard.read(12, 15)) == b""
    assert shard.read(0, 4).readonly


def test_views_outlive_close(shard: MemoryShardBytes | FileShardBytes) -> None:
    view = shard.read(2, 6)
    shard.close()
    shard.close()
    assert bytes(view) == b"2345"
    assert bytes(shard.read(0, 10)) == b""


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "e").touch()
    assert bytes(FileShardBytes(tmp_path / "e").read(0, 5)) == b""


def test_a_file_of_another_size_or_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(IntegrityError, match=r"3 bytes .* 4 expected"):
        FileShardBytes(tmp_path / "x", info=ObjectInfo(key="x", size_bytes=4))
    with pytest.raises(DataNotFoundError, match="no such file"):
        FileShardBytes(tmp_path / "y")

"""Splits cut by an object's kept offsets hold what splits that look for themselves hold."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools_utilities import json_line_sidecar
from tools_utilities.json_line_sidecar import known_lines
from tools_utilities.object_store import ObjectInfo
from tools_utilities.open_objects import OpenObjects
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.shard_bytes import FileShardBytes, MemoryShardBytes
from tools_utilities.shard_format import ReadOptions, ShardBytes
from tools_utilities.shard_formats.jsonl import SHARD_FORMAT
from tools_utilities.sidecars import Make, Sidecars

PLAIN = [b'{"a":1}\n', b'{"text":"' + b"x" * 300 + b'"}\n', b'{"b":{"c":"}\\n{"}}\n']
OTHERS = [
    *(b"\n", b" \n", b'{"a":1}\r\n', b' {"a":1}\n', b'{"a":1} \n', b"[1]\n", b"{}\n{}\n"),
    *(b"{\n", b"}\n", b"\xef\xbb\xbf{}\n", b'{"a":1}{"a":2}\n', b"\r\n", b"null\n"),
]


class AtOnce(Sidecars):
    """Makes a sidecar the first time that it is asked for."""

    def get(self, info: ObjectInfo, name: str, make: Make) -> bytes | None:
        return make()


def shared(tmp_path: Path, data: bytes) -> ShardBytes:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    info = ObjectInfo(key="x.jsonl", size_bytes=len(data), etag="e")
    objects = OpenObjects(AtOnce(lambda _info: None))
    return objects.add(info, FileShardBytes(path, info=info))[0]


def found(shard: ShardBytes, target_bytes: int) -> list[object]:
    """What the splits of an object are and hold, bad records with their places."""
    options = ReadOptions()
    all_found: list[object] = []
    for split in SHARD_FORMAT.plan_splits(shard.info, lambda _s, _e: b"", target_bytes, options):
        opened = SHARD_FORMAT.open_split(shard, split, options)
        raw = opened.read_raw(range(opened.num_samples))
        decoded: list[object] = []
        for index in range(opened.num_samples):
            try:
                decoded += opened.read([index])
            except Exception as error:  # noqa: BLE001 - compared in words
                decoded.append((type(error), str(error), vars(error).get("detail")))
        all_found.append((split, opened.num_samples, raw, decoded, opened.skipped))
        opened.close()
    return all_found


@given(
    lines=st.lists(
        st.one_of(st.sampled_from(PLAIN), st.sampled_from([*PLAIN, *OTHERS])), max_size=12
    ),
    rest=st.sampled_from([b"", b"", b'{"end":1}', b"{", b"\r", b" "]),
    target_bytes=st.integers(1, 700),
)
def test_splits_hold_the_same_with_and_without(tmp_path_factory, lines, rest, target_bytes):
    data = b"".join(lines) + rest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_line_sidecar, "_LEAST_BYTES", 1)
        patch.setattr(json_line_sidecar, "_LEAST_LINE_BYTES", 1)
        kept = shared(tmp_path_factory.mktemp("x"), data)
        alone = MemoryShardBytes("x.jsonl", data, info=kept.info)
        assert found(kept, target_bytes) == found(alone, target_bytes)
        kept.close()


def lines_of(size: int) -> bytes:
    line = b'{"text":"' + b"x" * 500 + b'"}\n'
    return line * (size // len(line) + 1)


def test_plain_lines_are_found_across_the_pieces_that_are_looked_at(tmp_path):
    shard = shared(tmp_path, lines_of(9 << 20))
    splits = SHARD_FORMAT.plan_splits(shard.info, lambda _s, _e: b"", 1 << 20, ReadOptions())
    assert len(splits) > 4
    assert all(known_lines(shard, split) is not None for split in splits)
    assert found(shard, 1 << 20) == found(
        MemoryShardBytes("x.jsonl", shard.read(0, shard.info.size_bytes), info=shard.info), 1 << 20
    )
    shard.close()


@pytest.mark.parametrize(
    "data",
    [
        lines_of(1 << 20)[: 1 << 18],
        lines_of(1 << 20) + b'{"a":1}',
        lines_of(1 << 20) + b"\n",
        lines_of(1 << 20) + b'{"a":1}\r\n',
        b"\xef\xbb\xbf" + lines_of(1 << 20),
        b'{"a":1}\n' * (1 << 18),
    ],
    ids=["small", "no last line end", "blank line", "CR", "byte order mark", "short lines"],
)
def test_what_is_irregular_or_not_worth_it_is_looked_at_split_by_split(tmp_path, data):
    shard = shared(tmp_path, data)
    splits = SHARD_FORMAT.plan_splits(shard.info, lambda _s, _e: b"", 1 << 20, ReadOptions())
    assert all(known_lines(shard, split) is None for split in splits)
    shard.close()


def test_an_object_of_a_folder_is_gone_through_once_for_all_epochs(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_bytes(lines_of(2 << 20))
    manager, times = StreamingManager(f"file://{tmp_path}"), []
    make = json_line_sidecar._offsets

    def counted(*arguments: object) -> bytes:
        times.append(arguments)
        return make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(json_line_sidecar, "_offsets", counted)
    for _ in range(2):
        [info] = manager.store.list("")
        shard = manager.open_shard(info)
        found(shard, 1 << 18)
        shard.close()
    assert len(times) == 1
    (tmp_path / "x.jsonl").write_bytes(b'{"b":1}\n' + lines_of(2 << 20))
    [info] = manager.store.list("")
    for _ in range(2):
        shard = manager.open_shard(info)
        first = found(shard, 1 << 18)[0]
        assert isinstance(first, tuple)
        assert first[3][0] == {"b": 1}
        shard.close()
    assert len(times) == 2

"""Both layouts of a manifest, and what one may not say."""

import json
from itertools import count

import pytest

from tools_utilities.errors import AccessError, DataError
from tools_utilities.manifest import (
    MAX_BYTES,
    Chunk,
    Manifest,
    Shard,
    encode_manifest,
    load_manifest,
)
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.object_stores._bodies import BytesBody
from tools_utilities.object_stores.memory import MemoryStore

_NAMES = count()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(StoreSpec(uri=f"memory://manifest-{next(_NAMES)}"))


def put(store: MemoryStore, key: str, content: object) -> None:
    store.put(key, content if isinstance(content, bytes) else json.dumps(content).encode())


def master(*directories: str) -> dict[str, object]:
    """The documented master metadata (documented.md S), as written by other programs."""
    shards = [
        {"shard_id": i, "directory": name, "status": "available"}
        for i, name in enumerate(directories)
    ]
    return {"total_tasks": 3, "num_shards": len(shards), "chunk_size_mb": 100, "shards": shards}


def shard(shard_id: int, *files: str, **extra: object) -> dict[str, object]:
    chunks = [
        {"chunk_id": i, "file": name, "num_tasks": 3 + i, "size_mb": 0.1, **extra}
        for i, name in enumerate(files)
    ]
    return {
        "shard_id": shard_id, "total_shards": 2, "status": "available", "total_tasks": 3,
        "num_chunks": len(chunks), "chunks": chunks,
        "assigned_to": None, "started_at": None, "completed_at": None,
    }  # fmt: skip


def test_the_documented_layout_gives_shards_chunks_and_counts(store: MemoryStore):
    put(store, "d/master_metadata.json", master("shard_000", "shard_001"))
    put(store, "d/shard_000/metadata.json", shard(0, "chunk_0000.jsonl", "chunk_0001.jsonl"))
    put(
        store,
        "d/shard_001/metadata.json",
        shard(1, "chunk_0000.jsonl", bytes=77, crc32c="AAAAAA==", sha256="ab"),
    )

    manifest = load_manifest(store, "d/")

    assert manifest is not None
    assert (manifest.prefix, manifest.num_samples) == ("d/", 10)
    assert [one.num_samples for one in manifest.shards] == [7, 3]
    assert list(manifest.chunks) == [
        "d/shard_000/chunk_0000.jsonl",
        "d/shard_000/chunk_0001.jsonl",
        "d/shard_001/chunk_0000.jsonl",
    ]
    last = manifest.chunks["d/shard_001/chunk_0000.jsonl"]
    assert (last.num_bytes, last.crc32c, last.sha256) == (77, "AAAAAA==", "ab")
    assert manifest.chunks["d/shard_000/chunk_0000.jsonl"].num_bytes is None


def test_a_flat_manifest_comes_back_as_it_was_written(store: MemoryStore):
    written = Manifest(
        prefix="d/",
        shards=(
            Shard(shard_id=0, chunks=(Chunk(key="a.jsonl", num_samples=2, num_bytes=9),)),
            Shard(shard_id=1, chunks=(Chunk(key="sub/b.jsonl", num_samples=0, crc32c="x"),)),
        ),
    )
    store.put("d/manifest.json", encode_manifest(written))

    assert load_manifest(store, "d/") == written


def test_the_folder_layout_wins_over_a_flat_file(store: MemoryStore):
    put(store, "d/master_metadata.json", master("shard_000"))
    put(store, "d/shard_000/metadata.json", shard(0, "c.jsonl"))
    put(store, "d/manifest.json", b"{")

    manifest = load_manifest(store, "d/")

    assert manifest is not None
    assert list(manifest.chunks) == ["d/shard_000/c.jsonl"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{", b"[1]", b"{}", b'{"shards": []}', b'{"shards": [{"x": 1}]}',
                b'{"entries": [{"url": "s3://b/k"}]}', b"[" * 100_000],
)  # fmt: skip
def test_a_manifest_json_of_another_program_is_none_of_ours(store: MemoryStore, content: bytes):
    store.put("d/manifest.json", content)

    assert load_manifest(store, "d/") is None


def test_a_folder_without_one_has_none(store: MemoryStore):
    assert load_manifest(store, "d/") is None


OUTSIDE = [
    "../other/a.jsonl", "a/../../b.jsonl", "/etc/passwd", "s3://other/a.jsonl", "..", ".",
    "", "a//b.jsonl", "./a.jsonl", "..\\a.jsonl",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_flat_manifest_may_not_point_outside_its_folder(store: MemoryStore, path: str):
    shards = [{"shard_id": 0, "chunks": [{"key": path, "num_samples": 1}]}]
    put(store, "d/manifest.json", {"shards": shards})

    with pytest.raises(DataError, match="not below its folder") as caught:
        load_manifest(store, "d/")

    assert caught.value.detail["key"] == "d/manifest.json"


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("place", ["directory", "file"])
def test_a_folder_manifest_may_not_point_outside_its_folder(
    store: MemoryStore, place: str, path: str
):
    put(store, "d/master_metadata.json", master(path if place == "directory" else "shard_000"))
    put(store, "d/shard_000/metadata.json", shard(0, path if place == "file" else "c.jsonl"))
    put(store, "other/metadata.json", shard(0, "c.jsonl"))

    with pytest.raises(DataError, match="not below its folder"):
        load_manifest(store, "d/")


def chunk(key: str, **rest: object) -> dict[str, object]:
    return {"key": key, "num_samples": 1, **rest}


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        ([{"shard_id": 0, "chunks": [chunk("a"), chunk("a")]}], "a is there twice"),
        ([{"shard_id": 0, "chunks": []}, {"shard_id": 0, "chunks": []}], "shard 0 is there twice"),
        ([{"shard_id": 0, "chunks": [{"key": "a"}]}], "num_samples"),
        ([{"shard_id": 0, "chunks": [chunk("a", num_bytes=-1)]}], "num_bytes"),
        ([{"shard_id": -1, "chunks": []}], "shard_id"),
        ([{"shard_id": "x", "chunks": []}], "shard_id"),
    ],
)
def test_a_damaged_flat_manifest_is_an_error_that_names_it(store: MemoryStore, shards, words: str):
    put(store, "d/manifest.json", {"shards": shards})

    with pytest.raises(DataError) as caught:
        load_manifest(store, "d/")

    assert words in str(caught.value)
    assert "d/manifest.json" in str(caught.value)


def test_a_damaged_master_is_an_error_and_not_a_missing_manifest(store: MemoryStore):
    put(store, "d/master_metadata.json", b'{"shards": [')

    with pytest.raises(DataError, match=r"d/master_metadata\.json"):
        load_manifest(store, "d/")


def test_a_shard_without_metadata_is_an_incomplete_dataset(store: MemoryStore):
    put(store, "d/master_metadata.json", master("shard_000", "shard_001"))
    put(store, "d/shard_000/metadata.json", shard(0, "c.jsonl"))

    with pytest.raises(DataError, match=r"d/shard_001/metadata\.json is missing"):
        load_manifest(store, "d/")


def test_metadata_of_another_shard_is_refused(store: MemoryStore):
    put(store, "d/master_metadata.json", master("shard_000"))
    put(store, "d/shard_000/metadata.json", shard(5, "c.jsonl"))

    with pytest.raises(DataError, match="of shard 5, not 0"):
        load_manifest(store, "d/")


class Awkward(MemoryStore):
    """Refuses one key, and says of another that it is huge."""

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> BytesBody:
        if key.startswith("denied/"):
            raise AccessError("no GetObject", key=key)
        if key == "huge/master_metadata.json":
            return BytesBody(ObjectInfo(key=key, size_bytes=MAX_BYTES + 1), b"")
        return super().get(key, start=start, end=end, if_etag=if_etag)


def test_permission_and_size_are_their_own_errors():
    store = Awkward(StoreSpec(uri="memory://awkward"))

    with pytest.raises(AccessError):
        load_manifest(store, "denied/")
    with pytest.raises(DataError, match="is no manifest"):
        load_manifest(store, "huge/")


@pytest.mark.parametrize("content", [b'{"a\xff": 1}', b'{"shards": "\xbd"}', b"[" * 200_000])
@pytest.mark.parametrize("key", ["d/master_metadata.json", "d/shard_000/metadata.json"])
def test_what_is_no_utf8_or_too_deep_is_named_too(store: MemoryStore, key: str, content: bytes):
    put(store, "d/master_metadata.json", master("shard_000"))
    put(store, key, content)
    with pytest.raises(DataError, match=key):
        load_manifest(store, "d/")

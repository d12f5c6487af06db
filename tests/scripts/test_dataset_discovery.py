"""Discovery: the right groups, the right order, what is left out and why, and at what price."""

import gzip

import pytest

from tests import discovery_trees as trees
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.scripts.dataset_discovery import (
    Discovery,
    ShardGroup,
    find_groups,
    group_objects,
    list_group,
)


def by_prefix(found: Discovery) -> dict[str, ShardGroup]:
    return {group.prefix: group for group in found.groups}


def keys(infos: list[ObjectInfo]) -> list[str]:
    return [info.key for info in infos]


# The published cases.


def test_b01_markers_are_not_data_and_an_empty_shard_is():
    store = trees.CountingStore(StoreSpec(uri="memory://b01"))
    top = "data/datasets/alpha/"
    for key in (top, f"{top}train/", f"{top}train/shard_00008.jsonl"):
        store.put(key, b"")
    for i in range(8):
        store.put(f"{top}train/shard_{i:05d}.jsonl", trees.jsonl(2048))

    found = find_groups(store, top)

    assert list(by_prefix(found)) == [f"{top}train/"]
    group = found.groups[0]
    assert (group.num_objects, group.median_bytes, group.decodes) == (9, 2048, True)
    assert len(list_group(store, group)) == 9
    assert not [key for verb, key in store.requests if verb == "get" and key.endswith("/")]


def test_b02_a_folder_is_never_a_string_prefix():
    store = trees.tree("""
        data/datasets/x/train/s-{}.jsonl x8
        data/datasets/x/training/s-{}.jsonl x8
        data/datasets/x/train-old/s-{}.jsonl x8
        data/datasets/x/train_v2/s-{}.jsonl x8
        data/datasets/x/train.jsonl
    """)

    found = find_groups(store, "data/datasets/x")

    names = ("train", "train-old", "train_v2", "training")
    assert {g.prefix: g.num_objects for g in found.groups} == {
        f"data/datasets/x/{name}/": 8 for name in names
    }
    assert keys(list(found.loose)) == ["data/datasets/x/train.jsonl"]
    for root in ("data/datasets/x/train", "data/datasets/x/train/"):
        (only,) = find_groups(store, root).groups
        assert keys(list_group(store, only)) == [
            f"data/datasets/x/train/s-{i}.jsonl" for i in range(8)
        ]


def test_b05_what_is_not_data_is_counted_by_reason_and_never_read():
    store = trees.CountingStore(StoreSpec(uri="memory://b05"))
    folder = "data/datasets/j/train/"
    for i in range(8):
        store.put(f"{folder}part-{i}.parquet", trees.parquet(1500))
    junk = {
        "_SUCCESS": b"", "_metadata": b"x" * 4096, ".DS_Store": b"x" * 6144,
        "._part-0.parquet": bytes.fromhex("00051607") * 1024, ".part-0.parquet.crc": b"x" * 12,
        "manifest.json": b"{}", "index.json": b"{}", "README.md": b"#",
        "_temporary/0/part-9.parquet": trees.parquet(1500),
    }  # fmt: skip
    for name, data in junk.items():
        store.put(folder + name, data)

    found = find_groups(store, "data/datasets/j")

    (group,) = found.groups
    assert (group.prefix, group.num_objects, group.median_bytes) == (folder, 8, 1500)
    assert group.total_bytes == 8 * 1500
    assert group.ignored == 9
    assert sum(found.ignored.values()) == 9
    assert {key for named in found.ignored_keys.values() for key in named} == {
        folder + name if "/" not in name else f"{folder}_temporary/" for name in junk
    }
    read = {key for verb, key in store.requests if verb == "get"}
    assert read
    assert all(key.startswith(f"{folder}part-") for key in read)
    assert len(list_group(store, group)) == 8
    assert len(group_objects(store, folder)) == 8


def test_b07_a_second_discovery_sees_the_store_as_it_is():
    store = trees.tree("d/shard_{:05d}.jsonl x8")
    assert find_groups(store, "d").groups[0].num_objects == 8

    store.delete("d/shard_00003.jsonl")
    store.put("d/shard_00008.jsonl", trees.jsonl(2048))

    (group,) = find_groups(store, "d").groups
    assert (group.num_objects, group.missing) == (8, (3,))
    assert "1 of 9 shards missing: 3" in group.reasons


# Real listings (INDEX.md R16) and made trees: the right group comes first.


def test_r16_parquet_testing():
    store = trees.listed_store("parquet-testing.tsv", broken="bad_data/")

    found = find_groups(store, "")

    groups = {prefix: group.num_objects for prefix, group in by_prefix(found).items()}
    assert groups == {"shredded_variant/": 137, "data/": 65, "data/geospatial/": 10, "bad_data/": 8}
    assert {group.format for group in found.groups} == {"parquet"}
    # The one folder that is a numbered series of shards.
    assert found.groups[0].prefix == "shredded_variant/"
    assert found.groups[-1].prefix == "bad_data/"
    assert found.groups[-1].decodes is False
    assert "bad_data/" in found.groups[-1].reasons[0]
    assert "bad_data/" not in {group.prefix for group in found.choices}
    assert {len(list_group(store, group)) for group in found.groups} == {137, 65, 10, 8}


def test_r16_duckdb_data():
    store = trees.listed_store("duckdb-data.tsv", broken="")

    found = find_groups(store, "", depth=5)

    groups = {
        prefix: group.num_objects
        for prefix, group in by_prefix(found).items()
        if group.format == "parquet"
    }
    assert groups == {
        "data/parquet-testing/": 250,
        "data/geoparquet/": 12,
        "data/parquet-testing/compression/generated/": 12,
    }
    assert found.groups[0].prefix == "data/parquet-testing/"
    assert find_groups(store, "data", depth=1).groups[0].prefix == "data/parquet-testing/"


TREES = {
    # name: (tree, root, the group that comes first, how many may be chosen)
    "one folder": ("d/train-{:05d}.jsonl x8", "d", "d/", 1),
    "train before val and test": (
        """
        d/test-{:05d}.jsonl 9000 x64
        d/train-{:05d}.jsonl x8
        d/val-{:05d}.jsonl 9000 x64
        """, "d", "d/train-", 1,
    ),
    "train before nothing said": (
        "d/a-{:03d}.jsonl x20\nd/train-{:03d}.jsonl x20", "d", "d/train-", 2,
    ),
    "folders as splits": (
        "d/val/p-{}.jsonl x9\nd/test/p-{}.jsonl x9\nd/train/p-{}.jsonl x9", "d", "d/train/", 1,
    ),
    "a name that only looks like dev": (
        "d/www_farodevigo/p-{:03d}.jsonl x40\nd/dev/p-{:03d}.jsonl x80", "d",
        "d/www_farodevigo/", 1,
    ),
    "larger before smaller": (
        "a/p-{:03d}.jsonl 1500 x8\nb/p-{:03d}.jsonl 60000 x8", "", "b/", 2,
    ),
    "more before fewer": ("a/p-{:03d}.jsonl x8\nb/p-{:03d}.jsonl x200", "", "b/", 2),
    "even before ragged": (
        """
        a/p-{:03d}.jsonl 2000 x8
        b/p-000.jsonl 1100
        b/p-001.jsonl 14000
        b/p-002.jsonl 1200
        b/p-003.jsonl 30000
        b/p-004.jsonl 1100
        b/p-005.jsonl 22000
        b/p-006.jsonl 1100
        b/p-007.jsonl 2000
        """, "", "a/", 2,
    ),
    "complete before holes": (
        "a/p-{:03d}-of-008.jsonl x8\nb/p-{:03d}-of-064.jsonl x8", "", "a/", 2,
    ),
    "numbered before unnumbered": (
        "a/p-{:03d}.jsonl x8\n" + "\n".join(f"b/{word}.jsonl" for word in
        ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")), "", "a/", 2,
    ),
    "readable before broken": (
        "a/p-{:03d}.jsonl 9000 x100 broken\nb/p-{:03d}.jsonl x8", "", "b/", 1,
    ),
    "readable before broken parquet": (
        "a/p-{:03d}.parquet 9000 x100 broken\nb/p-{:03d}.parquet x8", "", "b/", 1,
    ),
    "known format before unknown": (
        "a/p-{:03d}.db 9000 x100\nb/p-{:03d}.jsonl x8", "", "b/", 1,
    ),
    "chunks in shard folders": (
        """
        d/shard_{:03d}/chunk_0000.jsonl x4
        d/shard_{:03d}/chunk_0001.jsonl x4
        d/shard_{:03d}/metadata.json 40 x4
        d/master_metadata.json 40
        """, "", "d/", 1,
    ),
    "partitions": ("d/date=2019-01-{:02d}/part-0.parquet x9", "", "d/", 1),
    "partitions of partitions": (
        "d/year=2019/month={}/p-0.parquet x6\nd/year=2020/month={}/p-0.parquet x6", "", "d/", 1,
    ),
    "versions are datasets of their own": (
        "d/v1/p-{:02d}.jsonl x8\nd/v2/p-{:02d}.jsonl x30", "d", "d/v2/", 2,
    ),
    "years are datasets of their own": (
        "d/2019/p-{:02d}.jsonl x30\nd/2020/p-{:02d}.jsonl x8", "d", "d/2019/", 2,
    ),
    "three levels down": ("r/a/b/c/p-{:02d}.jsonl x8\nr/a/b/c/d/p-{:02d}.jsonl x99", "r",
                          "r/a/b/c/", 1),
    "an old series beside the new": (
        "d/train-old-{:03d}.jsonl x8\nd/train-{:03d}.jsonl x40", "d", "d/train-", 2,
    ),
    "letters of any script": ("数据/训练集/p-{:02d}.jsonl x8", "数据", "数据/训练集/", 1),
    "a folder that is no hold-out": (
        "d/parquet-testing/p-{:03d}.jsonl x99\nd/testing/p-{:03d}.jsonl x99", "d",
        "d/parquet-testing/", 1,
    ),
    "a brackets folder": ("d/run[1]/train/p-{}.jsonl x8\nd/run1/p-{}.jsonl 4 x8", "d",
                          "d/run[1]/train/", 1),
    "Spark's names": ("d/part-{:05d}-6e0c3a1f-c000.snappy.parquet x12\nd/_SUCCESS 0", "d", "d/", 1),
    "Hugging Face's names": (
        """
        d/data/train-{:05d}-of-00008-1f2e.parquet x8
        d/data/validation-{:05d}-of-00008-1f2e.parquet x8
        d/dataset_infos.json 900
        """, "d", "d/data/train-", 1,
    ),
    "tokens": ("d/chunk-0-{}.bin 4096 x9\nd/index.json 40", "d", "d/", 1),
    "a val folder that was asked for": ("d/val/p-{:02d}.jsonl x8", "d/val", "d/val/", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_the_right_group_comes_first(name: str):
    description, root, first, num_choices = TREES[name]

    found = find_groups(trees.tree(description), root)

    assert found.groups[0].prefix == first
    assert found.groups[0].is_choice
    assert len(found.choices) == num_choices
    scores = [group.score for group in found.groups]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert all(0 <= value <= 1 for group in found.groups for value in group.factors.values())


def test_every_group_lists_what_it_counted():
    for description, root, _, _ in TREES.values():
        store = trees.tree(description)
        for group in find_groups(store, root).groups:
            listed = list_group(store, group)
            assert len(listed) == group.num_objects, group.prefix
            assert sum(info.size_bytes for info in listed) == group.total_bytes


# Groups one by one.


def test_two_series_of_one_folder_share_no_object():
    store = trees.tree("d/train-{:05d}.jsonl x9\nd/train-old-{:05d}.jsonl x8\nd/odd.jsonl")
    found = by_prefix(find_groups(store, "d"))

    assert set(found) == {"d/train-", "d/train-old-"}
    assert keys(list_group(store, found["d/train-"])) == [
        f"d/train-{i:05d}.jsonl" for i in range(9)
    ]
    assert found["d/train-"].stem == "train-"
    assert found["d/train-"].folder == "d/"


def test_files_of_a_folder_and_of_its_subfolders_are_two_groups():
    words = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
    store = trees.tree("\n".join(f"d/{word}.parquet" for word in words) + "\nd/sub/p-{}.parquet x8")
    found = by_prefix(find_groups(store, ""))

    assert {prefix: group.num_objects for prefix, group in found.items()} == {"d/": 8, "d/sub/": 8}
    assert keys(list_group(store, found["d/"])) == [f"d/{word}.parquet" for word in words]


def test_formats_of_one_folder_are_groups_of_their_own():
    store = trees.tree("d/p-{}.parquet x8\nd/p-{}.jsonl x9\nd/p-{}.db x10")
    found = find_groups(store, "d")

    assert {g.format: g.num_objects for g in found.groups} == {"parquet": 8, "jsonl": 9}
    assert {g.format: len(list_group(store, g)) for g in found.groups} == {"parquet": 8, "jsonl": 9}


def test_a_shard_there_twice_is_told():
    store = trees.tree("d/p-{:02d}.jsonl x8")
    for i in range(3):
        store.put(f"d/p-{i:02d}.jsonl.gz", gzip.compress(trees.jsonl(2048)))

    (group,) = find_groups(store, "d").groups

    assert "3 shards are there compressed and uncompressed" in group.reasons


def test_two_writings_mixed_in_one_folder_are_told():
    store = trees.tree("d/p-{:02d}-of-08.jsonl x8\nd/p-{:02d}-of-09.jsonl x9")

    (group,) = find_groups(store, "d").groups

    assert any("-of-8 and 9" in reason for reason in group.reasons)


@pytest.mark.parametrize(
    ("description", "missing"),
    [
        ("d/p-{:02d}-of-12.jsonl x10", (10, 11)),
        ("d/p-{:02d}.jsonl x8\nd/p-11.jsonl", (8, 9, 10)),
        ("\n".join(f"d/p-{i:02d}.jsonl" for i in range(1, 10)), ()),
        ("\n".join(f"d/p-{1700000000 + 977 * i}.jsonl" for i in range(9)), ()),
        ("\n".join(f"d/2024-01-{i:02d}.jsonl" for i in range(1, 30, 2)), ()),
    ],
)
def test_missing_numbers_are_named(description: str, missing: tuple[int, ...]):
    (group,) = find_groups(trees.tree(description), "d").groups

    assert group.missing == missing
    assert bool(missing) == any("missing" in reason for reason in group.reasons)


def test_what_does_not_qualify_says_why():
    store = trees.tree("a/p-{}.jsonl x7\nb/p-{}.jsonl 300 x8\nc/p-{}.db x8")

    found = find_groups(store, "")

    reasons = {group.prefix: group.reasons for group in found.candidates}
    assert found.groups == ()
    assert reasons == {
        "a/": ("7 objects, fewer than 8",),
        "b/": ("median 300 B, below 1,024 B",),
        "c/": ("no format reads .db",),
    }
    assert [(folder.prefix, folder.num_objects) for folder in found.tree] == [
        ("", 0), ("a/", 7), ("b/", 8), ("c/", 8),
    ]  # fmt: skip
    assert len(find_groups(store, "", min_objects=7, min_size_kb=0.25).groups) == 2


FLAT = b'{"shards": [{"shard_id": 0, "chunks": [{"key": "p-0.jsonl", "num_samples": 3}]}]}'


@pytest.mark.parametrize(
    ("manifest", "qualifies"),
    [
        (FLAT, True),
        (FLAT.replace(b"p-0", b"q-0"), False),
        (FLAT.replace(b"p-0", b"../p-0"), False),
        (b'{"files": ["p-0.jsonl"]}', False),
    ],
)
def test_a_small_group_qualifies_by_a_manifest_that_names_it(manifest: bytes, *, qualifies: bool):
    store = trees.tree("d/p-{}.jsonl 300 x2")
    store.put("d/manifest.json", manifest)

    found = find_groups(store, "d")

    assert bool(found.groups) == qualifies
    if qualifies:
        assert found.groups[0].has_manifest
        assert found.groups[0].reasons == ()
    elif b".." in manifest:
        assert any("not below its folder" in reason for reason in found.candidates[0].reasons)


def test_a_group_of_few_chunks_qualifies_by_the_documented_manifest():
    store = trees.tree("d/shard_{:03d}/chunk_0000.jsonl 200 x2")
    store.put("d/master_metadata.json", b'{"shards": [{"shard_id": 0, "directory": "shard_000"}]}')
    chunks = b'[{"chunk_id": 0, "file": "chunk_0000.jsonl", "num_tasks": 2, "size_mb": 0.1}]'
    store.put("d/shard_000/metadata.json", b'{"shard_id": 0, "chunks": ' + chunks + b"}")

    (group,) = find_groups(store, "d").groups

    assert (group.prefix, group.stem, group.num_objects) == ("d/", "shard_", 2)


def test_holdouts_are_offered_and_never_choices():
    store = trees.tree("d/val-{:02d}.jsonl x8\nd/test-{:02d}.jsonl x8\nd/dev/p-{}.jsonl x8")

    found = find_groups(store, "d")

    assert found.choices == []
    assert [group.split for group in found.holdouts] == ["val", "val", "test"]


def test_a_broken_group_is_ranked_last_and_says_which_record():
    store = trees.tree("d/val/p-{}.jsonl x8")
    for i in range(8):
        store.put(f"d/train/p-{i}.jsonl", b'{"a": 1}\nnot json\n' * 200)

    found = find_groups(store, "d")

    assert [group.prefix for group in found.groups] == ["d/val/", "d/train/"]
    assert found.groups[1].reasons[0].startswith("decoding failed: d/train/p-0.jsonl: line 2")
    assert find_groups(store, "d", probe=False).groups[0].decodes is None


def test_a_shard_too_large_to_decode_is_not_called_broken():
    store = trees.CountingStore(StoreSpec(uri="memory://large"))
    for i in range(8):
        store.put(f"d/p-{i}.jsonl", b'{"a": "' + b"x" * (9 << 20) + b'"}\n')

    (group,) = find_groups(store, "d").groups

    assert (group.decodes, group.is_choice) == (None, True)
    assert "not decoded" in group.reasons[0]


def test_only_a_few_bytes_of_a_large_group_are_read():
    store = trees.CountingStore(StoreSpec(uri="memory://frugal"))
    for i in range(8):
        store.put(f"d/p-{i}.jsonl", trees.jsonl(4 << 20))

    (group,) = find_groups(store, "d").groups

    assert group.decodes is True
    assert len([verb for verb, _ in store.requests if verb == "get"]) <= 4

"""What discovery costs, what it says when something is missing or refused, and what a prefix means."""

from typing import TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests import discovery_trees as trees
from tools_utilities.errors import (
    AccessError,
    DataNotFoundError,
    ObjectNotFoundError,
    QuarkError,
    StoreError,
)
from tools_utilities.folder_walk import MAX_FOLDERS
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.object_stores._bodies import BytesBody
from tools_utilities.object_stores.memory import MemoryStore
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


# The price.


def test_ten_groups_of_a_hundred_thousand_keys_cost_sixty_requests_at_most():
    store = trees.HugeStore(StoreSpec(uri="memory://huge"))

    found = find_groups(store, "")

    assert len(store.requests) <= 60
    assert len(found.groups) == 10
    assert all(group.decodes for group in found.groups)
    assert {group.objects_shown for group in found.groups} == {"≥ 1,000, not all listed"}
    assert not any(group.complete_listing for group in found.groups)
    # What lies beyond the hundred thousand was seen all the same.
    assert len(found.loose) == 10
    assert {info.key.partition("/")[2] for info in found.loose} == {"tail-0.jsonl"}
    listed = list_group(store, found.groups[0])
    assert len(listed) == 100_000


def test_splits_and_folders_behind_thousands_of_shards_are_found():
    store = trees.tree("""
        d/train-{:05d}.jsonl 1100 x2500
        d/validation-{:05d}.jsonl 1100 x8
        d/wiki/p-{}.jsonl 1100 x8
        d/a/p-{}.jsonl 1100 x8
        d/{:04d}.md 2 x1200
    """)

    found = by_prefix(find_groups(store, "d"))

    assert set(found) == {"d/train-", "d/validation-", "d/wiki/", "d/a/"}
    assert (found["d/validation-"].num_objects, found["d/wiki/"].num_objects) == (8, 8)
    assert found["d/validation-"].complete_listing
    assert not found["d/train-"].complete_listing
    assert len(list_group(store, found["d/train-"])) == 2500


def test_thousands_of_shard_folders_are_sampled():
    store = trees.CountingStore(StoreSpec(uri="memory://folders"))
    for i in range(1500):
        store.put(f"d/shard_{i:05d}/chunk_0000.jsonl", trees.jsonl(1100))

    (group,) = find_groups(store, "d").groups

    assert len(store.requests) < 90
    assert group.objects_shown.startswith("≥ ")
    assert len(list_group(store, group)) == 1500


def test_a_folder_of_endless_names_costs_a_bounded_number_of_requests_and_says_so():
    store = trees.CountingStore(StoreSpec(uri="memory://endless"))
    for i in range(25_000):
        store.put(f"d/{i * 2654435761 % 2**32:08x}-x.jsonl", b"{}\n" * 400)

    found = find_groups(store, "d")

    assert len(store.requests) <= 25
    assert [group.stem for group in found.groups] == ["*"]
    assert found.groups[0].objects_shown.endswith("not all listed")
    assert any("d/: too many names" in note for note in found.notes)
    assert len(list_group(store, found.groups[0])) == 25_000


def test_more_folders_than_can_be_looked_into_are_told():
    names = [f"{i % 5}-part/{i:04d}-set" for i in range(MAX_FOLDERS + 10)]
    store = trees.store_of({f"d/{name}/p-0.jsonl": b"{}\n" for name in names})

    found = find_groups(store, "d")

    assert any("folders were not looked into" in note for note in found.notes)


def test_broken_groups_do_not_hide_the_readable_one_below_them():
    store = trees.tree(
        "\n".join(f"d/broken-{i:02d}-set/p-{{}}.jsonl 90000 x9 broken" for i in range(15))
        + "\nd/good/p-{}.jsonl x8"
    )

    found = find_groups(store, "d")

    assert found.groups[0].prefix == "d/good/"
    assert [group.prefix for group in found.choices] == ["d/good/"]


# What is not there, and what may not be seen.


class Refusing(MemoryStore):
    """Refuses to list some folders."""

    refused = "d/secret/"

    def list_folder(self, prefix: str, *, max_pages: int | None = None):
        if prefix == self.refused:
            raise AccessError(f"listing {prefix} is refused", hint="Ask for s3:ListBucket.")
        return super().list_folder(prefix, max_pages=max_pages)


Store = TypeVar("Store", bound=MemoryStore)


def copied(store: Store, description: str) -> Store:
    source = trees.tree(description)
    for info in source.list(""):
        store.put(info.key, b"".join(source.get(info.key)))
    return store


def refusing(description: str) -> Refusing:
    return copied(Refusing(StoreSpec(uri="memory://refusing")), description)


def test_access_denied_is_never_no_datasets():
    with pytest.raises(AccessError):
        find_groups(refusing("d/secret/p-{}.jsonl x8"), "d/secret")
    with pytest.raises(AccessError):
        find_groups(refusing("d/secret/p-{}.jsonl x8\nd/other.jsonl"), "d")


def test_a_refused_folder_beside_a_group_is_noted():
    found = find_groups(refusing("d/secret/p-{}.jsonl x8\nd/open/p-{}.jsonl x8"), "d")

    assert [group.prefix for group in found.groups] == ["d/open/"]
    assert found.notes == ("d/secret/: access denied",)


class Unreadable(MemoryStore):
    """Lists, but gives nothing below a folder; or gives nothing because it is down."""

    below = "d/secret/"
    error: QuarkError = AccessError("reading is refused", hint="Ask for s3:GetObject.")

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> BytesBody:
        if key.startswith(self.below):
            raise self.error
        return super().get(key, start=start, end=end, if_etag=if_etag)


def unreadable(description: str) -> Unreadable:
    return copied(Unreadable(StoreSpec(uri="memory://unreadable")), description)


def test_reading_refused_is_told_as_such():
    with pytest.raises(AccessError, match="reading is refused"):
        find_groups(unreadable("d/secret/p-{}.jsonl x8"), "d")

    found = find_groups(unreadable("d/secret/p-{}.jsonl x8\nd/open/p-{}.jsonl x8"), "d")

    assert [group.prefix for group in found.choices] == ["d/open/"]
    assert "may not be read" in found.groups[1].reasons[0]


def test_a_store_that_does_not_answer_says_nothing_of_the_data():
    store = unreadable("d/secret/p-{}.jsonl x8")
    store.error = StoreError("503", transient=False)

    with pytest.raises(StoreError):
        find_groups(store, "d")


def test_a_shard_gone_since_the_listing_is_told():
    store = unreadable("d/secret/p-{}.jsonl x8")
    store.error = ObjectNotFoundError("d/secret/p-0.jsonl does not exist")

    (group,) = find_groups(store, "d").groups

    assert group.decodes is False
    assert "is gone (404" in group.reasons[0]


def test_an_empty_prefix_names_itself_and_what_lies_beside_it():
    store = trees.tree("data/datasets/alphagenome/p-{}.jsonl x8")

    with pytest.raises(DataNotFoundError) as caught:
        find_groups(store, "data/datasets/alphagenom")

    assert f"{store.spec.uri}/data/datasets/alphagenom/" in str(caught.value)
    assert "data/datasets/alphagenome/" in caught.value.hint


def test_an_empty_bucket_says_so():
    with pytest.raises(DataNotFoundError, match="the bucket is empty"):
        find_groups(trees.new_store(), "")


# What a prefix means.


def test_a_prefix_without_a_slash_is_literal():
    store = trees.tree("d/train-{:02d}.jsonl x2\nd/train-old-{:02d}.jsonl x2\nd/_train-1.jsonl")

    assert len(group_objects(store, "d/train-")) == 4
    assert len(group_objects(store, "d/train-", "train-")) == 2
    assert len(group_objects(store, "d/")) == 4


def test_a_whole_key_is_that_object_alone():
    store = trees.tree("d/one.jsonl\nd/one.jsonl.gz\nd/one.jsonl.bak")

    assert keys(group_objects(store, "d/one.jsonl")) == ["d/one.jsonl"]


def test_objects_without_a_suffix_are_data_where_no_other_is():
    assert len(group_objects(trees.tree("d/train-{:03d} x3"), "d/")) == 3
    mixed = trees.tree("d/train-{:03d}.jsonl x3\nd/LICENCES-LIST\nd/dir.txt.old")
    assert len(group_objects(mixed, "d/")) == 3


def test_keys_come_in_byte_order():
    store = trees.store_of({f"d/{name}.jsonl": b"" for name in ("é", "z", "\U0001f600", "\uffe5")})

    assert keys(group_objects(store, "d/")) == [
        f"d/{name}.jsonl" for name in ("z", "é", "\uffe5", "\U0001f600")
    ]


_FOLDERS = st.sampled_from(["", "sub/", "shard_0/", "shard_1/", "x=1/", "x=2/", "v1/", "0/", "1/"])
_STEMS = st.sampled_from(["", "train-", "train-old-", "val-", "part", "s_", "x"])
_ENDS = st.sampled_from(["", "0", "1", "2", "00", "01", "002", "10", "00-of-02", "01-of-02", "7-a"])
_SUFFIXES = st.sampled_from([".jsonl", ".jsonl.gz", ".parquet", ".md"])
_KEYS = st.tuples(_FOLDERS, _STEMS, _ENDS, _SUFFIXES).map("".join)


@settings(max_examples=80, deadline=None)
@given(st.sets(_KEYS, min_size=1, max_size=14))
def test_every_data_object_belongs_to_exactly_one_group_or_is_loose(names: set[str]):
    names = {name for name in names if not name.endswith(".md") and "/." not in f"/{name}"}
    assume(names)
    store = trees.store_of({f"d/{name}": b"{}" for name in names} | {"d/README.md": b""})

    found = find_groups(store, "d", min_objects=2, min_size_kb=0, probe=False)

    listed = [
        info.key
        for group in (*found.groups, *found.candidates)
        for info in list_group(store, group)
    ]
    assert sorted([*listed, *keys(list(found.loose))]) == sorted(f"d/{name}" for name in names)
    counted = sum(group.num_objects for group in (*found.groups, *found.candidates))
    assert counted == len(listed)


def test_two_thousand_folders_side_by_side_are_all_found():
    names = (f"d/{i:04d}-set/p-{n}.jsonl" for i in range(2000) for n in range(8))
    found = find_groups(trees.store_of(dict.fromkeys(names, b"{}\n" * 400)), "d")
    assert len(found.groups) == 2000
    assert found.notes == ()

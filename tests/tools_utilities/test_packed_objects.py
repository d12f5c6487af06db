"""Packed listings: what goes in comes out, in little memory."""

import sys
from array import array
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tools_utilities.group_listing import list_members, pack_members
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.packed_objects import PackedObjects

TEXT = st.text(st.characters(), max_size=20)
VERSION = st.none() | st.text(st.characters(min_codepoint=32), max_size=20)
INFOS = st.lists(
    st.builds(
        ObjectInfo,
        key=TEXT,
        size_bytes=st.integers(0, 1 << 60),
        etag=VERSION,
        crc32c=VERSION,
    ),
    max_size=8,
)


@given(infos=INFOS)
def test_what_goes_in_comes_out(infos):
    packed = PackedObjects(infos)
    assert list(packed) == infos
    assert len(packed) == len(infos)
    assert packed[1:] == infos[1:]
    assert packed[::-2] == infos[::-2]
    assert [packed[-1 - number] for number in range(len(infos))] == infos[::-1]
    assert packed.size_bytes.tolist() == [info.size_bytes for info in infos]


def test_a_key_that_is_no_utf8_is_kept():
    info = ObjectInfo(key=b"a\xff.jsonl".decode("utf-8", "surrogateescape"), size_bytes=1)
    assert PackedObjects([info])[0] == info


class Backwards(MemoryStore):
    """Lists in the wrong order."""

    def list(self, prefix: str, *, start_after: str = ""):
        return reversed(list(super().list(prefix)))


def test_members_are_in_key_order_and_of_known_formats_whatever_the_store_says():
    store = Backwards(StoreSpec(uri="memory://backwards"))
    keys = [f"d/{name}" for name in ("b.jsonl", "a.jsonl", "é.jsonl", "_SUCCESS", "notes.xyz")]
    for key in keys:
        store.put(key, b"{}\n")
    found = [info.key for info in pack_members(store, "d/", None, None)]
    assert found == ["d/a.jsonl", "d/b.jsonl", "d/é.jsonl"]
    assert [info.key for info in list_members(store, "d/", None, "xyz")] == []
    assert [info.key for info in list_members(store, "d/a.jsonl", None, None)] == ["d/a.jsonl"]


def test_an_entry_takes_little_beside_its_text():
    def listing() -> Iterator[ObjectInfo]:
        return (
            ObjectInfo(key=f"data/part-{number:07}.jsonl", size_bytes=1, etag=f"{number:032x}")
            for number in range(20_000)
        )

    packed = PackedObjects(listing())
    held = vars(packed).values()
    assert all(isinstance(part, bytearray | array) for part in held)  # nothing that holds others
    bytes_each = sum(map(sys.getsizeof, held)) / len(packed)
    assert bytes_each < 2 * (23 + 32 + 1 + 32)

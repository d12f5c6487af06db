"""A patient store: what fails in passing is asked again, and a listing that breaks loses and repeats nothing."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tools_utilities.errors import ConditionFailedError, ObjectNotFoundError, StoreError
from tools_utilities.object_store import StoreSpec
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.patient_store import PatientStore

KEYS = [f"d/{number:02d}/x" for number in range(20)]


def breaking(items: Iterable[Any], at: int) -> Iterator[Any]:
    """Yield items; the connection breaks before one of them."""
    for number, item in enumerate(items):
        if number == at:
            raise StoreError("reset", transient=True)
        yield item


class Breaking(MemoryStore):
    """Fails `times` times in each kind of call, listings after `at` entries."""

    def __init__(self, times: int, at: int, *, transient: bool = True) -> None:
        super().__init__(StoreSpec(uri=f"memory://breaking-{id(self):x}"))
        for key in KEYS:
            super().put(key, key.encode())
        self.left = dict.fromkeys(("list", "head", "get", "put", "delete"), times)
        self.at, self.transient = at, transient

    def trouble(self, name: str) -> bool:
        if self.left[name]:
            self.left[name] -= 1
            return True
        return False

    def fail(self, name: str) -> None:
        if self.trouble(name):
            raise StoreError("503", transient=self.transient)

    def list(self, prefix, *, start_after=""):
        found = super().list(prefix, start_after=start_after)
        return breaking(found, self.at) if self.trouble("list") else found

    def list_folder(self, prefix, *, max_pages=None):
        self.fail("list")
        return super().list_folder(prefix, max_pages=max_pages)

    def head(self, key):
        self.fail("head")
        return super().head(key)

    def get(self, key, **options):
        self.fail("get")
        return super().get(key, **options)

    def put(self, key, data):
        self.fail("put")
        return super().put(key, data)

    def delete(self, key):
        self.fail("delete")
        super().delete(key)


@pytest.mark.parametrize("at", [0, 1, 7, 19])
def test_a_listing_that_breaks_goes_on_behind_its_last_key(at):
    assert [info.key for info in PatientStore(Breaking(3, at)).list("d/")] == KEYS
    assert [
        info.key for info in PatientStore(Breaking(1, at)).list("d/", start_after=KEYS[3])
    ] == KEYS[4:]


def test_everything_that_may_be_repeated_is():
    store = PatientStore(Breaking(2, 0))
    assert store.head(KEYS[0]).size_bytes == len(KEYS[0])
    assert store.read(KEYS[0])[0] == KEYS[0].encode()
    assert store.put("new", b"x").size_bytes == 1
    store.delete("new")
    assert [page.prefixes for page in store.list_folder("d/")] == [
        tuple(f"d/{n:02d}/" for n in range(20))
    ]


def test_what_will_not_pass_and_conditions_are_not_repeated():
    with pytest.raises(StoreError):
        PatientStore(Breaking(1, 0, transient=False)).head(KEYS[0])
    store = PatientStore(Breaking(0, 0))
    with pytest.raises(ObjectNotFoundError):
        store.head("absent")
    with pytest.raises(ConditionFailedError):
        store.put_if_absent(KEYS[0], b"x")

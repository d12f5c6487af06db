"""A store that asks again while the one behind it is in trouble: for work that may wait, and not for claims.

Everything that may be repeated is: looking, opening, writing whole objects, deleting. Not repeated are
conditional puts, whose outcome the caller must judge, and what breaks in the middle of a body: `fetch.py`
and `PatientStore.read` go on with that.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tools_utilities.errors import StoreError
from tools_utilities.object_store import (
    Body,
    Folder,
    ObjectInfo,
    ObjectStore,
    StoreSpec,
    read_object,
)
from tools_utilities.patience import patiently

WRITE_TRIES = 4
"""Three silences on a write's way, each as long as the client waits, are survived."""


class PatientStore:
    """Another store, asked with patience (`patience.py` says how long).

    `whole_files=False`: files are sent once, for who sends them again with pauses of its own.
    """

    def __init__(self, store: ObjectStore, *, whole_files: bool = True) -> None:
        self._store = store
        self._whole_files = whole_files
        self.spec: StoreSpec = store.spec
        self.writable = store.writable

    @property
    def endpoint_id(self) -> str:
        """Name the store behind."""
        return self._store.endpoint_id

    def __getattr__(self, name: str) -> Any:
        """Give what some stores have besides the contract."""
        return getattr(self._store, name)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects; a listing that breaks goes on behind its last key."""
        last = start_after
        source: Iterator[ObjectInfo] | None = None
        while True:
            try:
                for info in source or self._store.list(prefix, start_after=last):
                    last = info.key
                    yield info
            except StoreError as error:
                if not error.detail.get("transient"):
                    raise
            else:
                return
            # An iterator that has raised looks like one that has ended: another goes on from here.
            following, source = patiently(partial(self._following, prefix, last))
            if following is None:
                return
            last = following.key
            yield following

    def _following(self, prefix: str, last: str) -> tuple[ObjectInfo | None, Iterator[ObjectInfo]]:
        listed = self._store.list(prefix, start_after=last)
        return next(listed, None), listed

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Yield pages; a listing that breaks is begun again, and what was yielded passed over."""
        num_done = 0
        pages: Iterator[Folder] | None = None

        def following() -> Folder | None:
            nonlocal pages
            if pages is None:
                again = self._store.list_folder(prefix, max_pages=max_pages)
                pages = islice(again, num_done, None)
            going, pages = pages, None
            page = next(going, None)
            pages = going
            return page

        while (page := patiently(following)) is not None:
            num_done += 1
            yield page

    def head(self, key: str) -> ObjectInfo:
        """Return size and version."""
        return patiently(partial(self._store.head, key))

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> Body:
        """Open a body; what breaks later is the reader's to ask for again."""
        return patiently(partial(self._store.get, key, start=start, end=end, if_etag=if_etag))

    def read(self, key: str, **span: Any) -> tuple[bytes, ObjectInfo]:
        """Return a small object whole, as `read_object` does."""
        return patiently(partial(read_object, self._store, key, **span))

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object."""
        return patiently(partial(self._store.put, key, data), least_tries=WRITE_TRIES)

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Write an object from a file."""
        send = partial(self._store.put_file, key, path)
        return patiently(send, least_tries=WRITE_TRIES) if self._whole_files else send()

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        """Create an object, once."""
        return self._store.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        """Replace a version, once."""
        return self._store.put_if_match(key, data, etag)

    def abandon_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> int:
        """Abort unfinished uploads."""
        return patiently(partial(self._store.abandon_uploads, prefix, is_ours))

    def delete(self, key: str) -> None:
        """Remove an object."""
        patiently(partial(self._store.delete, key))

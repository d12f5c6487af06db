"""What stores share: bodies that are already in memory, range arithmetic, delimiter pages."""

from collections.abc import Iterable, Iterator

from tools_utilities.object_store import Folder, ObjectInfo

PIECE_BYTES = 1 << 20
PAGE_ENTRIES = 1000


class BytesBody:
    """A body whose bytes are at hand."""

    def __init__(self, info: ObjectInfo, data: bytes) -> None:
        self.info = info
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        for offset in range(0, len(self._data), PIECE_BYTES):
            yield self._data[offset : offset + PIECE_BYTES]

    def close(self) -> None:
        """Nothing to give back."""


def clip_range(start: int, end: int | None, size_bytes: int) -> tuple[int, int]:
    """Return the part of [start, end) that an object of `size_bytes` has, as Python slices do."""
    if start < 0 or (end is not None and end < 0):
        raise ValueError(f"byte range {start}-{end}: offsets count from the start of the object")
    stop = size_bytes if end is None else min(end, size_bytes)
    start = min(start, size_bytes)
    return start, max(start, stop)


def folder_pages(entries: Iterable[ObjectInfo | str]) -> Iterator[Folder]:
    """Group entries (objects, and folders as text) into pages; no entries give one empty page."""
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    pages = 0
    for entry in entries:
        if len(objects) + len(prefixes) == PAGE_ENTRIES:
            yield Folder(objects=tuple(objects), prefixes=tuple(prefixes))
            pages += 1
            objects, prefixes = [], []
        if isinstance(entry, str):
            prefixes.append(entry)
        else:
            objects.append(entry)
    if objects or prefixes or not pages:
        yield Folder(objects=tuple(objects), prefixes=tuple(prefixes))

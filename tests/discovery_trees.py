"""Stores for the discovery tests: made of short descriptions, of real listings, or of nothing at all."""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import count, islice
from pathlib import Path

from tools_utilities.object_store import Folder, ObjectInfo, StoreSpec
from tools_utilities.object_stores._bodies import BytesBody, clip_range
from tools_utilities.object_stores.memory import MemoryStore

LISTINGS = Path(__file__).parent / "cases" / "files" / "listings"
_NAMES = count()


def new_store() -> MemoryStore:
    """Return an empty store of its own."""
    return MemoryStore(StoreSpec(uri=f"memory://discovery-{next(_NAMES)}"))


def store_of(objects: dict[str, bytes]) -> MemoryStore:
    """Return a store that holds `objects`."""
    store = new_store()
    for key, data in objects.items():
        store.put(key, data)
    return store


@cache
def jsonl(size_bytes: int) -> bytes:
    """Return valid JSON lines of exactly this size (nothing below 12 bytes is possible)."""
    line = json.dumps({"text": "x" * 51}).encode() + b"\n"
    whole, rest = divmod(size_bytes, len(line))
    if rest and rest < 14:
        whole, rest = whole - 1, rest + len(line)
    if whole < 0:
        return b"\n" * size_bytes
    tail = json.dumps({"text": "x" * (rest - 13)}).encode() + b"\n" if rest else b""
    return line * whole + tail


def csv(size_bytes: int) -> bytes:
    """Return valid CSV of exactly this size."""
    return (b"a,b\n" + b"1,2\n" * (size_bytes // 4 + 1))[: size_bytes - 1] + b"\n"


@cache
def _small_parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    table = pa.table({"a": [1]})
    pq.write_table(
        table, file, write_statistics=False, compression="none", use_dictionary=False,
        store_schema=False,
    )  # fmt: skip
    return file.getvalue()


def parquet(size_bytes: int) -> bytes:
    """Return a readable Parquet file of exactly this size, or noise where none is that small.

    The room is made between the pages and the footer, where nothing points to.
    """
    data = _small_parquet()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    if size_bytes < len(data):
        return b"\xee" * size_bytes
    return data[:-footer] + b"\0" * (size_bytes - len(data)) + data[-footer:]


_CONTENTS: dict[str, Callable[[int], bytes]] = {
    ".parquet": parquet,
    ".csv": csv,
    ".jsonl": jsonl,
    ".ndjson": jsonl,
}


def content(key: str, size_bytes: int) -> bytes:
    """Return bytes that the format of `key` reads, of exactly this size."""
    make = _CONTENTS.get(Path(key.lower()).suffix)
    return make(size_bytes) if make is not None and size_bytes else b"\xee" * size_bytes


def listed_store(name: str, broken: str) -> MemoryStore:
    """Return a store with the keys and sizes of a real listing; below `broken` nothing decodes."""
    store = new_store()
    for line in (LISTINGS / name).read_text(encoding="utf-8").splitlines():
        size, _, key = line.partition("\t")
        bad = bool(broken) and key.startswith(broken)
        store.put(key, b"\xee" * int(size) if bad else content(key, int(size)))
    return store


def tree(description: str) -> MemoryStore:
    """Return a store made of lines `KEY [SIZE] [xN] [broken]`; `{}` in a key counts up in `xN`."""
    store = new_store()
    for line in filter(None, map(str.strip, description.splitlines())):
        key, *rest = line.split()
        size = next((int(word) for word in rest if word.isdigit()), 2048)
        times = next((int(word[1:]) for word in rest if word[0] == "x"), 1)
        for number in range(times):
            name = key.format(number)
            data = b"\xee" * size if "broken" in rest else content(name, size)
            store.put(name, data)
    return store


class CountingStore(MemoryStore):
    """Counts requests as an S3 client makes them, and remembers what was read."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.requests: list[tuple[str, str]] = []

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Count a page of a thousand as one request."""
        return _count_pages(
            super().list(prefix, start_after=start_after), self.requests, ("list", prefix)
        )

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Count every page."""
        whole = MemoryStore(self.spec)  # lists without being counted again
        whole._objects = self._objects
        for page in whole.list_folder(prefix, max_pages=max_pages):
            self.requests.append(("list_folder", prefix))
            yield page

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> BytesBody:
        """Count a get."""
        self.requests.append(("get", key))
        return super().get(key, start=start, end=end, if_etag=if_etag)


def _count_pages(
    infos: Iterable[ObjectInfo], requests: list[tuple[str, str]], request: tuple[str, str]
) -> Iterator[ObjectInfo]:
    for i, info in enumerate(infos):
        if i % 1000 == 0:
            requests.append(request)
        yield info


class HugeStore(CountingStore):
    """Ten folders of a hundred thousand shards each, made up as they are asked for."""

    num_shards = 100_000
    names = tuple(f"set-{chr(97 + i)}" for i in range(10))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield keys from where they are asked for, without making all of them."""
        self.requests.append(("list", prefix))
        folder, _, name = prefix.rpartition("/")
        return (
            info
            for info in self._shards(f"{folder}/", start_after)
            if info.key.startswith(f"{folder}/{name}")
        )

    def _shards(self, folder: str, start_after: str) -> Iterator[ObjectInfo]:
        head = f"{folder}shard-"
        if start_after < head:
            first = 0
        elif start_after.startswith(head):
            digits = start_after[len(head) : len(head) + 6]
            first = int(digits) + 1 if digits.isdecimal() else self.num_shards
        else:
            first = self.num_shards
        for i in range(first, self.num_shards):
            key = f"{head}{i:06d}.jsonl"
            yield ObjectInfo(key=key, size_bytes=len(jsonl(2048)), etag=f"v{i}")
        if start_after < f"{folder}tail-0.jsonl":
            yield ObjectInfo(key=f"{folder}tail-0.jsonl", size_bytes=10, etag="t")

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Yield the ten folders, or pages of one."""
        pages = self._pages(prefix)
        for page in islice(pages, max_pages):
            self.requests.append(("list_folder", prefix))
            yield page

    def _pages(self, prefix: str) -> Iterator[Folder]:
        if not prefix:
            yield Folder(objects=(), prefixes=tuple(f"{name}/" for name in self.names))
            return
        shards = self._shards(prefix, "")
        while page := tuple(islice(shards, 1000)):
            yield Folder(objects=page, prefixes=())

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> BytesBody:
        """Return a range of a shard; all hold the same."""
        self.requests.append(("get", key))
        data = jsonl(2048)
        start, end = clip_range(start, end, len(data))
        info = ObjectInfo(key=key, size_bytes=len(data), etag=if_etag)
        return BytesBody(info, data[start:end])

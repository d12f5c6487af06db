"""The cells of the fetch matrix: a fault, when it strikes, an object's size, and what is warm."""

import hashlib
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from tests import faults
from tests.fakes import StubS3
from tests.fault_proxy import ALWAYS, FaultProxy, Rule, Where
from tools_utilities.errors import AccessError, ObjectNotFoundError, ObjectReplacedError, QuarkError
from tools_utilities.fetch_attempt import FetchLimits
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

_SLACK_SECONDS = 3.0
"""Of this machine, which may be busy; not scaled."""
_LARGE_BYTES = 10 << 20
PAGES = 1_050
"""Objects below one prefix, so that its listing has a second page."""
STATES = ("cold", "warm", "uncached", "cached")
"""Nothing asked before; a connection in use; the same without a cache; the object in the cache."""
TIMES = {"once": 1, "three times": 3, "always": ALWAYS}
FINAL = (AccessError, ObjectNotFoundError, ObjectReplacedError)
"""What no waiting mends: told after one answer, and gone with its cause."""
LISTED = (
    *("503", "429", "500", "reset before", "silent", "301 region", "400 region"),
    *("expired token", "clock skew", "repeated page", "reset in body", "short body", "stall"),
    "drip",
)
_GOT = tuple(
    name
    for name, kind in faults.FAULTS.items()
    if kind.where not in (faults.PUTS, faults.NEXT_PAGES)
)


@dataclass(frozen=True)
class Cell:
    """One case."""

    phase: str
    """list or get."""
    fault: str
    times: str
    num_bytes: int
    state: str

    @property
    def name(self) -> str:
        """Name the case."""
        return f"{self.phase} {self.fault}, {self.times}, {self.num_bytes} bytes, {self.state}"

    @property
    def key(self) -> str:
        """Return the object of this case alone."""
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:16]
        pages = "pages/" if self.fault == "repeated page" else ""
        return f"{self.phase}/{pages}{digest}/{self.num_bytes}.bin"

    @property
    def folder(self) -> str:
        """Return the prefix that this case alone lists."""
        return self.key.rpartition("/")[0] + "/"


@cache
def content(num_bytes: int) -> bytes:
    """Return the bytes of every object of a size."""
    return random.Random(num_bytes).randbytes(num_bytes)


def got_cells(sizes: list[int]) -> list[Cell]:
    """Return every case of reading an object; the largest size only with connections in use."""
    return [
        Cell("get", fault, times, size, state)
        for fault in _GOT
        for times in TIMES
        for size in sizes
        for state in STATES
        if size <= _LARGE_BYTES or state == "warm"
    ]


def listed_cells(state: str) -> list[Cell]:
    """Return every case of listing."""
    return [Cell("list", fault, times, 1, state) for fault in LISTED for times in TIMES]


def few_of_each(cells: list[Cell], number: int, seed: int) -> list[Cell]:
    """Draw so many cases of each fault and each number of times; half of them have a body to break."""
    rng = random.Random(seed)
    kinds = sorted({(cell.fault, cell.times) for cell in cells})
    drawn = []
    for kind in kinds:
        of_kind = [cell for cell in cells if (cell.fault, cell.times) == kind]
        telling = [cell for cell in of_kind if cell.num_bytes > 1 and cell.state != "cached"]
        chosen = rng.sample(telling, number // 2)
        rest = [cell for cell in of_kind if cell not in chosen]
        drawn += chosen + rng.sample(rest, number - len(chosen))
    return drawn


def listed_keys(folder: str) -> list[str]:
    """Return what a folder of a listing's case holds."""
    number = PAGES if folder.startswith("list/pages/") else 3
    return [f"{folder}{number:05d}" for number in range(number)]


class _Objects(dict[str, bytes]):
    """An object for each case that reads one; every key below `list/` is there too."""

    def __missing__(self, key: str) -> bytes:
        if key.startswith("list/"):
            return b"x"
        raise KeyError(key)


class MatrixS3(StubS3):
    """What the cases read: an object each, and below `list/…/` as many as two pages hold."""

    def __init__(self, cells: list[Cell]) -> None:
        super().__init__({})
        self.objects = _Objects({cell.key: content(cell.num_bytes) for cell in cells})
        self.objects["warm/0"] = b"warm"

    def _entries(self, prefix: str, delimiter: str) -> Iterator[str]:
        if not prefix.startswith("list/"):
            return super()._entries(prefix, delimiter)
        return iter(listed_keys(prefix))


class Bench:
    """Where the cases run; any number of threads may run some at once."""

    def __init__(self, proxy: FaultProxy, folder: Path, limits: FetchLimits, scale: float) -> None:
        """Take the proxy before a `MatrixS3`, and what to make of the real time limits."""
        self.proxy, self.limits, self.scale = proxy, limits, scale
        self._folder = folder
        self._shared: dict[str, StreamingManager] = {}
        self._lock = threading.Lock()

    def run(self, cell: Cell) -> None:
        """Run one case; an AssertionError says what did not hold."""
        data = content(cell.num_bytes)
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        info = ObjectInfo(key=cell.key, size_bytes=len(data), etag=etag)
        manager = self._manager("cold") if cell.state == "cold" else self._warm(cell.state)
        if cell.state == "cached":
            manager.open_shard(info).close()
        rule = self._inject(cell)
        began = time.monotonic()
        error = self._try(manager, cell, info)
        took = (time.monotonic() - began) / self.scale
        self.proxy.remove(rule)
        limit = 35.0 if cell.fault == "silent" else 120.0
        assert took <= limit + _SLACK_SECONDS / self.scale, f"took {took:.0f} s of {limit:g} s"
        if error is None:
            idle = cell.state == "cached" or not cell.num_bytes
            assert rule.fired or idle, "the fault did not strike"
        elif cell.times != "always":
            assert isinstance(error, FINAL), f"not survived: {type(error).__name__}: {error}"
        # What a run does that is resumed.
        again = self._try(self._warm("again"), cell, info)
        assert again is None, f"cannot be resumed: {again}"

    def _warm(self, name: str) -> StreamingManager:
        """Return the manager of a state, whose connections have been used."""
        with self._lock:
            if name not in self._shared:
                manager = self._shared[name] = self._manager(name)
                manager.open_shard(manager.store.head("warm/0")).close()
            return self._shared[name]

    def _manager(self, state: str) -> StreamingManager:
        folder = self._folder / ("cold" if state == "cold" else "warm")
        return StreamingManager.for_store(
            StoreSpec(uri="s3://bucket", endpoint_url=self.proxy.url),
            cache_dir=None if state == "uncached" else str(folder),
            cache_bytes=0 if state == "uncached" else 1 << 30,
            limits=self.limits,
        )

    def _inject(self, cell: Cell) -> Rule:
        kind = faults.FAULTS[cell.fault]
        if cell.phase == "list":
            second = "continuation-token=|start-after=" if cell.fault == "repeated page" else ""
            quoted = cell.folder.replace("/", "(/|%2F)")
            where = Where("GET", listing=True, query=f"(?=.*prefix={quoted}).*({second})")
        else:
            where = Where(kind.where.methods or "GET HEAD", f"^{cell.key}$", listing=False)
        return self.proxy.inject(kind.make(), where, times=TIMES[cell.times])

    def _try(self, manager: StreamingManager, cell: Cell, info: ObjectInfo) -> QuarkError | None:
        """Read the object, or the listing, and compare; return the error it ended in."""
        try:
            if cell.phase == "list":
                found = [info.key for info in manager.store.list(cell.folder)]
                expected = listed_keys(cell.folder)
                assert found == expected, f"WRONG LISTING: {len(found)} of {len(expected)} keys"
                return None
            shard = manager.open_shard(info)
            data = bytes(shard.read(0, info.size_bytes))
            shard.close()
        except QuarkError as error:
            return error
        assert data == content(cell.num_bytes), "WRONG BYTES"
        return None


def scaled(scale: float, **changes: object) -> FetchLimits:
    """Return the usual limits with every time shortened."""
    usual = FetchLimits()
    times = {
        name: getattr(usual, name) * scale
        for name in usual.__struct_fields__
        if name.endswith("_seconds")
    }
    return msgspec.structs.replace(usual, **{**times, **changes})

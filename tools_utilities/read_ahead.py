"""Fetches what is read next, in order, on threads of its own, within a byte budget.

An object counts against the budget from the start of its fetch until a reader asks for it. Threads
live only while there is something to fetch. An error is kept for the reader: it is not met twice.
"""

import logging
from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread

import msgspec

from tools_utilities.background import BACKGROUND
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import ObjectInfo

_LOGGER = logging.getLogger(__name__)
_SET_ASIDE = 4096
"""Objects that are remembered as fetched though nobody has asked for them yet."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An object to read ahead."""

    key: str
    info: ObjectInfo | None
    """None: to be asked of the store."""


class Flight:
    """One object on its way, or arrived and not yet asked for."""

    def __init__(self, wanted: Wanted) -> None:
        self.info = wanted.info
        self.num_bytes = wanted.info.size_bytes if wanted.info else 0
        self.error: BaseException | None = None
        self.fetched = False
        self.landed = Event()


class ReadAhead:
    """The order, the flights and the threads of one manager in one process."""

    def __init__(
        self,
        head: Callable[[str], ObjectInfo],
        obtain: Callable[[ObjectInfo], bool],
        *,
        threads: int,
        budget_bytes: int,
    ) -> None:
        """Take `obtain`, which brings an object near and says whether that took a fetch."""
        self._head = head
        self._obtain = obtain
        self._max_threads = threads
        self._budget_bytes = budget_bytes
        self._lock = Lock()
        self._order: dict[str, Wanted] = {}
        self._flights: dict[str, Flight] = {}
        self._set_aside: dict[str, Flight] = {}
        self._flying_bytes = 0
        self._threads = 0

    def set_order(self, wanted: Iterable[Wanted]) -> None:
        """Replace the order; what has arrived and is no longer wanted stops counting."""
        order: dict[str, Wanted] = {}
        for item in wanted:
            order.setdefault(item.key, item)
        with self._lock:
            self._order = order
            for key in list(self._flights):
                flight = self._flights[key]
                if key not in order and flight.landed.is_set():
                    self._remove(key)
                    self._keep_in_mind(key, flight)
            self._start_threads()

    def add(self, wanted: Iterable[Wanted]) -> None:
        """Append to the order."""
        with self._lock:
            for item in wanted:
                self._order.setdefault(item.key, item)
            self._start_threads()

    def claim(self, key: str) -> Flight | None:
        """Return the flight of an object that a reader asks for now, and stop counting it."""
        with self._lock:
            self._order.pop(key, None)
            flight = self._flights.get(key)
            if flight is not None:
                self._remove(key)
            else:
                flight = self._set_aside.pop(key, None)
            self._start_threads()
            return flight

    def _keep_in_mind(self, key: str, flight: Flight) -> None:
        """Remember that an object was fetched: whoever opens it later has not found it by luck."""
        if flight.fetched:
            self._set_aside[key] = flight
            if len(self._set_aside) > _SET_ASIDE:
                del self._set_aside[next(iter(self._set_aside))]

    def _remove(self, key: str) -> None:
        self._flying_bytes -= self._flights.pop(key).num_bytes

    def _start_threads(self) -> None:
        startable = sum(1 for _ in self._startable())
        for _ in range(min(startable, self._max_threads - self._threads)):
            self._threads += 1
            Thread(target=self._work, name="quark-read-ahead", daemon=True).start()

    def _startable(self) -> Iterable[Wanted]:
        """Yield what may be fetched now, in order, at most one for each thread."""
        room, number = self._budget_bytes - self._flying_bytes, 0
        for item in self._order.values():
            size = item.info.size_bytes if item.info else 0
            if item.key in self._flights:
                continue
            room -= size
            # In order: nothing later goes ahead of what does not fit yet. One alone always may.
            alone = not self._flights and not number
            if (room < 0 and not alone) or number >= self._max_threads:
                return
            number += 1
            yield item

    def _work(self) -> None:
        with BACKGROUND.piece():
            self._fetch_all()

    def _fetch_all(self) -> None:
        while True:
            BACKGROUND.check()
            with self._lock:
                item = next(iter(self._startable()), None)
                if item is None:
                    self._threads -= 1
                    return
                flight = self._flights[item.key] = Flight(item)
                self._flying_bytes += flight.num_bytes
            self._fly(item, flight)

    def _fly(self, item: Wanted, flight: Flight) -> None:
        try:
            info = item.info or self._head(item.key)
            self._learn(item.key, flight, info)
            flight.fetched = self._obtain(info)
        except QuarkError as error:
            flight.error = error
            _LOGGER.info("reading ahead: %s", error)
        except BaseException as error:  # noqa: BLE001 - raised again to whoever reads the object
            flight.error = error
        finally:
            flight.landed.set()

    def _learn(self, key: str, flight: Flight, info: ObjectInfo) -> None:
        with self._lock:
            flight.info = info
            if self._flights.get(key) is flight:
                self._flying_bytes += info.size_bytes - flight.num_bytes
                flight.num_bytes = info.size_bytes

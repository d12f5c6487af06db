"""A run's data played through on paper: fetches, cache and waiting, window by window.

One event is a reader entering a window of splits, which are opened (so their whole objects must be there)
before the step that needs them. Per window, not per sample or request: a million objects take seconds.

What is as in the stream: objects are announced two windows ahead of each lane and fetched in order of need
by `connections` threads within a budget of bytes, opened three windows ahead by four more, leased while open,
evicted by the cache's own policy; all ranks wait for the slowest at each step. Objects from 48 MiB on come in
parts side by side.

What is approximate: threads that open splits fetch only what no thread that reads ahead is free for (of fewer
than six connections a stream that waits for its link was up to a quarter faster); a fetch takes its latency,
then its bytes at the rate of a connection, and all fetches of a machine together go at the machine's rate, in
the order they began; retries, decoding, the disk and other users of the link are left out; an epoch's samples
are those of equal bytes.
"""

from heapq import heappop, heappush, heapreplace

import numpy as np

from brain.ml.dataset_shards.epoch_reader import WINDOWS_AHEAD
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.window_reader import NUM_OPEN_THREADS
from resource_manager.simulated_cache import SimulatedCache, Uses
from resource_manager.simulated_link import EpochFigures, Link, RunSettings
from resource_manager.simulated_order import Epoch, SimulatedOrder
from tools_utilities.scripts.s3_streaming_manager import (
    AHEAD_SHARE,
    MEMORY_BYTES,
    READ_AHEAD_BYTES,
)
from tools_utilities.use_plan import MAX_PLANNED

POOL_SHARE = 4
"""Without a cache whole objects are held in memory, none larger than a quarter of what there is for them."""
KEYS_PER_PAGE = 1000


class _Node:
    """One machine: its cache, its link, what it has fetched."""

    def __init__(
        self, cache: SimulatedCache, link: Link, anywhere: set[int], *, pooled: bool
    ) -> None:
        """Begin with nothing.

        Args:
            cache: Its cache.
            link: To the store.
            anywhere: What any machine has fetched; all machines add to it.
            pooled: Whether the cache is a pool of memory, which takes no large objects.
        """
        self._anywhere = anywhere
        self.cache, self._link, self._pooled = cache, link, pooled
        self._link_free = 0.0
        self._fetched: set[int] = set()
        self.fetched_bytes = self.again_bytes = self.elsewhere_bytes = self.requests = 0

    def is_ranged(self, number: int) -> bool:
        """Tell whether an object is read by ranges, never whole."""
        return self._pooled and self.cache.sizes[number] * POOL_SHARE > self.cache.budget_bytes

    def transfer(self, number: int, num_bytes: int, begin: float) -> float:
        """Take bytes of an object from the store; returns when they are there."""
        link = self._link
        self.requests += link.requests_for(num_bytes)
        self.fetched_bytes += num_bytes
        if number in self._fetched:
            self.again_bytes += num_bytes
        elif number in self._anywhere:
            self.elsewhere_bytes += num_bytes
        self._fetched.add(number)
        self._anywhere.add(number)
        own = begin + link.fetch_seconds(num_bytes)
        shared = max(self._link_free, begin + link.latency_seconds)
        self._link_free = shared + num_bytes / link.node_bytes_per_second
        return max(own, self._link_free)


class _Reader:
    """One rank's reading ahead (or that of all ranks of a machine that are alike)."""

    def __init__(self, node: _Node, connections: int, now: float) -> None:
        """`connections` that read ahead; 0: what is opened is fetched then, one after the other."""
        self.node = node
        self._ahead = [now] * connections
        """When each thread that reads ahead is free …"""
        self._openers = [now] * (NUM_OPEN_THREADS if connections else 1)
        """… and each that opens splits, which fetches what no other thread has begun."""
        self.pending: list[int] = []
        """Windows that are announced and not asked for in full, the one needed first in front."""
        self.flights: set[int] = set()
        """Objects that count against the budget."""
        self.flying_bytes = 0
        self.windows: list[int] = []
        self.num_opened = 0
        self.open_bytes = self.most_open_bytes = 0

    def is_free(self, now: float) -> bool:
        """Tell whether a thread that reads ahead can begin by now."""
        return bool(self._ahead) and self._ahead[0] <= now

    def fetch_ahead(self, number: int, since: float) -> float:
        """Fetch an object that was asked for at `since`; returns when it is there."""
        end = self.node.transfer(number, self.node.cache.sizes[number], max(since, self._ahead[0]))
        heapreplace(self._ahead, end)
        return end

    def fetch_now(self, number: int, num_bytes: int, now: float) -> float:
        """Fetch what is opened now, by whichever thread is free first; returns when it is there."""
        threads = self._openers
        if self._ahead and self._ahead[0] <= threads[0]:
            threads = self._ahead
        end = self.node.transfer(number, num_bytes, max(now, threads[0]))
        heapreplace(threads, end)
        if threads is self._ahead:
            self.wait(end, now)
        return end

    def wait(self, arrival: float, now: float) -> None:
        """Have a thread that opens splits wait for an object."""
        heapreplace(self._openers, max(now, self._openers[0], arrival))


class SimulatedRun:
    """Plays epoch after epoch; the caches stay."""

    def __init__(self, order: SimulatedOrder, settings: RunSettings) -> None:
        """Begin with empty caches."""
        self._order, self._settings = order, settings
        self._sizes: list[int] = order.data.object_bytes.tolist()
        cached = settings.cache_bytes > 0
        known = "nothing"
        if cached and settings.cache_policy == "next_use":
            # A partition's order is announced, but not planned.
            planned = order.is_by_turns and len(self._sizes) <= MAX_PLANNED
            known = "plan" if planned else "announced"
        self._planned = known == "plan"
        budget = settings.cache_bytes if cached else MEMORY_BYTES
        anywhere: set[int] = set()
        self._nodes = [
            _Node(
                SimulatedCache(self._sizes, budget, known),
                settings.link,
                anywhere,
                pooled=not cached,
            )
            for _ in range(max(order.node_of) + 1)
        ]
        self._ahead_bytes = READ_AHEAD_BYTES
        if cached:
            self._ahead_bytes = min(READ_AHEAD_BYTES, settings.cache_bytes // AHEAD_SHARE)
        self._now = 0.0
        self._number = 0
        self._next: Epoch | None = None

    @property
    def listing_seconds(self) -> float:
        """What listing the objects takes, page after page."""
        pages = -(-len(self._sizes) // KEYS_PER_PAGE)
        return pages * self._settings.link.latency_seconds

    def epoch(self) -> EpochFigures:
        """Play the next epoch."""
        epoch = self._next or self._order.epoch(self._number)
        begun, listing = self._now, 0.0 if self._number else self.listing_seconds
        self._number += 1
        if self._planned:
            self._next = self._order.epoch(self._number)
            self._plan_uses(epoch, self._next)
        before = self._sums()
        connections = 0 if self._settings.prefetch == 0 else self._settings.link.connections
        readers = [
            _Reader(self._nodes[number], connections, begun + listing)
            for number in self._order.node_of
        ]
        played = _Pass(epoch, readers, self._settings, self._ahead_bytes)
        first, stalled = played.play(begun + listing)
        stalled += listing
        self._now = begun + epoch.num_steps * self._settings.step_seconds + stalled
        fetched, again, elsewhere, requests = (self._sums() - before).tolist()
        # Machines that are alike fetch alike: all but one of them what another has.
        alike = self._order.alike_nodes
        elsewhere += (fetched - again - elsewhere) // alike * (alike - 1)
        return EpochFigures(
            steps=epoch.num_steps,
            seconds=self._now - begun,
            stall_seconds=stalled,
            first_batch_seconds=first - begun,
            fetched_bytes=fetched,
            again_bytes=again,
            elsewhere_bytes=elsewhere,
            requests=requests,
            open_bytes=(
                max(reader.most_open_bytes for reader in readers)
                if self._order.coarser == 1
                else self._order.most_open_bytes
            ),
            cached_bytes=max(node.cache.peak_bytes for node in self._nodes),
        )

    def _sums(self) -> Indices:
        """Return bytes fetched, of those again, or elsewhere before, and requests, of all so far."""
        sums = [
            (node.fetched_bytes, node.again_bytes, node.elsewhere_bytes, node.requests)
            for node in self._nodes
        ]
        total: Indices = np.array(sums, np.int64).sum(axis=0) * self._order.alike_nodes
        return total

    def _plan_uses(self, epoch: Epoch, following: Epoch) -> None:
        """Tell each cache when its machine uses each object, in this epoch and first in the next."""
        for number, node in enumerate(self._nodes):
            node.cache.plan(self._uses(epoch, number), self._uses(following, number))

    def _uses(self, epoch: Epoch, node: int) -> Uses:
        places = np.repeat(np.arange(len(epoch.steps)), np.diff(epoch.firsts))
        own = np.array(self._order.node_of)[epoch.readers[places]] == node
        return Uses(epoch.objects[own], places[own], len(epoch.steps))


class _Pass:
    """One epoch being played."""

    def __init__(
        self, epoch: Epoch, readers: list[_Reader], settings: RunSettings, budget_bytes: int
    ) -> None:
        """Begin; `budget_bytes`: what each reader may have fetched that nobody has asked for."""
        self._epoch, self._readers, self._settings = epoch, readers, settings
        self._budget_bytes = budget_bytes
        self._owners = [readers[number] for number in epoch.readers.tolist()]
        self._sequence = []
        for window, reader in enumerate(self._owners):
            self._sequence.append(len(reader.windows))
            reader.windows.append(window)
        self._firsts = epoch.firsts.tolist()
        self._objects, self._split_bytes = epoch.objects.tolist(), epoch.split_bytes.tolist()
        self._before, self._after_next = epoch.before.tolist(), epoch.after_next.tolist()
        self._ready = [0.0] * len(self._owners)
        self._since = [0.0] * len(self._owners)
        """When each window was announced, or found no room."""

    def play(self, started: float) -> tuple[float, float]:
        """Go through all windows; returns when the first batch was there, and the seconds waited."""
        step_seconds, stalled, first = self._settings.step_seconds, 0.0, started
        if self._settings.prefetch != 0:
            self._open_first(started)
        for window, step in enumerate(self._epoch.steps.tolist()):
            reader, now = self._owners[window], started + step * step_seconds + stalled
            if self._before[window] >= 0:
                self._close(self._before[window], reader)
            self._look_ahead(window, reader, now)
            stalled += max(0.0, self._ready[window] - now)
            if not step:
                first = started + stalled
        for window in self._last_windows():
            self._close(window, self._owners[window])
        return first, stalled

    def _last_windows(self) -> list[int]:
        before = self._epoch.before
        left = np.ones(len(before), bool)
        left[before[before >= 0]] = False
        found: list[int] = left.nonzero()[0].tolist()
        return found

    def _open_first(self, now: float) -> None:
        """Ask for the first windows of all lanes, as the stream does before anything else."""
        opening = self._epoch.opening.tolist()
        for reader in self._readers:
            asked = {window for window in reader.windows if opening[window]}
            third = {self._after_next[window] for window in asked if self._before[window] < 0}
            for window in sorted((asked | third) - {-1}):
                self._announce(window, reader, now)
            self._fetch_ahead(reader, now)
            while reader.num_opened < len(reader.windows):
                if reader.windows[reader.num_opened] not in asked:
                    break
                self._open_next(reader, now)

    def _look_ahead(self, window: int, reader: _Reader, now: float) -> None:
        """Read ahead what one more window of this lane needs, and open those that come next."""
        ahead = WINDOWS_AHEAD
        if self._settings.prefetch == 0:
            ahead = 0
        elif self._after_next[window] >= 0 and self._before[window] >= 0:
            self._announce(self._after_next[window], reader, now)
        if ahead:
            self._fetch_ahead(reader, now)
        last = min(len(reader.windows), self._sequence[window] + ahead + 1)
        while reader.num_opened < last:
            self._open_next(reader, now)

    def _announce(self, window: int, reader: _Reader, now: float) -> None:
        heappush(reader.pending, window)
        self._since[window] = now
        wanted = reader.node.cache.wanted
        for number in self._objects[self._firsts[window] : self._firsts[window + 1]]:
            wanted[number] = wanted.get(number, 0) + 1

    def _fetch_ahead(self, reader: _Reader, now: float) -> None:
        """Begin what was free to begin by now, in order of need, as far as the budget goes."""
        most = self._settings.prefetch or len(self._objects)
        cache = reader.node.cache
        while reader.pending:
            window = reader.pending[0]
            if self._sequence[window] >= reader.num_opened:
                for number in self._objects[self._firsts[window] : self._firsts[window + 1]]:
                    if number in reader.flights:
                        continue
                    flying = reader.flying_bytes + cache.sizes[number]
                    full = flying > self._budget_bytes or len(reader.flights) >= most
                    if (full and reader.flights) or not reader.is_free(now):
                        # What ends the wait for room is an opening, which is now at the earliest.
                        self._since[window] = now if full else self._since[window]
                        return
                    reader.flights.add(number)
                    reader.flying_bytes = flying
                    lacking = number not in cache.arrival and not reader.node.is_ranged(number)
                    if lacking and cache.make_room(number, now, ahead=True):
                        cache.add(number, reader.fetch_ahead(number, self._since[window]))
            heappop(reader.pending)

    def _open_next(self, reader: _Reader, now: float) -> None:
        """Open a window: what is not there is fetched now."""
        window = reader.windows[reader.num_opened]
        reader.num_opened += 1
        node, ready = reader.node, now
        cache = node.cache
        for at in range(self._firsts[window], self._firsts[window + 1]):
            number = self._objects[at]
            cache.wanted[number] = cache.wanted.get(number, 1) - 1
            if number in reader.flights:
                reader.flights.remove(number)
                reader.flying_bytes -= cache.sizes[number]
            arrival = cache.arrival.get(number, -1.0)
            if arrival >= 0:
                reader.wait(arrival, now)
            elif not node.is_ranged(number) and cache.make_room(number, now, ahead=False):
                arrival = reader.fetch_now(number, cache.sizes[number], now)
                cache.add(number, arrival)
            else:
                arrival = reader.fetch_now(number, self._split_bytes[at], now)
            cache.use(number, now)
            ready = max(ready, arrival)
            reader.open_bytes += self._split_bytes[at]
        reader.most_open_bytes = max(reader.most_open_bytes, reader.open_bytes)
        self._ready[window] = ready

    def _close(self, window: int, reader: _Reader) -> None:
        for at in range(self._firsts[window], self._firsts[window + 1]):
            reader.node.cache.release(self._objects[at])
            reader.open_bytes -= self._split_bytes[at]

"""Counts what several workers ask of the store until every shard is claimed and completed, once.

The real search, leases and notes of each worker run in a thread of its own, one at a time: a virtual clock
says whose request is answered next. A seed decides how long each takes, and where lost races lead.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tools_utilities.claim_notes import DoneNotes
from tools_utilities.claim_search import ShardSearch, claim_versions
from tools_utilities.manifest import Chunk, Shard
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.object_stores._bodies import BytesBody
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.shard_lease import Clock, ShardLease

REQUEST_SECONDS = 0.01
POLL_SECONDS = 5.0
_Answer = TypeVar("_Answer")


@dataclass
class Actor:
    """One worker's thread, and when its turn is."""

    number: int
    wake_at: float = 0.0
    at_once: int = 1
    """Requests in flight together, which take the time of one."""
    finished: bool = False
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    completed: list[int] = field(default_factory=list)


class Race:
    """So many workers on so many shards, of which each takes up to `work_seconds`."""

    def __init__(
        self,
        seed: int,
        *,
        num_workers: int,
        num_shards: int,
        work_seconds: float = 0.0,
        notes_type: type[DoneNotes] = DoneNotes,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.objects = MemoryStore(StoreSpec(uri=f"memory://race-{id(self):x}"))
        self.requests: Counter[str] = Counter()
        self.work_seconds = work_seconds
        self.notes_type = notes_type
        self.shards = [
            Shard(shard_id=number, chunks=(Chunk(key=f"{number}.jsonl", num_samples=1),))
            for number in range(num_shards)
        ]
        self.actors = [Actor(number) for number in range(num_workers)]
        self.stepped = threading.Semaphore(0)
        self.failures: list[BaseException] = []

    def run(self) -> float:
        """Return requests a shard when all is done."""
        for actor in self.actors:
            threading.Thread(target=self._body, args=(actor,), daemon=True).start()
        while waiting := [actor for actor in self.actors if not actor.finished]:
            actor = min(waiting, key=lambda actor: (actor.wake_at, actor.number))
            self.now = actor.wake_at
            actor.baton.release()
            self.stepped.acquire()
        if self.failures:
            raise self.failures[0]
        completed = sorted(shard for actor in self.actors for shard in actor.completed)
        assert completed == list(range(len(self.shards)))
        return sum(self.requests.values()) / len(self.shards)

    def turn(self, actor: Actor, seconds: float) -> None:
        """Let so much time go by for one worker."""
        actor.wake_at = self.now + seconds
        self.stepped.release()
        actor.baton.acquire()

    def _body(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            self._work(actor)
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            self.failures.append(error)
        finally:
            actor.finished = True
            self.stepped.release()

    def _work(self, actor: Actor) -> None:
        store = CountedStore(self, actor)
        clock = Clock(
            now=lambda: self.now,
            sleep=lambda seconds: self.turn(actor, seconds),
            jitter=self.random.random,
        )
        leases: dict[int, ShardLease] = {}

        def lease_of(shard_id: int) -> ShardLease:
            if shard_id not in leases:
                key = f"shard_{shard_id:03d}/claim.json"
                leases[shard_id] = ShardLease(store, key, f"host/{actor.number}/1", clock=clock)  # type: ignore[arg-type] # what a lease calls
            return leases[shard_id]

        search = OneThreadSearch(
            self.shards,
            lease_of,
            versions=lambda: claim_versions(store, ""),  # type: ignore[arg-type] # lists
            before_claim=lambda _: store.ask("get metadata", lambda: None),
            jitter=clock.jitter,
            now=clock.now,
            notes=self.notes_type(store, ""),  # type: ignore[arg-type] # gets and puts
        )
        search.actor = actor
        while not all(search.is_done(shard.shard_id) for shard in self.shards):
            shard = search.claim(None)
            if shard is None:
                self.turn(actor, POLL_SECONDS)
                continue
            store.ask("put metadata", lambda: None)
            self.turn(actor, self.work_seconds * self.random.random())
            assert lease_of(shard.shard_id).complete()
            store.ask("put metadata", lambda: None)
            actor.completed.append(shard.shard_id)


class OneThreadSearch(ShardSearch):
    """Reads several records one after another, in the time of one."""

    actor: Actor

    def look_at(self, leases: Sequence[ShardLease]) -> None:
        self.actor.at_once = len(leases)
        for lease in leases:
            lease.look()
        self.actor.at_once = 1


class CountedStore:
    """What leases, notes and listings ask of the store, in the worker's turn."""

    def __init__(self, race: Race, actor: Actor) -> None:
        self.race, self.actor = race, actor

    def ask(self, kind: str, act: Callable[[], _Answer]) -> _Answer:
        """Count a request and answer it when its time has come."""
        race = self.race
        race.requests[kind] += 1
        seconds = REQUEST_SECONDS * race.random.uniform(0.5, 1.5)
        race.turn(self.actor, seconds / self.actor.at_once)
        return act()

    def get(self, key: str) -> BytesBody:
        return self.ask(f"get {kind_of(key)}", lambda: self.race.objects.get(key))

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        put = self.race.objects.put_if_absent
        return self.ask(f"put {kind_of(key)}", lambda: put(key, data))

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        put = self.race.objects.put_if_match
        return self.ask(f"put {kind_of(key)}", lambda: put(key, data, etag))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.ask("list", lambda: self.race.objects.list(prefix))


def kind_of(key: str) -> str:
    return "record" if key.endswith("claim.json") else "notes"

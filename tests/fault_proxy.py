r"""A proxy that stands before an S3 server (SeaweedFS, moto) and breaks what it is told to break.

    with FaultProxy(weed_endpoint) as proxy:
        proxy.inject(faults.slow_down())                                  # the next request
        proxy.inject(faults.reset_in_body(100), Where("GET", r"\.jsonl$"), times=3)
        proxy.inject(faults.silent(), times=ALWAYS, after=10, chance=0.02, seed=7)
        store = open_store(StoreSpec(uri="s3://bucket", endpoint_url=proxy.url))
        ...
        proxy.fired["slow down"], proxy.log[-1].sent_bytes

Requests are forwarded byte for byte, the Host header too, so that signatures hold. A request without
a fault streams through. `tests/faults.py` holds the faults; a new one is an `async` function of an
`Exchange`. It runs in a thread of its own, so that processes and blocking clients can talk to it.
"""

import asyncio
import contextlib
import random
import re
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from tests.fakes import Request
from tests.fault_exchange import (
    Connection,
    Exchange,
    Logged,
    Response,
    is_listing,
    read_request,
)

ALWAYS = sys.maxsize
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Where:
    """Which requests a rule is for."""

    methods: str = ""
    """Names between blanks, `GET HEAD`; empty: every one."""
    key: str = ""
    """Searched in the decoded key as a regular expression."""
    listing: bool | None = None
    """Only listings, or only what is none."""
    query: str = ""
    """Searched in the query as it was sent."""

    def matches(self, request: Request) -> bool:
        """Say whether a request is meant."""
        asked = self.methods.split()
        return (
            (not asked or request.method in asked)
            and (self.listing is None or self.listing == is_listing(request))
            and re.search(self.key, request.key) is not None
            and re.search(self.query, urlsplit(request.target).query) is not None
        )


ANYTHING = Where()
Fault = Callable[[Exchange], Awaitable[None]]
"""Answers one request in its own way, or not at all."""


@dataclass
class Rule:
    """A fault, and when it strikes."""

    fault: Fault
    where: Where
    times: int
    after: int
    """So many matching requests go well first."""
    chance: float
    each_key: bool
    """`times` and `after` count for every key on its own."""
    random: random.Random
    fired: int = 0
    _seen: Counter[str] = field(default_factory=Counter)
    _struck: Counter[str] = field(default_factory=Counter)

    def strikes(self, request: Request) -> bool:
        """Say whether it is this request's turn; counts it."""
        if not self.where.matches(request):
            return False
        key = request.key if self.each_key else ""
        self._seen[key] += 1
        due = self._seen[key] > self.after and self._struck[key] < self.times
        if not due or (self.chance < 1 and self.random.random() >= self.chance):
            return False
        self._struck[key] += 1
        self.fired += 1
        return True


class FaultProxy:
    """The server; `url` is what clients are told, `log` and `fired` what happened."""

    def __init__(self, upstream: str) -> None:
        """Stand before the server at `upstream`, `http://host:port`."""
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self.url = ""
        self.log: list[Logged] = []
        self.fired: Counter[str] = Counter()
        self.listings: dict[str, Response] = {}
        """Bucket and prefix → the last page of it that was sent."""
        self._rules: list[Rule] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def inject(
        self,
        fault: Fault,
        where: Where = ANYTHING,
        *,
        times: int = 1,
        after: int = 0,
        chance: float = 1.0,
        each_key: bool = False,
        seed: int = 0,
    ) -> Rule:
        """Add a fault; of several whose turn it is, the one that was added first strikes."""
        rule = Rule(fault, where, times, after, chance, each_key, random.Random(seed))
        self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Take one fault back."""
        self._rules.remove(rule)

    def clear(self) -> None:
        """Break nothing any more, and forget what was logged."""
        self._rules.clear()
        self.log.clear()
        self.fired.clear()

    def sent_bytes(self, key: str) -> int:
        """Return the body bytes that clients got of the keys in which a pattern is found."""
        return sum(
            entry.sent_bytes
            for entry in self.log
            if entry.request.method == "GET"
            and not is_listing(entry.request)
            and re.search(key, entry.request.key)
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something after its exchange has ended; dropped when the proxy stops."""

        async def run() -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await work

        self._keep(self._loop.create_task(run()))

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        try:
            while (request := await read_request(reader, writer)) is not None:
                exchange = Exchange(self, request, (reader, writer))
                self.log.append(exchange.logged)
                await self._answer(exchange)
                if exchange.ended:
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client went away
        except asyncio.CancelledError:
            pass  # the proxy stops; a task that says so is logged as an error by asyncio
        finally:
            writer.close()

    async def _answer(self, exchange: "Exchange") -> None:
        for rule in list(self._rules):
            if rule.strikes(exchange.request):
                name = getattr(rule.fault, "fault_name", "fault")
                exchange.logged.fault = name
                self.fired[name] += 1
                await rule.fault(exchange)
                return
        await exchange.relay()

    async def connect(self) -> Connection:
        """Open a connection to the server: one a request, so that none is stale."""
        host, port = self._upstream
        return await asyncio.open_connection(host, port, limit=1 << 20)

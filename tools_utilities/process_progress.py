"""How far a batch job is: shards, rate and time left, as one line. Pure but for the clock it is given."""

import time
from collections.abc import Callable
from typing import Self, TextIO

import msgspec

from tools_utilities.terminal_text import fold, human_count, human_seconds, plain


class ShardCount(msgspec.Struct, frozen=True):
    """Shards of the whole job, whoever works them."""

    done: int
    total: int


class ProcessProgress:
    """Counts this worker's samples and everybody's shards; `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._started = now()
        self._first_done: int | None = None
        self._count = ShardCount(0, 0)
        self._samples = 0
        self._working: tuple[int, int, int] | None = None

    def shards(self, count: ShardCount) -> None:
        """Take in how many shards are done."""
        if self._first_done is None:
            self._first_done = count.done
        self._count = count

    def working(self, shard_id: int | None, done: int = 0, chunks: int = 0) -> None:
        """Take in which shard is being worked here, and how many of its chunks are done."""
        self._working = None if shard_id is None else (shard_id, done, chunks)

    def samples(self, count: int) -> None:
        """Take in samples just worked here."""
        self._samples += count

    @property
    def num_samples(self) -> int:
        """Samples worked here so far."""
        return self._samples

    @property
    def seconds_left(self) -> float | None:
        """Time until every shard is done, at the pace of all workers so far; None: not known yet."""
        done = self._count.done - (self._first_done or 0)
        part = 0.0
        if self._working and self._working[2]:
            part = self._working[1] / self._working[2]
        elapsed = self._now() - self._started
        if done + part <= 0 or elapsed <= 0:
            return None
        return max(0.0, self._count.total - self._count.done - part) * elapsed / (done + part)

    def line(self) -> str:
        """Return `shards 3/8 · shard 5: chunk 2/4 · 1,200 samples · 88.2/s · 2m 3s left`."""
        pieces = [f"shards {self._count.done}/{self._count.total}"]
        if self._working is None:
            pieces.append("waiting for others")
        else:
            shard_id, done, chunks = self._working
            pieces.append(f"shard {shard_id}: {done}/{chunks} chunks")
        pieces.append(f"{human_count(self._samples)} samples here")
        elapsed = self._now() - self._started
        if self._samples and elapsed > 0:
            pieces.append(f"{self._samples / elapsed:,.1f}/s")
        if self.seconds_left is not None:
            pieces.append(f"{human_seconds(self.seconds_left)} left")
        return " · ".join(pieces)


PAINT_SECONDS = 0.25
COLUMNS = 100


class StatusLine:
    """One line repainted in place on a terminal; off one, only what is said."""

    def __init__(
        self,
        stream: TextIO,
        now: Callable[[], float] = time.monotonic,
        *,
        animates: bool | None = None,
    ) -> None:
        self._stream = stream
        self._now = now
        self._painted = float("-inf")
        self._shown = False
        self._animates = stream.isatty() if animates is None else animates

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._clear()

    def paint(self, line: str) -> None:
        """Show the status, at most four times a second."""
        if self._animates and self._now() - self._painted >= PAINT_SECONDS:
            self._painted = self._now()
            self._shown = True
            self._stream.write(f"\r\x1b[K{fold(plain(line), COLUMNS)[0]}")
            self._stream.flush()

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self._clear()
        self._stream.write(f"{plain(line)}\n")
        self._stream.flush()

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False

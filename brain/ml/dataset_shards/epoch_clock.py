"""Which epoch an `iter()` is, agreed between a process and its loader workers without a lock.

A small tensor in shared memory. Row 0 is what was asked for last (a growing serial, epoch,
position). Every reader that starts an iteration writes a row of its own: the serial it saw, the
tag of the iteration (equal in all workers that iterate together) and the epoch it took. The next
epoch is one more than the largest taken under the current serial; a reader that finds its own tag
takes that epoch. Readers that race compute the same number from the same earlier rows.
"""

from multiprocessing.context import get_spawning_popen
from typing import Any

import torch

from brain.ml.dataset_shards.turn import Turn
from tools_utilities.errors import UsageError

MAX_WORKERS = 1024
_SERIAL, _TAG, _EPOCH, _BAD, _ORDER, _CHECK = range(6)
_READ_TRIES = 100_000
_MAIN = 1
_FIRST_WORKER = 2


class EpochClock:
    """Shared by a dataset and its copies in loader workers; a plain pickle starts afresh."""

    def __init__(self) -> None:
        rows = torch.zeros((_FIRST_WORKER + MAX_WORKERS, 6), dtype=torch.int64)
        self._rows = rows.share_memory_()  # type: ignore[no-untyped-call] # torch's, untyped

    def __getstate__(self) -> dict[str, Any]:
        # Only what is pickled to start a process shares the tensor: a copy for any other purpose
        # is a new stream, at what was last asked for.
        if get_spawning_popen() is not None:
            return {"_rows": self._rows}
        return {"request": self._rows[0].tolist()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_rows" in state:
            self._rows = state["_rows"]
        else:
            EpochClock.__init__(self)
            self._rows[0] = torch.tensor(state["request"], dtype=torch.int64)

    @property
    def serial(self) -> int:
        """Number of the last request."""
        # Asked for once a batch: torch's own indexing takes ten times as long.
        return int(self._rows.numpy()[0, _SERIAL])

    def request(self, epoch: int, position: int) -> int:
        """Make the next iteration start there; returns the request's serial."""
        row = self._rows[0].tolist()
        row[_EPOCH], row[_TAG] = epoch, position
        row[_SERIAL] += 1
        self._rows[0] = torch.tensor(row, dtype=torch.int64)
        return int(row[_SERIAL])

    def requested(self) -> tuple[int, int]:
        """Return epoch and position of the last request."""
        return int(self._rows[0, _EPOCH]), int(self._rows[0, _TAG])

    def taken(self) -> int | None:
        """Return the last epoch taken since the last request, or None."""
        epochs = [row[_EPOCH] for _, row in self._current()]
        return max(epochs) if epochs else None

    def begin(self, worker: int | None, tag: int, order: int) -> Turn:
        """Take an epoch for the iteration `tag`; `order` must be equal in all its readers.

        Raises:
            UsageError: too many workers.
        """
        number = _MAIN if worker is None else _FIRST_WORKER + worker
        if number >= len(self._rows):
            raise UsageError(f"loader worker {worker}: at most {MAX_WORKERS} workers")
        serial = self.serial
        epoch, position = self.requested()
        rows = [row for _, row in self._current()]
        same = [row[_EPOCH] for row in rows if row[_TAG] == tag]
        following = max((row[_EPOCH] + 1 for row in rows), default=epoch)
        taken = same[0] if same else following
        self._write(number, [serial, tag, taken, 0, order])
        return Turn(serial, tag, taken, position if taken == epoch else 0, number)

    def shift(self, turn: Turn, epoch: int) -> None:
        """Note that an iteration found its epoch used up and reads `epoch` instead."""
        row = self._rows[turn.row].tolist()
        self._write(turn.row, [*row[:_EPOCH], epoch, *row[_BAD:_CHECK]])

    def orders(self, turn: Turn) -> set[int]:
        """Return the orders that the readers of an iteration have; more than one is an error."""
        return {row[_ORDER] for _, row in self._written() if row[_TAG] == turn.tag}

    def count_bad(self, turn: Turn) -> int:
        """Count one record skipped; returns how many all readers of the iteration have skipped."""
        row = self._rows[turn.row].tolist()
        row[_BAD] += 1
        self._write(turn.row, row[:_CHECK])
        return sum(row[_BAD] for _, row in self._written() if row[_TAG] == turn.tag)

    def _write(self, number: int, row: list[int]) -> None:
        check = 0
        for value in row:
            check ^= value
        self._rows[number] = torch.tensor([*row, check], dtype=torch.int64)

    def _current(self) -> list[tuple[int, list[int]]]:
        """Return the rows written since the last request."""
        serial = self.serial
        return [(number, row) for number, row in self._written() if row[_SERIAL] == serial]

    def _written(self) -> list[tuple[int, list[int]]]:
        """Return all rows, those of readers included that began before a sibling's request.

        A row caught half-written is read again.
        """
        used = ((self._rows[1:, _TAG] != 0).nonzero().flatten() + 1).tolist()
        return [(number, self._read(number)) for number in used]

    def _read(self, number: int) -> list[int]:
        for _ in range(_READ_TRIES):
            row: list[int] = self._rows[number].tolist()
            check = 0
            for value in row:
                check ^= value
            if check == 0:
                return row
        raise UsageError("the epoch clock of the stream is damaged", hint="Make the stream anew.")

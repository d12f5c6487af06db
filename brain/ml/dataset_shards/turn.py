"""What an iteration was given by the clock of its stream, and what it tells that clock.

Kept apart from the clock itself, which lives in torch's shared memory: a loader worker that reads
text or tokens never imports torch.
"""

from typing import NamedTuple, Protocol


class Turn(NamedTuple):
    """What an iteration was given."""

    serial: int
    tag: int
    epoch: int
    position: int
    """Where it begins; 0 unless it is the first since a state was loaded."""
    row: int


class TurnClock(Protocol):
    """What an iteration asks of a clock."""

    def shift(self, turn: Turn, epoch: int) -> None:
        """Note that an iteration found its epoch used up and reads `epoch` instead."""
        ...

    def count_bad(self, turn: Turn) -> int:
        """Count one record skipped; returns how many the iteration has skipped."""
        ...


class LocalClock:
    """The clock of one reader whose owner was told its epoch; the owner adds up the records skipped."""

    def __init__(self) -> None:
        self.num_bad = 0

    def shift(self, turn: Turn, epoch: int) -> None:
        """Nothing: every standing says its epoch."""

    def count_bad(self, turn: Turn) -> int:  # noqa: ARG002 - the protocol's: there is one turn
        """Count one record skipped; returns how many this reader has skipped."""
        self.num_bad += 1
        return self.num_bad

"""Which shards of which worker should go to another so that all are through soonest. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

Work = tuple[str, float]
"""A shard's key and how much work it is."""


class Load:
    """What one worker has before it; changes as shards are moved."""

    def __init__(self, rate: float, work: Iterable[Work]) -> None:
        """Take a rate (units of work a second, more than 0) and the shards, the first in work."""
        self.rate = rate
        self.work = list(work)
        self.seconds = sum(units for _, units in self.work) / rate
        """How long it takes for all of it."""

    def seconds_with(self, units: float) -> float:
        """Return how long it would take with more."""
        return self.seconds + units / self.rate

    def take(self, one: Work) -> None:
        """Add a shard."""
        self.work.append(one)
        self.seconds = self.seconds_with(one[1])

    def give(self, at: int) -> Work:
        """Remove a shard and return it."""
        one = self.work.pop(at)
        self.seconds = self.seconds_with(-one[1])
        return one


def median_rate(rates: Iterable[float]) -> float:
    """Return the median of the rates that are more than 0, else 1."""
    known = [rate for rate in rates if rate > 0]
    return median(known) if known else 1.0


def spread(work: Sequence[Work], loads: Mapping[int, Load]) -> list[tuple[str, int]]:
    """Give each shard to whoever is then through first, the largest first; changes `loads`."""
    given: list[tuple[str, int]] = []
    for one in sorted(work, key=lambda one: -one[1]) if loads else []:
        rank = _first_through(loads, one[1])
        loads[rank].take(one)
        given.append((one[0], rank))
    return given


def moves_between(loads: Mapping[int, Load], threshold: float) -> list[tuple[str, int, int]]:
    """Return (key, from, to) moves from whoever is through last; changes `loads`.

    The shard being worked on stays, and so does all that would not be done sooner by more than
    `threshold` of the time the giver needs: a move has its price. Each move lowers the giver's time
    and leaves the taker's below what that was, so it ends.
    """
    moves: list[tuple[str, int, int]] = []
    while len(loads) > 1:
        source = max(loads, key=lambda rank: (loads[rank].seconds, -rank))
        giver = loads[source]
        others = {rank: load for rank, load in loads.items() if rank != source}
        limit = giver.seconds * (1 - threshold)
        for at in range(len(giver.work) - 1, 0, -1):
            target = _first_through(others, giver.work[at][1])
            if loads[target].seconds_with(giver.work[at][1]) < limit:
                break
        else:
            return moves
        one = giver.give(at)
        loads[target].take(one)
        moves.append((one[0], source, target))
    return moves


def _first_through(loads: Mapping[int, Load], units: float) -> int:
    return min(loads, key=lambda rank: (loads[rank].seconds_with(units), rank))

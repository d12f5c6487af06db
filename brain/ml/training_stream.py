"""The training data of a run: one or several sources, dealt in steps, with an exact position.

Every step takes all its samples from one source, the one that is furthest behind its weight (its
share of the samples, or the job's `weights`), so that the order does not depend on the world size.
An epoch ends when every source is through.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brain.ml.token_source import Batch, TokenSource
from tools_utilities.errors import ChangedError


class _Lane:
    """One source and where it stands."""

    def __init__(self, source: TokenSource, batch_size: int) -> None:
        self.source = source
        self.loader = source.loader(batch_size)
        self.weight = 1.0
        self.steps = 0
        """Of this epoch."""
        self.through = False
        self.state: dict[str, Any] | None = None
        """After the last batch that was used for a step."""
        self._batches: Iterator[Batch] | None = None
        self._held: Batch | None = None

    def start_epoch(self, epoch: int) -> None:
        self.steps, self.through = 0, False
        if self._held is None:
            self.loader.set_epoch(epoch)
            self._batches = None

    def take(self, count: int, epoch: int) -> list[Batch]:
        """Return up to `count` batches of the epoch; fewer only at its end."""
        batches: list[Batch] = []
        while len(batches) < count and not self.through:
            batch = self._next(epoch)
            if batch is None:
                self.through = True
            else:
                batches.append(batch)
        return batches

    def _next(self, epoch: int) -> Batch | None:
        if self._held is not None:
            batch, self._held = self._held, None
            return batch
        first = self._batches is None
        if self._batches is None:
            self._batches = iter(self.loader)
        found: Batch | None = next(self._batches, None)
        if found is None:
            self._batches = None
        elif first and int(self.loader.state_dict()["epoch"]) > epoch:
            # A state saved after an epoch's last batch: the stream went on to the next epoch.
            self._held = found
            return None
        return found

    def mark(self) -> None:
        """Note that what has been taken is used."""
        if self._held is None:
            self.state = self.loader.state_dict()


class TrainingStream:
    """Steps of training data. All ranks make the same calls."""

    def __init__(self, sources: Sequence[TokenSource], batch_size: int) -> None:
        """`batch_size`: sequences of one micro-batch of this rank."""
        self._lanes = [_Lane(source, batch_size) for source in sources]
        self._epoch = 0

    def set_weights(self, weights: Sequence[float]) -> None:
        """Say how the sources are mixed."""
        for lane, weight in zip(self._lanes, weights, strict=True):
            lane.weight = weight

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch anew."""
        self._epoch = epoch
        for lane in self._lanes:
            lane.start_epoch(epoch)

    def take(self, num_batches: int) -> list[Batch]:
        """Return the micro-batches of the next step; fewer at a source's end, none at the epoch's."""
        while True:
            waiting = [lane for lane in self._lanes if not lane.through]
            if not waiting:
                return []
            lane = min(waiting, key=lambda lane: lane.steps / lane.weight)
            batches = lane.take(num_batches, self._epoch)
            if batches:
                lane.steps += 1
                return batches

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands, for all ranks together; small, JSON-able."""
        for lane in self._lanes:
            lane.mark()
        return {
            "epoch": self._epoch,
            "sources": [
                {"stream": lane.state, "steps": lane.steps, "through": lane.through}
                for lane in self._lanes
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved.

        Raises:
            ChangedError: the data has changed, or there are other sources.
        """
        saved = state["sources"]
        if len(saved) != len(self._lanes):
            raise ChangedError(
                f"the run had {len(saved)} data sources, now it has {len(self._lanes)}",
                hint="Resume with the data it was started with.",
            )
        self._epoch = int(state["epoch"])
        for lane, one in zip(self._lanes, saved, strict=True):
            lane.steps, lane.through = int(one["steps"]), bool(one["through"])
            lane.loader.load_state_dict(one["stream"])
            lane.state = one["stream"]

    def get_stats(self) -> dict[str, float]:
        """Return the sources' numeric statistics, added up; rates and means only of a single one."""
        total: dict[str, float] = {}
        for lane in self._lanes:
            for name, value in lane.loader.get_stats().items():
                mean = name.startswith("avg_") or name.endswith(("_rate", "_utilization"))
                if isinstance(value, int | float) and not (mean and len(self._lanes) > 1):
                    total[name] = total.get(name, 0) + value
        return total

"""MixedStream: several streams mixed by weights, one batch at a time, with an exact position.

Every batch comes from one stream: the one that is furthest behind its weight (of those, the first). So
the mix depends on the weights alone, and not on chance, time or the world size.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from brain.ml.dataset_shards.samples_in_step import SampleRef
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tools_utilities.errors import ChangedError, UsageError

STOP_RULES = ("first_exhausted", "all_exhausted")


class _Source:
    """One loader and where it stands."""

    def __init__(self, loader: StreamLoader) -> None:
        self.loader = loader
        self.weight = 1.0
        self.steps = 0
        """Of this epoch."""
        self.through = False
        self.state: dict[str, Any] | None = None
        """After the last batch that was used for a step."""
        self._batches: Iterator[Any] | None = None
        self._held: list[Any] = []

    def start_epoch(self, epoch: int) -> None:
        self.steps, self.through = 0, False
        if not self._held:
            self.loader.set_epoch(epoch)
            self._batches = None

    def take(self, count: int, epoch: int) -> list[Any]:
        """Return up to `count` batches of the epoch; fewer only at its end."""
        batches: list[Any] = []
        while len(batches) < count and not self.through:
            found = self._next(epoch)
            self.through = not found
            batches += found
        return batches

    def _next(self, epoch: int) -> list[Any]:
        """Return the next batch, or nothing at the epoch's end."""
        if self._held:
            held, self._held = self._held, []
            return held
        first = self._batches is None
        if self._batches is None:
            if int(self.loader.state_dict()["epoch"]) > epoch:
                return []  # a state saved after the epoch's last batch
            self._batches = iter(self.loader)
        found = list(islice(self._batches, 1))
        if not found:
            self._batches = None
        elif first and self._is_past(epoch):
            self._held = found
            return []
        return found

    def _is_past(self, epoch: int) -> bool:
        """Tell whether a first batch is of the next epoch already.

        Where the state did not know that it was saved after the last batch (counts were unknown), the
        stream goes on to the next epoch. The last batch of this one leaves it at the next one's start.
        """
        state = self.loader.state_dict()
        return (int(state["epoch"]), int(state["position"])) > (epoch + 1, 0)

    def go_to(self, saved: Mapping[str, Any]) -> None:
        """Stand where it was saved."""
        self.steps, self.through = int(saved["steps"]), bool(saved["through"])
        self.loader.load_state_dict(saved["stream"])
        self.state = saved["stream"]
        self._batches, self._held = None, []

    def mark(self) -> None:
        """Note that what has been taken is used."""
        if not self._held:
            self.state = self.loader.state_dict()


class MixedStream:
    """Batches of several loaders. All ranks make the same calls.

    `state_dict` and `load_state_dict` are torch's Stateful. The n-th `iter()` is epoch n.
    """

    def __init__(
        self,
        loaders: Sequence[StreamLoader],
        weights: Sequence[float] | None = None,
        *,
        stop: str = "all_exhausted",
    ) -> None:
        """Mix loaders.

        Args:
            loaders: One a dataset.
            weights: Of each, above 0; how many batches come from it for one of another. None: equal.
            stop: When an epoch ends: `first_exhausted`, as soon as the stream whose turn it is has
                nothing left; `all_exhausted`, when every one is through, each sample once: those
                that are through drop out, and the others share their turns.

        Raises:
            UsageError: a weight or stop rule that makes no sense.
        """
        if stop not in STOP_RULES:
            raise UsageError(
                f"stop={stop}: not one of {', '.join(STOP_RULES)}", key="stop", value=stop
            )
        self._sources = [_Source(loader) for loader in loaders]
        self._taken_from: _Source | None = None
        self._stop = stop
        self._epoch = 0
        self._begun = False
        """Whether the epoch is under way, so that the next `iter()` goes on with it."""
        self.set_weights([1.0] * len(loaders) if weights is None else weights)

    def set_weights(self, weights: Sequence[float]) -> None:
        """Say how the streams are mixed from now on.

        Raises:
            UsageError: not one above 0 for each.
        """
        if len(weights) != len(self._sources) or not all(weight > 0 for weight in weights):
            raise UsageError(
                f"weights={list(weights)}: one above 0 for each of {len(self._sources)} datasets",
                key="weights",
            )
        for source, weight in zip(self._sources, weights, strict=True):
            source.weight = weight

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch anew."""
        self._epoch, self._begun = epoch, True
        for source in self._sources:
            source.start_epoch(epoch)

    def take(self, num_batches: int) -> list[Any]:
        """Return the next batches, all of one stream; fewer at its end, none at the epoch's."""
        while True:
            waiting = [source for source in self._sources if not source.through]
            ended = self._stop == "first_exhausted" and len(waiting) < len(self._sources)
            if not waiting or ended:
                return []
            source = min(waiting, key=lambda source: source.steps / source.weight)
            batches = source.take(num_batches, self._epoch)
            if batches:
                source.steps += 1
                self._taken_from = source
                return batches

    def samples_of_step(self, num_batches: int) -> list[SampleRef]:
        """Return which samples the last `take(num_batches)` had, over all ranks, in order."""
        source = self._taken_from
        if source is None:
            return []
        first = (source.steps - 1) * num_batches
        return [
            sample
            for number in range(first, first + num_batches)
            for sample in source.loader.samples_in_step(number, epoch=self._epoch)
        ]

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, or of the rest of a loaded one."""
        if not self._begun:
            self.start_epoch(self._epoch)
        while batches := self.take(1):
            yield batches[0]
        self.start_epoch(self._epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return where the streams stand, for all ranks together; small, JSON-able."""
        for source in self._sources:
            source.mark()
        return {
            "epoch": self._epoch,
            "sources": [
                {"stream": source.state, "steps": source.steps, "through": source.through}
                for source in self._sources
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved.

        Raises:
            ChangedError: the data has changed, or there are other sources.
        """
        saved = state["sources"]
        if len(saved) != len(self._sources):
            raise ChangedError(
                f"the run had {len(saved)} data sources, now it has {len(self._sources)}",
                hint="Resume with the data it was started with.",
            )
        self._epoch, self._begun = int(state["epoch"]), True
        for source, one in zip(self._sources, saved, strict=True):
            source.go_to(one)

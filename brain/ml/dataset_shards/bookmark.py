"""Bookmark: where a stream stands and where its next iteration begins, kept over processes.

The clock is shared with loader workers; what was asked for last travels with the pickled stream;
what this process has delivered stays here.
"""

import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

from brain.ml.dataset_shards.epoch_clock import EpochClock
from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.partition_deal import Deal
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.stream_iteration import Iteration, Standing, standing_in
from brain.ml.dataset_shards.turn import Turn
from tools_utilities.errors import UsageError


class Bookmark:
    """The place of one stream."""

    def __init__(self) -> None:
        self.clock = EpochClock()
        self.iteration: Iteration | None = None
        """The last one begun in this process."""
        self._asked: tuple[int, EpochStart] | None = None
        self._own_start: EpochStart | None = None
        """Where this loader worker was told to begin next; its siblings are told at the same time."""
        self._standing: tuple[int, Standing] | None = None
        self._num_iterations = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "iteration": None, "_standing": None, "_num_iterations": 0}

    def begin(self, order: int) -> tuple[Turn, EpochStart]:
        """Take the next epoch for an iteration of this process.

        Args:
            order: Equal in all readers of one order.

        Raises:
            UsageError: the loader's workers have listed different data.
        """
        worker = get_worker_info()
        self._num_iterations += 1
        self._standing = None
        if worker is None:
            turn = self.clock.begin(None, int.from_bytes(os.urandom(7), "little"), order)
        else:
            # Equal in all workers of one iteration: the loader's own seed, and which pass it is.
            base = worker.seed - worker.id
            tag = (base * 1_000_003 + self._num_iterations) % (1 << 62) + 1
            turn = self.clock.begin(worker.id, tag, order)
        if len(self.clock.orders(turn)) > 1:
            raise UsageError(
                "loader workers have listed different data",
                hint="Something is still writing to the prefix; start again when it is done.",
            )
        # A sibling may have asked since: the same, but for what each has delivered itself.
        asked, self._own_start = self._own_start or self._asked_for(turn.serial), None
        if asked is not None and asked.epoch == turn.epoch:
            return turn, asked
        return turn, EpochStart(epoch=turn.epoch, position=turn.position)

    def start_at(self, start: EpochStart) -> None:
        """Make the next iteration begin there, in loader workers too."""
        self._asked = (self.clock.request(start.epoch, start.position), start)
        self._own_start = start if get_worker_info() is not None else None
        self._standing = None
        self.iteration = None

    def next_start(self) -> EpochStart:
        """Return where the next iteration will begin."""
        taken = self.clock.taken()
        return self._requested() if taken is None else EpochStart(epoch=taken + 1)

    def stand_at(self, standing: Standing) -> None:
        """Note where the stream stands, for a loader that delivers for it."""
        self._standing = (self.clock.serial, standing)

    def stand_at_end(self) -> None:
        """Note that the epoch has been delivered whole."""
        taken = self.clock.taken()
        if taken is not None:
            self.stand_at(Standing(taken + 1, 0))

    def standing(self) -> Standing:
        """Return where the stream stands.

        Raises:
            UsageError: loader workers have read, and only a plain DataLoader knows what it delivered.
        """
        serial = self.clock.serial
        if self._standing is not None and self._standing[0] == serial:
            return self._standing[1]
        if self.iteration is not None and self.iteration.turn.serial == serial:
            return self.iteration.standing()
        if self.clock.taken() is not None:
            raise UsageError(
                "state_dict(): loader workers run ahead of what has been delivered, so a plain "
                "DataLoader must say how many batches it has delivered",
                hint="Call state_dict(batches_delivered=n), or use StreamLoader.",
            )
        start = self._requested()
        return Standing(start.epoch, start.position, start.hint, start.partitions)

    def standing_after(
        self,
        batches: int,
        share: Share,
        total: int | None,
        make_deal: Callable[[EpochStart, Share], Deal | None],
    ) -> Standing:
        """Return where the stream stands when a plain loader has delivered so many batches.

        `share` is the rank's, with the loader's batch size; `total` the epoch's samples if known.
        """
        start, taken = self._requested(), self.clock.taken()
        epoch = start.epoch if taken is None else taken
        began = start if epoch == start.epoch else EpochStart(epoch=epoch)
        turns = batches * share.batch_size
        deal = make_deal(began, share)
        if deal is not None:
            return standing_in(deal, epoch, share.rank, turns)
        if total is not None and 0 < share.rank_samples(max(0, total - began.position)) <= turns:
            return Standing(epoch + 1, 0)
        return Standing(epoch, began.position + turns * share.world_size, began.hint)

    def _asked_for(self, serial: int) -> EpochStart | None:
        return self._asked[1] if self._asked is not None and self._asked[0] == serial else None

    def _requested(self) -> EpochStart:
        epoch, position = self.clock.requested()
        asked = self._asked_for(self.clock.serial)
        return EpochStart(epoch=epoch, position=position) if asked is None else asked

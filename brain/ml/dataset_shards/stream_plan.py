"""What a stream's settings, its data and a place make together: a share, and a plan of an epoch."""

from brain.ml.dataset_shards.epoch_plan import EpochPlan, EpochStart
from brain.ml.dataset_shards.partitioning import Partitioning
from brain.ml.dataset_shards.place import Place
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.split_source import SplitSource
from brain.ml.dataset_shards.stream_config import StreamConfig
from brain.ml.dataset_shards.stream_index import StreamIndex


def share_of(
    place: Place, config: StreamConfig, batch_size: int, *, worker: tuple[int, int] = (0, 1)
) -> Share:
    """Return what a reader takes; `worker` is its number, and how many workers a rank has."""
    return Share(
        rank=place.rank,
        world_size=place.world_size,
        worker=worker[0],
        num_workers=worker[1],
        batch_size=batch_size,
        equalize=config.equalize,
    )


def plan_epoch(
    index: StreamIndex,
    source: SplitSource,
    config: StreamConfig,
    share: Share,
    start: EpochStart,
    *,
    partitioning: Partitioning | None,
) -> EpochPlan:
    """Return what one reader needs to read its share of an epoch."""
    return EpochPlan(
        table=index.table,
        source=source,
        shape=index.shape,
        shuffle=config.shuffle,
        seed=config.seed,
        start=start,
        share=share,
        tolerance=config.tolerance,
        prefetch=config.prefetch,
        partitioning=partitioning,
    )

"""What Quark does with stores and files, as operations that can be begun again after any failure.

Each is made for an empty folder; `act` does it (and goes on with what an earlier try left), and returns
what came of it, to be compared with what an undisturbed one returns.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from brain.ml.checkpoint import (
    Parts,
    TrainerState,
    load_checkpoint,
    read_state,
    save_checkpoint,
)
from brain.ml.checkpoint_place import FolderPlace, StorePlace, choose_checkpoint
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.model_shape import ModelShape
from brain.ml.process_group import ProcessGroup, World
from brain.ml.schedule import Progress, RunLength
from tests.reliability.failing_calls import Calls, CountedStore
from tools_utilities.dataset_creation import OutputOptions
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.scripts.create_sharded_dataset import create_sharded_dataset
from tools_utilities.scripts.dataset_discovery import find_groups
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.sharding_plan import ShardingPlan

NUM_SHARDS, PER_SHARD = 8, 12
GROUP = ProcessGroup(World())


class Operation:
    """One thing done, in a folder of its own and a store of its own."""

    uses_store = True
    uses_files = False

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.store = CountedStore()
        self.prepare()

    def prepare(self) -> None:
        """Make what is there before."""
        for shard in range(NUM_SHARDS):
            first = shard * PER_SHARD
            lines = [
                json.dumps({"id": n, "text": "x" * 100}) for n in range(first, first + PER_SHARD)
            ]
            self.store.put(f"data/x/train-{shard:05d}.jsonl", ("\n".join(lines) + "\n").encode())

    def act(self) -> Any:
        """Do it; another time after a failure."""
        raise NotImplementedError


class Discover(Operation):
    """The groups below a prefix, decoded."""

    def act(self) -> Any:
        found = find_groups(self.store, "data/")
        return [(group.prefix, group.num_objects, group.total_bytes) for group in found.groups]


class _Stream(Operation):
    cached = False
    budget = 1 << 30

    def manager(self) -> StreamingManager:
        return StreamingManager.for_store(
            self.store.spec,
            cache_dir=str(self.folder / "cache") if self.cached else None,
            cache_bytes=self.budget if self.cached else 0,
        )

    def stream(self, manager: StreamingManager, **options: Any) -> StreamDataset:
        return StreamDataset(manager, "data/x/", **{"rank": 0, "world_size": 1, **options})

    def act(self) -> Any:
        manager = self.manager()
        stream = self.stream(manager)
        found = [[sample["id"] for sample in stream] for _ in range(2)]
        manager.settle()
        return found


class Index(_Stream):
    """Counts of every object, as several ranks need them, learned and kept."""

    uses_files = True
    cached = True

    def act(self) -> Any:
        parts = [
            list(self.stream(self.manager(), rank=rank, world_size=3, equalize="none"))
            for rank in range(3)
        ]
        return sorted(sample["id"] for part in parts for sample in part)


class Stream(_Stream):
    """Two epochs without a cache."""


class Cache(_Stream):
    """Two epochs through an empty cache."""

    uses_files = True
    cached = True


class Evict(_Stream):
    """Two epochs through a cache with room for a third of the data."""

    uses_files = True
    cached = True
    budget = 5_000


class Shard(Operation):
    """A dataset made in a folder."""

    uses_store = False
    uses_files = True

    def prepare(self) -> None:
        source = self.folder / "in.jsonl"
        source.write_text(
            "".join(json.dumps({"id": n, "text": "é" * 50}) + "\n" for n in range(200))
        )

    def where(self) -> str:
        return str(self.folder / "out")

    def place(self) -> tuple[ObjectStore, str]:
        return open_store(StoreSpec(uri=f"file://{self.folder}/out")), ""

    def act(self) -> Any:
        plan = ShardingPlan(num_shards=3, chunk_bytes=3_000)
        output = OutputOptions(state_dir=self.folder / "state", sleep=lambda _seconds: None)
        create_sharded_dataset(str(self.folder / "in.jsonl"), self.where(), plan, output=output)
        self.store.calls = Calls()  # what follows is the test's own reading
        store, prefix = self.place()
        manifest = load_manifest(store, prefix)
        assert manifest is not None
        return {
            chunk.key: b"".join(store.get(prefix + chunk.key))
            for shard in manifest.shards
            for chunk in shard.chunks
        }


class Upload(Shard):
    """A dataset made in a store."""

    uses_store = True

    def where(self) -> str:
        return f"{self.store.spec.uri}/out"

    def place(self) -> tuple[ObjectStore, str]:
        return self.store, "out/"


class Claim(Operation):
    """Every shard claimed and completed, by a worker that begins again."""

    uses_files = True

    def prepare(self) -> None:
        source = self.folder / "in.jsonl"
        source.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(12)))
        plan = ShardingPlan(num_shards=3)
        output = OutputOptions(state_dir=self.folder / "state")
        create_sharded_dataset(str(source), f"{self.store.spec.uri}/out", plan, output=output)

    def act(self) -> Any:
        manager = ShardManager(
            f"{self.store.spec.uri}/out",
            "worker",
            state_dir=self.folder / "claims",
            lease_seconds=600,
        )
        for shard_id, record in manager.records():
            if record is not None and record.state == "leased":
                manager.reset(
                    shard_id, force=True
                )  # what an operator does of a worker that is gone
        while (claim := manager.claim_shard()) is not None:
            manager.mark_completed(claim.shard_id)
        return [(shard_id, record and record.state) for shard_id, record in manager.records()]


class Checkpoint(Operation):
    """Two checkpoints saved, one kept."""

    uses_store = False
    uses_files = True

    def prepare(self) -> None:
        save_checkpoint(self.place(), _state(1), _parts(1), GROUP, keep=2)

    def place(self) -> Any:
        return FolderPlace(self.folder / "checkpoints")

    def act(self) -> Any:
        for step in (2, 3):
            save_checkpoint(self.place(), _state(step), _parts(step), GROUP, keep=2)
        return self.newest()

    def newest(self) -> Any:
        """Return the step and weights that a resume would begin with."""
        path = chosen_path(self.place())
        state = read_state(path)
        parts = _parts(0)
        load_checkpoint(path, state, parts, GROUP)
        return state.progress.step, {n: t.tolist() for n, t in parts.model.state_dict().items()}


class CheckpointToStore(Checkpoint):
    """The same, straight to a store."""

    uses_store = True

    def place(self) -> Any:
        return StorePlace(self.store, "run/checkpoints/", self.folder / "scratch")


class Resume(Checkpoint):
    """The newest checkpoint found, checked and loaded."""

    def act(self) -> Any:
        return self.newest()


class ResumeFromStore(CheckpointToStore):
    """The same, from a store."""

    def act(self) -> Any:
        return self.newest()


def chosen_path(place: Any) -> Path:
    """Return the newest whole checkpoint, brought here."""
    name, _ = choose_checkpoint(place)
    brought: Path = place.bring(name)
    return brought


def _parts(seed: int) -> Parts:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Parts(
        model=model,
        optimizer=optimizer,
        names=[name for name, _ in model.named_parameters()],
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        device=torch.device("cpu"),
    )


def _state(step: int) -> TrainerState:
    return TrainerState(
        model="quark",
        shape=ModelShape(layers=1, vocab_size=5, seq_len=4),
        progress=Progress(step=step, loss=0.5),
        length=RunLength(source_samples=(9,)),
        optimizer="sgd",
        stream={"sources": []},
    )


OPERATIONS: dict[str, Callable[[Path], Operation]] = {
    "discover": Discover,
    "index": Index,
    "stream": Stream,
    "cache": Cache,
    "evict": Evict,
    "shard": Shard,
    "upload": Upload,
    "claim": Claim,
    "checkpoint": Checkpoint,
    "checkpoint to a store": CheckpointToStore,
    "resume": Resume,
    "resume from a store": ResumeFromStore,
}

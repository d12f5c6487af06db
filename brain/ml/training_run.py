"""Builds what a run needs, finds where it stands, and trains; between `train.py` and `trainer.py`."""

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from brain.ml import checkpoint_files
from brain.ml.checkpoint import (
    Parts,
    TrainerState,
    load_checkpoint,
    load_weights,
    read_state,
)
from brain.ml.checkpoint_place import (
    CheckpointPlace,
    checkpoint_of,
    choose_checkpoint,
    place_of,
)
from brain.ml.code_versions import code_versions
from brain.ml.compute import choose_device, choose_precision, make_exact, make_scaler
from brain.ml.evaluation import Evaluator
from brain.ml.job_check import check_job
from brain.ml.model_making import MadeModel, make_model
from brain.ml.model_shape import ModelShape
from brain.ml.optimizer import build_optimizer
from brain.ml.process_group import ProcessGroup, host_name
from brain.ml.random_state import seed_everything
from brain.ml.run_files import RunProcess, write_process
from brain.ml.schedule import Progress, RunLength, stop_rule, total_steps
from brain.ml.session import Session
from brain.ml.shared_weights import share_weights
from brain.ml.streamed_source import StreamedSource
from brain.ml.trainer import Trainer, TrainerStart
from brain.ml.training_job import TrainingJob
from brain.ml.training_stream import TrainingStream
from tools_utilities.errors import ChangedError, DataError, DataNotFoundError, UsageError
from tools_utilities.process_identity import ProcessIdentity, identify, this_machine
from tools_utilities.run_words import said_run

logger = logging.getLogger(__name__)


def run(session: Session) -> int:
    """Train as the job says; returns the exit code.

    Raises:
        QuarkError: whatever keeps the run from starting or from going on.
    """
    with session.stop.interruptible():
        trainer = prepare(session)
    return trainer.run()


def prepare(session: Session) -> Trainer:
    """Do everything that comes before the first step."""
    job, group = session.job, session.group
    per_rank = check_job(job, group.world_size)
    device = choose_device(job, group.world)
    precision = choose_precision(job, device)
    meet(session, device)
    make_exact(precision, device)
    seed_everything(job.seed, group.data_rank)
    place = place_of(job)
    found, rejected = find_checkpoint(job, place, group)

    made = make_model(job)
    task, shape = made.task, made.shape
    train = [task.source(data, training=True) for data in job.train]
    val = [task.source(data, training=False) for data in job.val]
    stream = TrainingStream(train, per_rank, stop=job.mix_stop)
    parts = _build_parts(session, made, precision, device)

    for source in train:
        source.stream.prepare()
    state = None if found is None else read_state(found)
    if found is None or state is None:
        sizes = _estimate_sizes(session, train)
        progress, length = Progress(), RunLength(source_samples=sizes)
        load_initial_weights(job, parts.model)
    else:
        check_fits(state, job, shape)
        progress, length = state.progress, state.length
        stream.load_state_dict(state.stream)
        load_checkpoint(found, state, parts, group)
    stream.set_weights(job.weights or [max(1, size) for size in length.source_samples])
    cut = is_cut(job, group)
    together = cut or group.mesh is not None
    evaluator = (
        Evaluator(val, task, per_rank, precision, device, together=together) if val else None
    )
    start = TrainerStart(shape, precision, progress, length, task, cut)
    _tell_start(session, start, parts, train)
    for one in rejected:
        used = f"using {found.name}" if found else "starting anew"
        session.tell("warning", message=f"checkpoint {one.name} rejected: {one.reason}; {used}")
    return Trainer(session, parts, stream, evaluator, start, place)


def is_cut(job: TrainingJob, group: ProcessGroup) -> bool:
    """Tell whether the model's weights are cut over the ranks, so that each pass is an exchange."""
    return job.parallel == "fsdp" and group.data_size > 1


def check_fits(state: TrainerState, job: TrainingJob, shape: ModelShape) -> None:
    """Refuse a checkpoint of another model.

    Raises:
        ChangedError: naming what differs.
    """
    saved = {"model": state.model, "optimizer": state.optimizer, **_fields(state.shape)}
    asked = {"model": job.model, "optimizer": job.optimizer, **_fields(shape)}
    for name, value in saved.items():
        if asked[name] != value:
            raise ChangedError(
                f"the checkpoint is of {name}={value}, the job says {name}={asked[name]}",
                hint=f"Resume with {name}={value}, or start a new run.",
                was=value,
                now=asked[name],
            )


def _fields(shape: ModelShape) -> dict[str, int]:
    return {name: getattr(shape, name) for name in ModelShape.__struct_fields__}


def meet(session: Session, device: torch.device) -> None:
    """Join the ranks; from here on each knows whether the others live."""
    group = session.group
    group.join(device.type, session.job.tensor_parallel)
    own = identify(os.getpid())
    # Process numbers of several machines side by side: each says of which one it is.
    numbers = [group.gather_numbers(each) for each in (own.pid, own.start, own.machine)]
    ranks = tuple(
        ProcessIdentity(pid=pid, start=start, machine=machine)
        for pid, start, machine in zip(*numbers, strict=True)
    )
    if group.is_main:
        write_process(
            session.run_dir,
            RunProcess(
                host=host_name(),
                parent_pid=os.getppid(),
                agent=identify(os.getppid()) if group.world.start else None,
                ranks=ranks,
                started_at=time.time(),
            ),
        )
    if group.world_size > 1:
        session.watchdog.watch_peers(ranks)


def find_checkpoint(
    job: TrainingJob, place: CheckpointPlace, group: ProcessGroup
) -> tuple[Path | None, Sequence[checkpoint_files.RejectedCheckpoint]]:
    """Return the checkpoint to go on from, as a folder of this machine, and those that are damaged.

    Rank 0 chooses for all; the first rank of each other machine (and run folder) brings what it chose.

    Raises:
        QuarkError: there is none where one is asked for, or one where the run is to be new.
    """
    name: str | None = None
    rejected: Sequence[checkpoint_files.RejectedCheckpoint] = ()
    if group.is_main:
        place.recover()
        name, rejected = _choose(job, place)
    step = -1 if name is None else checkpoint_files.step_of(name) or 0
    step = group.gather_numbers(step)[0]
    if step < 0:
        return None, rejected
    name = checkpoint_files.checkpoint_name(step)
    digest = hashlib.blake2b(f"{this_machine()} {job.run_dir}".encode(), digest_size=8).digest()
    folder = int.from_bytes(digest) >> 1
    # Agents of several nodes may share a machine: two ranks must not fetch into one folder.
    if group.gather_numbers(folder).index(folder) == group.rank and not group.is_main:
        place.bring(name)
    group.barrier()
    return place.path_of(name), rejected


def _choose(
    job: TrainingJob, place: CheckpointPlace
) -> tuple[str | None, Sequence[checkpoint_files.RejectedCheckpoint]]:
    if job.resume is None and job.from_step is None:
        if place.names():
            raise UsageError(
                f"run {job.name} has checkpoints already",
                hint=f"Continue it with `quark resume {said_run(job.name)}`, or choose another name.",
            )
        return None, ()
    found, rejected = choose_checkpoint(place, from_step=job.from_step)
    if found is not None and job.from_step is not None:
        place.point_to(found)  # those of later steps are of a past that is left here
    if found is None and (job.resume == "latest" or rejected):
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in rejected)
        if rejected:
            raise DataError(
                f"run {job.name} has no checkpoint that is whole ({reasons})",
                hint="Start a new run.",
            )
        raise DataNotFoundError(
            f"run {job.name} has no checkpoint", hint="It ended before the first one; train anew."
        )
    return found, rejected


def _build_parts(session: Session, made: MadeModel, precision: str, device: torch.device) -> Parts:
    job = session.job
    model = made.model.to(device)
    share_weights(model, session.group, job.model)
    if is_cut(job, session.group):
        session.group.shard(model, device.type)  # before the optimizer: it takes the cut weights
    optimizer, names = build_optimizer(model, job, device.type)
    return Parts(
        model=model,
        optimizer=optimizer,
        names=names,
        scaler=make_scaler(precision, device),
        device=device,
    )


def _estimate_sizes(session: Session, sources: Sequence[StreamedSource]) -> tuple[int, ...]:
    """Return the samples of each source's epoch, estimated by rank 0 for all."""
    group = session.group
    sizes = [source.estimate_samples() if group.is_main else 0 for source in sources]
    return tuple(group.gather_numbers(size)[0] for size in sizes)


def load_initial_weights(job: TrainingJob, model: torch.nn.Module) -> None:
    """Give a model the weights that the job starts from, if it names any.

    Raises:
        DataNotFoundError: there is no whole checkpoint.
        DataError: the checkpoint that it names is damaged.
        ChangedError: they are of another model.
    """
    if job.init_from is None:
        return
    load_weights(checkpoint_of(Path(job.init_from)), model)


def _tell_start(
    session: Session, start: TrainerStart, parts: Parts, train: Sequence[StreamedSource]
) -> None:
    job, progress, length = session.job, start.progress, start.length
    session.tell(
        "start",
        schema=1,
        run=job.name,
        start=session.group.world.start,
        world_size=session.group.world_size,
        device=str(parts.device),
        parameters=sum(weight.numel() for weight in parts.model.parameters()),
        resumed_from_step=progress.step or None,
        total_steps=total_steps(job, length),
        samples=length.epoch_samples,
        samples_estimated=True,
        precision=start.precision,
        text=[source.about for source in train],
        data=[_fingerprints(source) for source in train],
        versions=code_versions(job),
        counts=start.task.counts,
        finished=stop_rule(job, progress, length),
    )


def _fingerprints(source: StreamedSource) -> dict[str, str]:
    """Return what the samples and their order depend on, in short; two runs are compared by it."""
    index = source.stream.index
    return {"order": index.order_fingerprint, "change": index.change_fingerprint}

"""TrainingJob: everything a training process needs, frozen, YAML in and out; imports no torch.

`python -m brain.ml.train job.yaml` reads one; every launch target passes one. It holds no secret:
credentials reach the process through its environment.
"""

from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.prepared_types import prepared
from tools_utilities.private_files import read_plain, write_private


class DataSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shard group (or literal prefix) to read."""

    store: StoreSpec
    prefix: str
    """Relative to the store; a folder when it ends in `/`, else a literal key prefix."""
    stem: str | None = None
    """Group stem within the folder: only keys `<stem><number>…` belong to it (see ShardGroup)."""
    format: str | None = None


class CheckpointTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where checkpoints go when not into the run folder."""

    store: StoreSpec
    """`file:///folder` for a local one."""
    prefix: str
    """The run's own, relative to the store; ends in `/`."""


class RentalTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine is rented for, and what it may cost."""

    gpu_type: str | None = None
    gpus: int | None = 1
    """None: any number."""
    spot: bool = False
    max_price_hour: float | None = None
    """Dollars, of all nodes; no dearer offer is taken. None: no price is known there (Kubernetes)."""
    max_cost: float | None = None
    """Dollars, of the whole run."""
    image: str
    disk_gb: float


class Remote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine that a job was launched on, and how Quark is set up there."""

    where: str
    """`ssh:HOST`, `vast` or a cloud (`aws`, `sky:INFRA` …), as the command says it."""
    python: str = "python3"
    """The Python there that Quark's own environment is made with."""
    packages: str = "install"
    """`install`: everything anew; `inherit`: what that Python has already counts as installed."""
    folder: str = "~/.quark"
    """Quark's own folder there; relative to the home folder."""
    credentials: str = "send"
    """`send` those that the stores are read with here, or a `session` made of them for this run alone;
    `none`: the machine has its own."""
    variables: tuple[str, ...] = ()
    """Names of further environment variables to send."""
    terms: RentalTerms | None = None
    """Of a machine that is rented for the run."""
    known_hosts: str | None = None
    """File for the host key of a machine that nobody can know yet: the first key seen is the one."""


class Every(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often something happens: exactly one of the three is set."""

    steps: int | None = None
    seconds: float | None = None
    samples: int | None = None


@prepared
class TrainingJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. Counts are whole numbers, times seconds, sizes bytes."""

    schema: int = 1
    name: str
    run_dir: str
    """Absolute folder of the run: job.yaml, plan.json, metrics.jsonl, log, checkpoints/."""
    model: str = "quark"
    """A file of `brain/ml/models/`, `package.module:build` for one's own, or `hf:FOLDER`."""
    command: tuple[str, ...] | None = None
    """The user's own program (`models:` of quark.yaml), which gets the job file as its last argument."""
    project_dir: str | None = None
    """Folder that `package.module:build` is imported from."""
    layers: int = 4
    lora_rank: int | None = None
    """Of `hf:` models: train adapters of this rank alone; None: all weights."""
    lora_alpha: float | None = None
    """How strongly adapters count; None: twice the rank."""

    train: tuple[DataSource, ...]
    val: tuple[DataSource, ...] = ()
    weights: tuple[float, ...] | None = None
    mix_stop: str = "all_exhausted"
    """When an epoch over several training groups ends: `all_exhausted` or `first_exhausted`."""

    cache_dir: str | None = None
    """None: stream without a cache."""
    counts_dir: str | None = None
    """Where the counts of the data are kept, of local data too; None: in the cache folder, if any."""
    cache_bytes: int = 20_000_000_000
    cache_policy: str = "next_use"
    prefetch: int | None = None
    fetch_concurrency: int = 8
    workers: int = 0
    stall_seconds: float = 60.0
    """After so long without any movement all stacks are written to the log; 0: never."""
    shuffle: bool = True
    shuffle_mb: float | None = None
    """Megabytes of shards that are open together, to mix over; None: 72 MiB, or up to 1 GiB."""
    seed: int = 42
    partition: str = "round_robin"
    partition_options: dict[str, Any] = {}
    equalize: str = "drop"
    max_drop: float = 0.01
    on_bad: str = "fail"
    bad_budget: int | None = None
    """Records that `on_bad=skip` may skip in an epoch; None: 1,000."""
    on_missing: str = "fail"
    allow_changed: bool = False
    allow_nan: bool = False
    strict: bool = False

    text_key: str | None = None
    template: str | None = None
    tokenizer: str = "bytes"
    vocab_size: int | None = None
    """Tokens of the model; None: the tokenizer's. Data with ready tokens may need more than bytes."""
    token_dtype: str | None = None
    """Numbers of `.bin` token files: `uint16` or `uint32`; None: as wide as `vocab_size` needs."""
    seq_len: int = 256
    pad_id: int = 0
    eos_id: int = 2
    token_ends: bool = False
    """Whether `eos_id` ends documents in files of ready tokens too: somebody has said which it is."""
    overlong: str = "split"

    epochs: float | None = 1.0
    max_steps: int | None = None
    max_tokens: int | None = None
    max_samples: int | None = None
    max_seconds: float | None = None
    """Several stop rules may be set; the first reached ends the run."""
    early_stop: int | None = None
    """Stop after so many evaluations without a better validation loss."""
    batch_size: int = 32
    """Samples (sequences) in one optimizer step over all ranks."""
    grad_accum: int = 1
    lr: float = 1e-3
    schedule: str = "cosine"
    warmup_steps: int = 0
    optimizer: str = "adamw"
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    grad_clip: float = 1.0
    precision: str | None = None
    compile: bool = False
    parallel: str = "ddp"
    tensor_parallel: int = 1
    """Ranks side by side that share each weight and get the same data; divides all ranks."""
    device: str | None = None
    processes: int = 1
    """Ranks on this node."""
    nodes: int = 1
    min_nodes: int = 1
    """Machines with which the run goes on when others are lost."""
    rendezvous: str | None = None
    """HOST:PORT where the agents of several machines meet; None: all nodes are on this machine."""
    max_restarts: int = 3
    """Times that an agent starts its ranks again after one was lost or could not go on."""
    rejoin_seconds: float = 15.0
    """What a new start waits for machines that are missing, before it goes on without them."""

    checkpoint_every: Every | None = None
    """None: at the end of every epoch and of the run."""
    eval_every: Every | None = None
    """None: at the end of every epoch and of the run."""
    track: tuple[str, ...] = ()
    """Files of `brain/ml/trackers/`: what is told of the run while it goes on."""
    sample_log: bool = False
    """Each rank writes a hash of every sample it trains on to `samples/` of the run folder."""
    keep: int = 3
    checkpoints: CheckpointTarget | None = None
    """None: `checkpoints/` of the run folder."""
    resume: str | None = None
    """`latest`: the newest complete checkpoint in run_dir; `auto`: that if there is one; None: start."""
    from_step: int | None = None
    init_from: str | None = None
    """A checkpoint folder (or a run folder, for its newest) whose weights the run starts from."""
    evaluate_only: bool = False
    """Measure the loss of `init_from` on `val` and train nothing; `train` is empty."""
    detach: bool = False
    """The run goes on when whoever launched it ends."""
    remote: Remote | None = None
    """Where it was launched; None: on the machine that reads this."""

    @property
    def shuffle_bytes(self) -> int | None:
        """`shuffle_mb` in bytes."""
        return None if self.shuffle_mb is None else max(1, round(self.shuffle_mb * 1e6))


def save_job(job: TrainingJob, path: Path) -> None:
    """Write a job as YAML, atomically, for its owner alone."""
    write_private(path, msgspec.yaml.encode(job))


def load_job(path: Path) -> TrainingJob:
    """Read a job file; it may be a stranger's.

    Raises:
        msgspec.DecodeError: no such YAML, or an unknown or ill-typed field, which is named.
        OSError: it cannot be read.
    """
    from tools_utilities.yaml_text import check_yaml  # PyYAML: only for who reads a job

    text = read_plain(path)
    try:
        check_yaml(text.decode(), source=path.name)
        return msgspec.yaml.decode(text, type=TrainingJob)
    except (UnicodeDecodeError, UsageError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error

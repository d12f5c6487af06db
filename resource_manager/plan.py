"""The plan of a run: what will happen, in one frozen struct (`plan.json`). Pure; nothing is started.

`plan_screen.py` draws it; `manager.py` makes it before it asks.
"""

import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from brain.ml.dataset_shards.shuffle_figures import ShuffleQuality
from brain.ml.hf_folder import count_parameters, hf_folder
from brain.ml.model_name import is_hf
from brain.ml.training_job import DataSource, TrainingJob
from resource_manager.planned_text import PlannedText
from tools_utilities.prepared_types import prepared

SEQUENCES = PlannedText(rule="text")
MAX_GETS_PER_SECOND = 3000
"""A prefix of S3 serves at least 5,500 GET/s; from here on it may start to refuse."""
REQUEST_SECONDS = 0.02
"""Assumed time to the first byte of a GET."""
STREAM_BYTES_PER_SECOND = 50e6
"""Assumed rate of one connection."""
LEAST_MIXING = 0.5
"""Of the shards that a full shuffle brings into a batch; sorted data with fewer is warned of."""
NETWORK_FILESYSTEMS = ("nfs", "cifs", "smb", "fuse", "9p", "lustre", "ceph")


class PlannedData(msgspec.Struct, frozen=True, kw_only=True):
    """One shard group of the run."""

    role: str
    """`train` or `validation`."""
    store: str
    """URI of the store; a local folder as `file:///…`."""
    prefix: str
    num_shards: int
    total_bytes: int
    median_bytes: float
    complete_listing: bool = True
    """False: counts and bytes are lower bounds."""
    format: str | None = None
    num_samples: int | None = None
    samples_known: bool = False
    """False: estimated from the records that were decoded."""
    records_decoded: int = 0
    why: str = ""
    """How it came to be used: the only group, picked, beside the training data."""
    shuffle: ShuffleQuality | None = None
    """How well its order mixes; None: not known, or read in file order."""
    sorted_by: str = ""
    """Why its samples seem to lie sorted in the shards; empty: no sign of it."""
    schema_drift: str = ""
    """How the columns of a few shards differ; empty: they do not, or their footers do not say."""


class PlannedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that is not at its default, and where it was said."""

    name: str
    value: Any
    why: str


@prepared
class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run will do."""

    schema: int = 1
    task: str = "train"
    name: str
    run_dir: str
    model: str
    layers: int | None
    parameters: int | None
    """None: only building the model can tell."""
    data: tuple[PlannedData, ...]
    text: str | None = None
    """How a record becomes tokens: `field text`."""
    samples: str = "sequences"
    """What a sample is: `sequences` of text, `records`, or empty: only the model can tell."""
    where: str
    """`local`, `ssh:HOST`."""
    machine: tuple[tuple[str, str], ...] = ()
    """Of another machine: what it is, what is sent there, what becomes of it at the end."""
    device: str
    processes: int
    nodes: int
    precision: str
    batch_size: int
    seq_len: int
    steps: int | None
    """None: the samples of an epoch are not known yet."""
    steps_known: bool = False
    limits: tuple[str, ...]
    """Stop rules; the first reached ends the run."""
    earlier_seconds: float | None = None
    """How long an earlier run of the same data and limits took."""
    epoch_tokens: float | None = None
    """About the tokens of an epoch, by records that were decoded; None: nothing tells."""
    settings: tuple[PlannedSetting, ...] = ()
    differences: tuple[str, ...] = ()
    """What differs from the last run."""
    notes: tuple[str, ...] = ()
    """What was decided on the way: the path that became a prefix, the words that were ignored."""
    warnings: tuple[str, ...] = ()
    canonical: str | None = None
    """The command that says the same without any doubt."""
    flags: str = ""
    """The end of `canonical` that is no part of the sentence, but flags of the program."""


def limits_of(job: TrainingJob) -> tuple[str, ...]:
    """Return the stop rules of a job as text."""
    rules = {
        "epochs": f"{job.epochs:g} epoch{'' if job.epochs == 1 else 's'}" if job.epochs else "",
        "max_steps": f"{job.max_steps:,} steps" if job.max_steps else "",
        "max_samples": f"{job.max_samples:,} samples" if job.max_samples else "",
        "max_tokens": f"{job.max_tokens:,} tokens" if job.max_tokens else "",
        "max_seconds": f"{job.max_seconds:g} seconds" if job.max_seconds else "",
        "early_stop": f"{job.early_stop} evaluations with no better loss" if job.early_stop else "",
    }
    return tuple(rule for rule in rules.values() if rule)


def parameters_of(job: TrainingJob) -> int | None:
    """Return the number of trained parameters, where the `quark` model's dial tells it.

    Raises:
        QuarkError: the tokenizer's file cannot be used.
    """
    from brain.ml.model_shape import ModelShape
    from brain.ml.tokenizer import load_tokenizer

    if is_hf(job.model):
        return count_parameters(hf_folder(job.model))
    if job.model != "quark":
        return None  # only building it can tell
    vocab = max(job.vocab_size or 0, load_tokenizer(job.tokenizer).vocab_size)
    return ModelShape(layers=job.layers, vocab_size=vocab, seq_len=job.seq_len).num_parameters


def steps_of(
    job: TrainingJob, data: tuple[PlannedData, ...], text: PlannedText = SEQUENCES
) -> tuple[int | None, bool]:
    """Return (optimizer steps of the run, whether they are exact), (None, False) when unknown.

    An epoch of text is as long as its tokens: with the byte tokenizer the mean bytes of a record and
    its end token; where that is not known, its bytes. One of records is as long as they are many.
    """
    tokens_a_step = job.batch_size * job.seq_len
    epoch = epoch_steps(job, [item for item in data if item.role == "train"], text)
    bounds = {
        "max_steps": job.max_steps,
        "max_samples": job.max_samples and job.max_samples / job.batch_size,
        "max_tokens": job.max_tokens and job.max_tokens / tokens_a_step,
        "epochs": job.epochs and epoch and epoch * job.epochs,
    }
    set_bounds = {name: bound for name, bound in bounds.items() if bound}
    if not set_bounds:
        return None, False
    nearest = min(set_bounds, key=lambda name: set_bounds[name] or 0)
    # Another rule may still end it earlier: only a lone count of steps is certain.
    known = nearest == "max_steps" and len(set_bounds) == 1 and job.max_seconds is None
    return max(1, int(set_bounds[nearest] or 1)), known


def epoch_steps(job: TrainingJob, train: Sequence[PlannedData], text: PlannedText) -> float | None:
    """Return about the steps of an epoch; None where nothing tells."""
    counts = [item.num_samples for item in train]
    if text.samples == "records":
        known = [count for count in counts if count is not None]
        return sum(known) / job.batch_size if len(known) == len(counts) else None
    if not text.samples:
        return None
    tokens = sum(
        item.num_samples * (text.mean_bytes + 1)
        if item.num_samples is not None and text.mean_bytes
        else item.total_bytes
        for item in train
    )
    return tokens / (job.batch_size * job.seq_len)


def epoch_tokens_of(
    job: TrainingJob, data: tuple[PlannedData, ...], text_bytes: float
) -> float | None:
    """Return about the tokens of an epoch of bytes as tokens; None where the records do not tell."""
    counts = [item.num_samples for item in data if item.role == "train"]
    if job.tokenizer != "bytes" or not text_bytes or not counts:
        return None
    known = [count for count in counts if count is not None]
    return sum(known) * (text_bytes + 1) if len(known) == len(counts) else None


def request_warnings(job: TrainingJob, data: tuple[PlannedData, ...]) -> list[str]:
    """Return a warning for each prefix that may see more than MAX_GETS_PER_SECOND."""
    warnings = []
    streams = job.fetch_concurrency * job.processes * job.nodes
    for item in data:
        if item.store.startswith("file://") or item.num_shards <= MAX_GETS_PER_SECOND:
            continue
        mean_bytes = item.total_bytes / item.num_shards
        rate = streams / (REQUEST_SECONDS + mean_bytes / STREAM_BYTES_PER_SECOND)
        if rate > MAX_GETS_PER_SECOND:
            warnings.append(
                f"{item.prefix}: up to {rate:,.0f} GET/s on one prefix (over"
                f" {MAX_GETS_PER_SECOND:,}); shards of {2 * mean_bytes / 1024:,.0f} KiB halve it"
            )
    return warnings


def shuffle_warnings(data: tuple[PlannedData, ...]) -> list[str]:
    """Return a warning for each group that lies sorted and is mixed over too few shards."""
    warnings = []
    for item in data:
        found = item.shuffle
        if found is None or not item.sorted_by:
            continue
        if found.mixing < LEAST_MIXING or found.displacement < LEAST_MIXING:
            warnings.append(
                f"{item.prefix}: {item.sorted_by}, so it is sorted, and a batch mixes about"
                f" {found.batch_shards:.1f} of the {found.full_batch_shards:.1f} shards of a full"
                " shuffle: write more, smaller shards, shuffle before sharding, or raise shuffle_mb"
            )
    return warnings


def schema_warnings(data: tuple[PlannedData, ...], *, strict: bool) -> list[str]:
    """Return a warning for each group whose shards differ in their columns."""
    then = "strict=true refuses that" if strict else "each sample has the columns of its own shard"
    return [f"{item.prefix}: {item.schema_drift}; {then}" for item in data if item.schema_drift]


def cache_warnings(cache_dir: str | None, filesystem: str) -> list[str]:
    """Return a warning when the cache folder is on a network file system."""
    if cache_dir is None or not filesystem.lower().startswith(NETWORK_FILESYSTEMS):
        return []
    return [f"cache folder {cache_dir} is on {filesystem}: use a local disk (cache_dir=…)"]


def filesystem_of(path: str, mounts: str) -> str:
    """Return the type of the file system that holds the absolute `path`.

    `mounts` is the text of /proc/mounts; empty (another system) gives an empty type.
    """
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:  # noqa: PLR2004 - device, folder, type
            continue
        # The kernel writes blanks in mount points as \040.
        folder = fields[1].replace("\\040", " ").replace("\\011", "\t")
        inside = path == folder or path.startswith(folder.rstrip("/") + "/")
        if inside and len(folder) >= len(best):
            best, kind = folder, fields[2]
    return kind


def with_groups(plan: Plan, said: str | None, picked: set[str]) -> Plan:
    """Return a plan whose command also makes the choice of groups: as said by flag, or by hand.

    Different choices for several paths have no one flag; the plan then shows no command.
    """
    flags = picked or ({f"--groups {shlex.quote(said)}"} if said is not None else set())
    if plan.canonical is None or not flags:
        return plan
    if len(flags) > 1:
        return msgspec.structs.replace(plan, canonical=None)
    [flag] = flags
    return msgspec.structs.replace(plan, canonical=f"{plan.canonical} {flag}", flags=f" {flag}")


def data_source_name(source: DataSource) -> str:
    """Return a source as people write it: `s3://bucket/prefix`."""
    return f"{source.store.uri}/{source.prefix}"

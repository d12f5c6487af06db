"""Makes a sharded dataset of an address in another: source, progress, publishing, index last.

The work of `tools_utilities/scripts/create_sharded_dataset.py` and of the bridge.
"""

import contextlib
import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.chunk_writers import takes_lines
from tools_utilities.dataset_additions import Addition, layout_of, merge_additions, reserve
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import ObjectStore, open_store
from tools_utilities.sample_source import Source, SourceOptions, open_sources
from tools_utilities.shard_format import shard_formats, split_suffix
from tools_utilities.sharded_dataset import WORKERS, Dealt, ShardingRun
from tools_utilities.sharding_lock import disk_errors, only_run
from tools_utilities.sharding_output import HERE, THERE, ShardingOutput
from tools_utilities.sharding_plan import VAL, ShardingPlan
from tools_utilities.sharding_progress import Header
from tools_utilities.sharding_request import check_apart, check_flat_name, check_named
from tools_utilities.shuffled_source import ShuffledSource
from tools_utilities.token_width import FORMAT as TOKENS
from tools_utilities.token_width import NARROW, WIDTHS

LAYOUTS = ("folders", "flat", "file")
_SHUFFLE = "shuffle"
_PEER_INDEXED = frozenset({"litdata", "mds"})


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an output is reached and worked on; nothing of it changes a byte."""

    endpoint_url: str | None = None
    profile: str | None = None
    region: str | None = None
    state_dir: Path | None = None
    """Where remote outputs keep their progress; default: the user's state folder."""
    progress: str = HERE
    """Whether it is beside the output instead, for other machines (`sharding_output`)."""
    workers: int = WORKERS
    """Chunks written at a time."""
    sleep: Callable[[float], None] = time.sleep
    """Waits between the tries of an upload."""


def create_sharded_dataset(
    input_file: str | Sequence[str] | Source,
    output_dir: str,
    plan: ShardingPlan,
    *,
    options: SourceOptions | None = None,
    output: OutputOptions | None = None,
    report: Callable[[Dealt], None] = lambda _dealt: None,
    append: bool = False,
) -> dict[str, Any]:
    """Make the dataset and return its master metadata; a finished one is left as it is.

    `append`: add to the finished dataset that is there, and return what was added;
    `merge_dataset` then takes it into the index.

    Several inputs are read one after another, as one; a `Source` is read as it is.

    Raises:
        ChangedError: the output was made, or begun, from a source that changed since.
        UsageError: no records, a plan that makes no sense, or another dataset is there.
        RecordError: a record cannot be read; names file and place. Finished chunks are kept.
    """
    plan = _with_file_name(plan, output_dir)
    _check(plan)
    chosen = output or OutputOptions()
    options = options or SourceOptions()
    _check_places(input_file, output_dir, plan, options, chosen)
    source = _source(input_file, plan, options)
    addition = None
    if append:
        plan, addition = _appending(output_dir, plan, source, chosen)
    header = plan.header(source)
    made = ShardingOutput(
        output_dir,
        plan,
        state_dir=chosen.state_dir,
        endpoint_url=chosen.endpoint_url,
        profile=chosen.profile,
        region=chosen.region,
        addition=addition,
    )
    made.keep_progress(chosen.progress)
    with disk_errors(output_dir):
        done = made.finished(header)
        if done is not None:
            return done
        with only_run(made.work_folder, output_dir), made.kept_apart(header):
            return made.finished(header) or _make(source, made, header, plan, chosen, report)


def _make(
    source: Source,
    made: ShardingOutput,
    header: Header,
    plan: ShardingPlan,
    chosen: OutputOptions,
    report: Callable[[Dealt], None],
) -> dict[str, Any]:
    """Do the work; nobody else writes this output meanwhile."""
    made.clean()
    if plan.shuffle:
        source = ShuffledSource(source, plan.seed, made.staging / _SHUFFLE)
    run = ShardingRun(
        source, plan, made.progress, made.publisher(chosen.sleep), report, workers=chosen.workers
    )
    try:
        rounds = run.run()
    except BaseException:
        with contextlib.suppress(QuarkError):  # what ended the run is what is told
            made.progress.keep()
        raise
    return made.finish(rounds, header)


def begin_elsewhere(
    input_file: str,
    output_dir: str,
    plan: ShardingPlan,
    *,
    options: SourceOptions | None = None,
    output: OutputOptions | None = None,
) -> dict[str, Any] | None:
    """Do what comes before the work, which another machine does; returns what is finished already.

    The source is opened and its first records are read, and the progress is written beside the output:
    what was begun on this machine goes on there.

    Raises:
        ChangedError, UsageError, RecordError: as of `create_sharded_dataset`; a run here is writing it.
        AccessError, StoreError: the source cannot be read, or the output not written.
    """
    _check(plan)
    chosen = output or OutputOptions()
    options = options or SourceOptions()
    _check_places(input_file, output_dir, plan, options, chosen)
    source = _source(input_file, plan, options)
    header = plan.header(source)
    made = ShardingOutput(
        output_dir, plan, state_dir=chosen.state_dir, endpoint_url=chosen.endpoint_url,
        profile=chosen.profile, region=chosen.region,
    )  # fmt: skip
    made.keep_progress(THERE)
    with disk_errors(output_dir), only_run(made.work_folder, output_dir):
        done = made.finished(header)
        if done is None:
            with made.kept_apart(header, goes_on=True):
                _check_first(source)
                made.progress.load(header)
        # From now on it is there; what is left here would be older than what another machine does.
        shutil.rmtree(made.work_folder, ignore_errors=True)
    return done


def _check_first(source: Source) -> None:
    for _first in source.blocks(0, None):
        return
    raise UsageError(f"{source.uri}: no records", hint="An empty input makes no dataset.")


def merge_dataset(output_dir: str, output: OutputOptions | None = None) -> dict[str, Any]:
    """Take everything that was added to a dataset into its index; merging again changes nothing.

    Raises: as `merge_additions`.
    """
    chosen = output or OutputOptions()
    return merge_additions(*_located(output_dir, chosen))


def _located(output_dir: str, chosen: OutputOptions) -> tuple[ObjectStore, str]:
    spec, prefix = locate_dataset(
        output_dir,
        endpoint_url=chosen.endpoint_url,
        profile=chosen.profile,
        region=chosen.region,
    )
    return open_store(spec), prefix


def _appending(
    output_dir: str, plan: ShardingPlan, source: Source, chosen: OutputOptions
) -> tuple[ShardingPlan, Addition]:
    """Return the plan under reserved numbers, and the reservation."""
    store, prefix = _located(output_dir, chosen)
    flat = plan.layout == "flat"
    there = load_manifest(store, prefix)
    width = (there and there.token_dtype) or NARROW
    wrong = {
        "val_fraction with append": plan.val_fraction is not None,
        f"{plan.format} files beside an index.json": flat and plan.format in _PEER_INDEXED,
        f"layout {plan.layout}, and the dataset there has the other": (
            there is not None and layout_of(store, prefix) != plan.layout
        ),
        f"token_dtype {plan.token_dtype}, and the dataset there has {width}": (
            plan.token_dtype != width and plan.format == TOKENS
        ),
    }
    for message, applies in wrong.items():
        if applies:
            raise UsageError(
                f"cannot append: {message}", hint="Make another dataset, or leave it out."
            )
    header = msgspec.json.encode(plan.header(source))
    identity = hashlib.sha256(header).hexdigest()[:8]
    addition = reserve(store, prefix, identity, 1 if flat else plan.num_shards)
    name = f"{plan.name}-{identity}" if flat else plan.name
    return msgspec.structs.replace(plan, first_shard=addition.first_shard, name=name), addition


def _check_places(
    input_file: str | Sequence[str] | Source,
    output_dir: str,
    plan: ShardingPlan,
    options: SourceOptions,
    chosen: OutputOptions,
) -> None:
    if chosen.workers < 1:
        raise UsageError(f"workers={chosen.workers}: at least 1")
    inputs = [input_file] if isinstance(input_file, str) else input_file
    if not isinstance(inputs, Sequence):
        inputs = []  # a source of the caller's own has no place
    check_named([output_dir, *inputs])
    if plan.layout != "file":  # one file is no input of the run that makes it, and never made twice
        same = (options.endpoint_url, options.profile) == (chosen.endpoint_url, chosen.profile)
        check_apart(inputs, output_dir, same_endpoint=same)
    spec, _ = locate_dataset(
        output_dir,
        endpoint_url=chosen.endpoint_url,
        profile=chosen.profile,
        region=chosen.region,
    )
    if not open_store(spec).writable:
        raise UsageError(
            f"{output_dir}: cannot be written to", hint="Choose a folder or a bucket of your own."
        )


def _source(
    input_file: str | Sequence[str] | Source, plan: ShardingPlan, options: SourceOptions
) -> Source:
    if isinstance(input_file, str):
        input_file = [input_file]
    if not isinstance(input_file, Sequence):
        return input_file
    as_lines = plan.shuffle or takes_lines(plan.format, plan.writers)
    return open_sources(input_file, msgspec.structs.replace(options, json_bytes=as_lines))


def _with_file_name(plan: ShardingPlan, output_dir: str) -> ShardingPlan:
    """Return the plan of a single file where the output's name is one of a data file."""
    name = output_dir.rpartition("/")[2]
    stem, compression = split_suffix(name)
    for shard_format in shard_formats().values():
        if plan.layout == "folders" and stem.endswith(shard_format.suffixes):
            return msgspec.structs.replace(
                plan,
                layout="file",
                name=name,
                num_shards=1,
                format=shard_format.name,
                compression=compression,
            )
    return plan


def _check(plan: ShardingPlan) -> None:
    known = shard_formats()
    wrong = [
        (plan.num_shards < 1, f"num_shards={plan.num_shards}: at least 1", ""),
        (plan.chunk_bytes < 1, "chunk_size_mb: more than 0", ""),
        (plan.layout not in LAYOUTS, f"layout {plan.layout}", f"Known: {', '.join(LAYOUTS)}."),
        (plan.format not in known, f"format {plan.format}", f"Known: {', '.join(known)}."),
        (
            plan.token_dtype not in WIDTHS,
            f"token_dtype {plan.token_dtype}",
            f"Known: {', '.join(WIDTHS)}.",
        ),
        (
            plan.token_dtype != NARROW and plan.format != TOKENS,
            f"token_dtype {plan.token_dtype} with {plan.format}",
            "It is how wide the numbers of token files are: add the format tokens, or leave it out.",
        ),
        (
            plan.max_samples is not None and plan.max_samples < 1,
            f"max_samples={plan.max_samples}: at least 1",
            "",
        ),
        (
            plan.samples_per_shard is not None
            and (plan.layout != "flat" or plan.samples_per_shard < 1),
            f"samples_per_shard={plan.samples_per_shard}: at least 1, and only in the flat layout",
            "",
        ),
        (
            plan.val_fraction is not None and not 0 < plan.val_fraction < 1,
            f"val_fraction={plan.val_fraction}: between 0 and 1",
            "0.01 holds out one of a hundred.",
        ),
        (
            plan.val_fraction is not None
            and (plan.samples_per_shard is not None or plan.layout == "file"),
            "val_fraction needs shards that grow side by side",
            "Give num_shards instead of samples_per_shard.",
        ),
        (
            plan.val_fraction is not None and plan.layout == "flat" and plan.name == VAL,
            f"name={plan.name} with val_fraction: held-out files are named so",
            "Choose another name.",
        ),
        (
            plan.val_key is not None and plan.val_fraction is None,
            f"val_key={plan.val_key} without val_fraction",
            "val_fraction says how much is held out.",
        ),
    ]
    for applies, message, hint in wrong:
        if applies:
            raise UsageError(message, hint=hint)
    if plan.layout == "flat":
        check_flat_name(plan.name, plan.key(0, 0))
    # MDS shards that are compressed are found by an index of both their forms, which is not written.
    compressible = getattr(known[plan.format], "compressible", False) and plan.format != "mds"
    if plan.compression is not None and not compressible:
        raise UsageError(
            f"compression {plan.compression} with {plan.format}",
            hint="Its chunks compress inside, or not at all: leave compression out.",
        )

"""Makes a sharded dataset of an address in another: source, progress, publishing, index last.

The work of `tools_utilities/scripts/create_sharded_dataset.py` and of the bridge.
"""

import functools
import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.chunk_publisher import move_into, upload_to
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.dataset_metadata import (
    encode_metadata,
    flat_manifest,
    master_metadata,
    shard_chunks,
    shard_metadata,
)
from tools_utilities.errors import DataNotFoundError, ObjectNotFoundError, UsageError
from tools_utilities.manifest import FLAT, MASTER, Manifest, encode_manifest, load_manifest
from tools_utilities.object_store import ObjectStore, open_store
from tools_utilities.peer_indexes import peer_index
from tools_utilities.sample_source import SourceOptions, open_sources
from tools_utilities.shard_format import shard_formats
from tools_utilities.sharded_dataset import Publisher, ShardingPlan, ShardingRun
from tools_utilities.sharding_progress import Progress, Round

STAGING = ".quark-staging"
FINISHED = ".quark-finished.json"
LAYOUTS = ("folders", "flat")


def create_sharded_dataset(
    input_file: str | Sequence[str],
    output_dir: str,
    plan: ShardingPlan,
    *,
    options: SourceOptions | None = None,
    state_dir: Path | None = None,
    output_endpoint: str | None = None,
    report: Callable[[int], None] = lambda _samples: None,
) -> dict[str, Any]:
    """Make the dataset and return its master metadata; a finished one is left as it is.

    Several inputs are read one after another, as one.

    Raises:
        ChangedError: the output was made, or begun, from another source or with other settings.
        UsageError: no records, or a plan that makes no sense.
        RecordError: a record cannot be read; names file and place. Finished chunks are kept.
    """
    _check(plan)
    options = options or SourceOptions()
    wanted = msgspec.structs.replace(options, json_bytes=plan.format == "jsonl")
    inputs = [input_file] if isinstance(input_file, str) else input_file
    source = open_sources(inputs, wanted)
    spec, prefix = locate_dataset(output_dir, endpoint_url=output_endpoint)
    store = open_store(spec)
    done = _finished(store, prefix, plan)
    if done is not None:
        _require_same(done, msgspec.to_builtins(plan.header(source)), output_dir)
        return _summary_of_finished(store, prefix, plan)
    run = ShardingRun(
        source,
        plan,
        Progress(_progress_path(output_dir, state_dir)),
        _publisher(output_dir, store, prefix, state_dir),
        report,
    )
    rounds = run.run()
    master = _write_metadata(store, prefix, rounds, plan)
    store.put(f"{prefix}{FINISHED}", msgspec.json.encode(plan.header(source)))
    Progress(_progress_path(output_dir, state_dir)).remove()
    shutil.rmtree(_staging(output_dir, state_dir), ignore_errors=True)
    return master


def _check(plan: ShardingPlan) -> None:
    if plan.num_shards < 1:
        raise UsageError(f"num_shards={plan.num_shards}: at least 1")
    if plan.chunk_bytes < 1:
        raise UsageError("chunk_size_mb: more than 0")
    if plan.samples_per_shard is not None and (plan.layout != "flat" or plan.samples_per_shard < 1):
        raise UsageError(
            f"samples_per_shard={plan.samples_per_shard}: at least 1, and only in the flat layout"
        )
    if plan.layout not in LAYOUTS:
        raise UsageError(f"layout {plan.layout}", hint=f"Known: {', '.join(LAYOUTS)}.")
    if plan.format not in shard_formats():
        raise UsageError(f"format {plan.format}", hint=f"Known: {', '.join(shard_formats())}.")


def _local_folder(output_dir: str) -> Path | None:
    if "://" not in output_dir:
        return Path(output_dir).expanduser().resolve()
    return None


def _work_folder(output_dir: str, state_dir: Path | None) -> Path:
    """Return where a remote output's progress and unfinished chunks are kept on this machine."""
    base = state_dir or Path.home() / ".local/state/quark/sharding"
    return base / hashlib.sha256(output_dir.rstrip("/").encode()).hexdigest()[:24]


def _progress_path(output_dir: str, state_dir: Path | None) -> Path:
    local = _local_folder(output_dir)
    folder = local or _work_folder(output_dir, state_dir)
    return folder / ".quark-progress.jsonl"


def _staging(output_dir: str, state_dir: Path | None) -> Path:
    local = _local_folder(output_dir)
    return (local or _work_folder(output_dir, state_dir)) / STAGING


def _publisher(
    output_dir: str, store: ObjectStore, prefix: str, state_dir: Path | None
) -> Publisher:
    local = _local_folder(output_dir)
    publish = (
        functools.partial(move_into, local)
        if local
        else functools.partial(upload_to, store, prefix)
    )
    return Publisher(_staging(output_dir, state_dir), publish)


def _read_json(store: ObjectStore, key: str) -> dict[str, Any] | None:
    try:
        body = store.get(key)
    except (ObjectNotFoundError, DataNotFoundError):
        return None
    try:
        return msgspec.json.decode(b"".join(body), type=dict[str, Any])
    finally:
        body.close()


def _bytes_of(store: ObjectStore, key: str) -> bytes:
    body = store.get(key)
    try:
        return b"".join(body)
    finally:
        body.close()


def _index_key(prefix: str, plan: ShardingPlan) -> str:
    return prefix + (FLAT if plan.layout == "flat" else MASTER)


def _finished(store: ObjectStore, prefix: str, plan: ShardingPlan) -> dict[str, Any] | None:
    if _read_json(store, _index_key(prefix, plan)) is None:
        return None
    return _read_json(store, f"{prefix}{FINISHED}") or {}


def _summary_of_finished(store: ObjectStore, prefix: str, plan: ShardingPlan) -> dict[str, Any]:
    if plan.layout == "flat":
        manifest = load_manifest(store, prefix)
        return flat_summary(manifest) if manifest else {}
    return _read_json(store, f"{prefix}{MASTER}") or {}


def flat_summary(manifest: Manifest) -> dict[str, Any]:
    """Return what the master metadata says, of a flat layout."""
    return {"total_tasks": manifest.num_samples, "num_shards": len(manifest.shards)}


def _require_same(done: dict[str, Any], wanted: dict[str, Any], output_dir: str) -> None:
    if done != wanted:
        raise UsageError(
            f"{output_dir}: holds a dataset made from something else or with other settings",
            hint="Choose another --output_dir, or delete that one first.",
        )


def _write_metadata(
    store: ObjectStore, prefix: str, rounds: Sequence[Round], plan: ShardingPlan
) -> dict[str, Any]:
    # The index last: its presence means every shard arrived.
    if plan.layout == "flat":
        manifest = flat_manifest(rounds, prefix)
        index = peer_index(plan.format, manifest, lambda key: _bytes_of(store, prefix + key))
        if index is not None:
            store.put(f"{prefix}index.json", index)
        store.put(f"{prefix}{FLAT}", encode_manifest(manifest))
        return flat_summary(manifest)
    shards = shard_chunks(rounds, plan.num_shards)
    for number, chunks in enumerate(shards):
        content = encode_metadata(shard_metadata(number, len(shards), chunks))
        store.put(f"{prefix}shard_{number:03d}/metadata.json", content)
    master = master_metadata(shards, plan.chunk_bytes)
    store.put(f"{prefix}{MASTER}", encode_metadata(master))
    return master

"""Copies a finished sharded dataset as it is: the same shards and files, checked, the index last.

Claims stay behind: at its new place every shard is free. Run again after a kill it goes on, as what
is there already with its size and checksum is not sent again.
"""

import hashlib
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.chunk_publisher import Uploader, move_into
from tools_utilities.chunk_writer import WrittenChunk, copy_chunk
from tools_utilities.data_objects import junk_reason
from tools_utilities.dataset_creation import OutputOptions
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.dataset_metadata import encode_metadata
from tools_utilities.errors import (
    DataNotFoundError,
    IntegrityError,
    ObjectNotFoundError,
    UsageError,
)
from tools_utilities.json_text import decode_json
from tools_utilities.manifest import MASTER, SHARD, Chunk, Manifest, index_name, load_manifest
from tools_utilities.object_store import ObjectStore, open_store, read_object
from tools_utilities.sample_source import SourceOptions
from tools_utilities.sharded_dataset import Dealt
from tools_utilities.sharding_output import FINISHED, STAGING

_AT_ONCE = 3
_UNSHARDED = frozenset({"hf", "http", "https"})
"""Addresses that hold single files, or samples without files."""
_FREE = {"status": "available", "assigned_to": None, "started_at": None, "completed_at": None}


class FinishedSide(msgspec.Struct, frozen=True):
    """One index and what it names: a whole dataset, or one split of it."""

    folder: str
    """Of the dataset: empty, or `train/`."""
    manifest: Manifest
    index: str
    """The name of its index, which is written last."""

    @property
    def chunks(self) -> list[Chunk]:
        """Every chunk, keys relative to the dataset."""
        return [
            msgspec.structs.replace(chunk, key=self.folder + chunk.key)
            for shard in self.manifest.shards
            for chunk in shard.chunks
        ]


class FinishedDataset(msgspec.Struct, frozen=True):
    """A dataset whose index is there, or the index of each of its splits."""

    store: ObjectStore
    prefix: str
    sides: tuple[FinishedSide, ...]

    @property
    def num_shards(self) -> int:
        """Shards of all splits."""
        return sum(len(side.manifest.shards) for side in self.sides)

    @property
    def num_samples(self) -> int:
        """Samples of all splits."""
        return sum(side.manifest.num_samples for side in self.sides)

    @property
    def num_bytes(self) -> int:
        """Bytes of all chunks whose size the indexes say."""
        return sum(chunk.num_bytes or 0 for side in self.sides for chunk in side.chunks)


def find_finished(place: str, options: SourceOptions) -> FinishedDataset | None:
    """Return the finished dataset in a folder or at a store URI; None where there is none.

    A folder that holds nothing but finished datasets (`train/` and `val/`) is one: they stay apart.
    """
    scheme, found, _ = place.partition("://")
    path = Path(place.removeprefix("file://")).expanduser()
    if (found and scheme in _UNSHARDED) or (scheme in {place, "file"} and not path.is_dir()):
        return None
    spec, prefix = locate_dataset(
        place, endpoint_url=options.endpoint_url, profile=options.profile, region=options.region
    )
    store = open_store(spec)
    sides = _sides(store, prefix)
    return FinishedDataset(store, prefix, sides) if sides else None


def _sides(store: ObjectStore, prefix: str) -> tuple[FinishedSide, ...]:
    """Return what is finished there; nothing where there is other data too."""
    whole = _side(store, prefix, "")
    if whole is not None:
        return (whole,)
    page = next(iter(store.list_folder(prefix, max_pages=1)), None)
    if page is None or any(junk_reason(info.key[len(prefix) :]) is None for info in page.objects):
        return ()
    found = list[FinishedSide]()
    for key in page.prefixes:
        folder = key[len(prefix) :]
        if junk_reason(f"{folder}x") is not None:
            continue
        side = _side(store, prefix, folder)
        if side is None:
            return ()
        found.append(side)
    return tuple(found)


def _side(store: ObjectStore, prefix: str, folder: str) -> FinishedSide | None:
    manifest = load_manifest(store, prefix + folder)
    if manifest is None:
        return None
    return FinishedSide(folder, manifest, index_name(store, prefix + folder))


def copy_dataset(
    source: FinishedDataset,
    target: str,
    output: OutputOptions | None = None,
    report: Callable[[Dealt], None] = lambda _dealt: None,
) -> dict[str, Any]:
    """Copy a dataset to a folder or store URI; returns `total_tasks` and `num_shards`.

    Raises:
        IntegrityError: a chunk is not what the index says; nothing of the index is written.
        ObjectNotFoundError: a file of the dataset was removed meanwhile; no index is written either.
        UsageError: another dataset is there.
    """
    chosen = output or OutputOptions()
    spec, prefix = locate_dataset(
        target, endpoint_url=chosen.endpoint_url, profile=chosen.profile, region=chosen.region
    )
    store = open_store(spec)
    made = {"total_tasks": source.num_samples, "num_shards": source.num_shards}
    folder = Path(spec.uri.removeprefix("file://")) if spec.uri.startswith("file://") else None
    if folder is None or folder.is_dir():
        wanted = {side.folder: side.manifest.shards for side in source.sides}
        there = {side.folder: side.manifest.shards for side in _sides(store, prefix)}
        if there == wanted:
            return made
        if any(wanted.get(name) != shards for name, shards in there.items()):
            raise UsageError(
                f"{target}: holds another dataset",
                hint="Choose another place, or delete that one first.",
            )
    base = folder or chosen.state_dir or Path.home() / ".local/state/quark/sharding"
    identity = hashlib.sha256(f"{store.endpoint_id}/{prefix}".encode()).hexdigest()[:24]
    ours = base / STAGING / identity
    ours.mkdir(parents=True, exist_ok=True)
    # A folder of this process's own: a second copy to the same place must not move half a file.
    staging = Path(tempfile.mkdtemp(dir=ours))

    def publish(chunk: WrittenChunk, key: str) -> None:
        if folder is not None:
            move_into(folder, chunk, key)
        else:
            Uploader(store, prefix)(chunk, key)

    try:
        _copy_chunks(source, staging, publish, report)
    finally:
        shutil.rmtree(ours, ignore_errors=True)  # with what killed copies left
        with suppress(OSError):  # copies to other places have their files there
            ours.parent.rmdir()
    indexes = {
        side.folder + side.index: read_object(
            source.store, f"{source.prefix}{side.folder}{side.index}"
        )[0]
        for side in source.sides
    }
    for name, content in _small_files(source, indexes):
        store.put(prefix + name, content)
    for name, content in indexes.items():  # last: a split's presence says that all of it arrived
        store.put(prefix + name, content)
    return made


def _copy_chunks(
    source: FinishedDataset,
    staging: Path,
    publish: Callable[[WrittenChunk, str], None],
    report: Callable[[Dealt], None],
) -> None:
    lock, done = threading.Lock(), {"samples": 0, "bytes": 0}

    def copy(numbered: tuple[int, Chunk]) -> None:
        number, chunk = numbered
        publish(_fetched(source, chunk, staging / f"{number}.tmp"), chunk.key)
        with lock:
            done["samples"] += chunk.num_samples
            done["bytes"] += chunk.num_bytes or 0
            report(
                Dealt(
                    samples=done["samples"],
                    done_bytes=done["bytes"],
                    total_bytes=source.num_bytes,
                )
            )

    chunks = [chunk for side in source.sides for chunk in side.chunks]
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        for _ in pool.map(copy, enumerate(chunks)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _fetched(source: FinishedDataset, chunk: Chunk, path: Path) -> WrittenChunk:
    """Bring a chunk to this machine; IntegrityError when it is not what the index says."""
    body = source.store.get(source.prefix + chunk.key)
    try:
        found = copy_chunk(body, path, chunk.num_samples)
    finally:
        body.close()
    for name in ("num_bytes", "crc32c", "sha256"):
        promised = getattr(chunk, name)
        if promised is not None and promised != getattr(found, name):
            raise IntegrityError(
                f"{source.prefix}{chunk.key}: its {name} is {getattr(found, name)}, and the index "
                f"says {promised}",
                hint="The dataset is damaged: make it again, or restore this file.",
                key=source.prefix + chunk.key,
            )
    return found


def _small_files(source: FinishedDataset, indexes: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Return what lies beside the chunks and belongs to the dataset, but the indexes."""
    names = [FINISHED]
    for side in source.sides:
        folders = {chunk.key.rpartition("/")[0] for chunk in side.chunks}
        names += [f"{folder}/index.json".lstrip("/") for folder in sorted(folders)]
    found = [(name, _read(source.store, source.prefix + name)) for name in names]
    files = [(name, content) for name, content in found if content is not None]
    for side in source.sides:
        if side.index != MASTER:
            continue
        for entry in decode_json(indexes[side.folder + side.index])["shards"]:
            name = f"{side.folder}{entry['directory'].rstrip('/')}/{SHARD}"
            content, _ = read_object(source.store, source.prefix + name)
            shown = decode_json(content)
            shown.pop("progress", None)
            files.append((name, encode_metadata({**shown, **_FREE})))
    return files


def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        return read_object(store, key)[0]
    except (ObjectNotFoundError, DataNotFoundError):
        return None

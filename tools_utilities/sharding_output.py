"""Where a sharded dataset goes: its store, its work folder on this machine, its index and its end.

Local outputs keep their work (progress, unfinished chunks) in hidden names beside the shards, so that
finished chunks are renamed into place; the others in the state folder of this machine.
"""

import functools
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.chunk_publisher import Uploader, move_into
from tools_utilities.dataset_additions import Addition, finish_addition
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.dataset_metadata import (
    encode_metadata,
    flat_manifest,
    master_metadata,
    shard_chunks,
    shard_metadata,
)
from tools_utilities.errors import (
    ChangedError,
    DataNotFoundError,
    ObjectNotFoundError,
    QuarkError,
    UsageError,
)
from tools_utilities.json_text import decode_json
from tools_utilities.manifest import FLAT, MASTER, Chunk, encode_manifest
from tools_utilities.object_store import open_store
from tools_utilities.patient_store import PatientStore
from tools_utilities.peer_indexes import peer_index
from tools_utilities.sharded_dataset import Publisher
from tools_utilities.sharding_marker import NAME, PrefixMarker
from tools_utilities.sharding_plan import ShardingPlan
from tools_utilities.sharding_progress import (
    Header,
    Progress,
    Round,
    StoredProgress,
    difference,
)

STAGING = ".quark-staging"
PROGRESS = ".quark-progress.jsonl"
FINISHED = ".quark-finished.json"
_WRITES_AT_ONCE, _UPLOADS_AT_ONCE = 8, 3
HERE, THERE, FOUND = "here", "there", "found"
"""Progress is kept on this machine · beside the output · there if it is there already, else here."""


class ShardingOutput:
    """The output of one run."""

    def __init__(
        self,
        output_dir: str,
        plan: ShardingPlan,
        *,
        state_dir: Path | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        region: str | None = None,
        addition: Addition | None = None,
    ) -> None:
        """`addition`: what is made is added to the dataset there, under the numbers of this."""
        self._plan = plan
        self._addition = addition
        self._name = output_dir
        folder = output_dir
        if plan.layout == "file":
            folder = output_dir.rpartition("/")[0] or "."
        spec, self._prefix = locate_dataset(
            folder, endpoint_url=endpoint_url, profile=profile, region=region
        )
        self._store = PatientStore(open_store(spec), whole_files=False)
        self._local: Path | None = None
        if spec.uri.startswith("file://"):
            self._local = Path(spec.uri.removeprefix("file://"))
            hidden = f".quark-{plan.name}" if plan.layout == "file" else ""
            if addition is not None:
                hidden = f".quark-{addition.identity}"  # others may be adding meanwhile
            self.work_folder = self._local / hidden
        else:
            base = state_dir or Path.home() / ".local/state/quark/sharding"
            identity = f"{spec.endpoint_url or ''} {output_dir.rstrip('/')}"
            identity += f" {addition.identity}" if addition is not None else ""
            self.work_folder = base / hashlib.sha256(identity.encode()).hexdigest()[:24]
        self.progress = Progress(self.work_folder / PROGRESS)

    def keep_progress(self, place: str) -> None:
        """Say where the progress of a remote output is kept: HERE (as it is), THERE, or FOUND."""
        if place == HERE or self._local is not None:
            return
        path = self.work_folder / PROGRESS
        stored = StoredProgress(path, self._store, self._prefix + PROGRESS)
        if place == THERE or stored.is_stored:
            self.progress = stored

    @property
    def staging(self) -> Path:
        """Where unfinished chunks and other temporary files are; removed at the end."""
        return self.work_folder / STAGING

    def publisher(self, sleep: Callable[[float], None] = time.sleep) -> Publisher:
        """Return what takes finished chunks; `sleep` waits between the tries of an upload."""
        publish = (
            functools.partial(move_into, self._local)
            if self._local is not None
            else Uploader(self._store, self._prefix, sleep)
        )
        at_once = _WRITES_AT_ONCE if self._local is not None else _UPLOADS_AT_ONCE
        return Publisher(self.staging, publish, at_once)

    @contextmanager
    def kept_apart(self, header: Header, *, goes_on: bool = False) -> Iterator[None]:
        """Keep runs of other sources or plans away from a remote output, from any machine.

        `goes_on`: another machine does the work afterwards, under the same marker.

        Raises:
            UsageError: such a run is writing it, or left off there.
            ChangedError: this machine began something else there.
        """
        if self._local is not None or self._addition is not None:  # by other means
            yield
            return
        name = f"{NAME}-{self._plan.name}.json" if self._plan.layout == "file" else f"{NAME}.json"
        marker = PrefixMarker(
            self._store, self._prefix + name, header, self.work_folder, self._name
        )
        marker.take(lambda: self.progress.check(header))
        try:
            yield
        except BaseException:
            if marker.is_new and not self.progress.begun:  # there is nothing to be kept apart
                with suppress(QuarkError):
                    marker.release()
            raise
        if not goes_on:
            marker.release()

    def clean(self) -> None:
        """Remove what a killed run left: parts of uploads in the store, unfinished chunks here."""
        for left in self.staging.glob("*.tmp"):
            left.unlink(missing_ok=True)
        length = len(self._prefix)
        self._store.abandon_uploads(self._prefix, lambda key: self._plan.owns(key[length:]))

    def finished(self, header: Header) -> dict[str, Any] | None:
        """Return the summary of the same run, finished earlier; None when there is none.

        Raises:
            UsageError: another dataset is there.
            ChangedError: it was made from a source that changed since.
        """
        if self._addition is not None:
            return self._addition.summary if self._addition.done else None
        if self._plan.layout == "file":
            if not self.progress.begun and self._read(self._plan.name, end=0) is not None:
                raise UsageError(
                    f"{self._name} exists", hint="Choose another name, or delete it first."
                )
            return None
        index = self._read(self._index_names()[-1])
        if index is None:
            return None
        marker = self._read(FINISHED)
        done = None if marker is None else decode_json(marker, type=Header)
        if done is None or (done != header and done.fingerprint == header.fingerprint):
            what = "nobody knows what" if done is None else difference(done, header)
            raise UsageError(
                f"{self._name}: holds a dataset made from something else or with other settings "
                f"({what})",
                hint="Choose another --output_dir, or delete that one first.",
            )
        if done != header:
            raise ChangedError(
                f"{self._name}: made from {difference(done, header)}",
                hint="Choose another --output_dir, or delete that one first.",
            )
        found = [decode_json(self._read(name) or b"{}") for name in self._index_names()]
        return _summary(found)

    def _index_names(self) -> list[str]:
        if self._plan.layout == "flat":
            return [FLAT]
        return [side + MASTER for side in self._plan.sides()]

    def finish(self, rounds: Sequence[Round], header: Header) -> dict[str, Any]:
        """Write the metadata, the index last, and forget the work; returns the summary."""
        if self._addition is not None:
            summary = self._write_addition(rounds, self._addition)
        elif self._plan.layout == "file":
            summary = {"total_tasks": rounds[-1].samples, "num_shards": 1}
        elif self._plan.layout == "flat":
            summary = self._write_flat(rounds, header)
        else:
            summary = self._write_folders(rounds, header)
        self.progress.remove()
        shutil.rmtree(self.staging, ignore_errors=True)
        if self._plan.layout == "file" or self._local is None or self._addition is not None:
            shutil.rmtree(self.work_folder, ignore_errors=True)
        return summary

    def _write_flat(self, rounds: Sequence[Round], header: Header) -> dict[str, Any]:
        manifest = flat_manifest(rounds, self._prefix, self._plan.token_width)
        chunks = [chunk for shard in manifest.shards for chunk in shard.chunks]
        self._write_peer_index("", chunks)
        self._store.put(self._prefix + FINISHED, msgspec.json.encode(header))
        # The index last: its presence means every shard arrived.
        content = encode_manifest(manifest)
        self._store.put(self._prefix + FLAT, content)
        return _summary([decode_json(content)])

    def _write_folders(self, rounds: Sequence[Round], header: Header) -> dict[str, Any]:
        masters = {}
        with ThreadPoolExecutor(1) as beside:
            finished = beside.submit(
                self._store.put, self._prefix + FINISHED, msgspec.json.encode(header)
            )
            for side, numbers in self._plan.sides().items():
                shards = shard_chunks(rounds, numbers)
                self._write_shards(side, shards)
                masters[side] = master_metadata(
                    shards, self._plan.chunk_bytes, rounds[0].schema, self._plan.token_width
                )
            finished.result()
        for side, master in masters.items():
            self._store.put(f"{self._prefix}{side}{MASTER}", encode_metadata(master))
        return _summary(list(masters.values()))

    def _write_addition(self, rounds: Sequence[Round], addition: Addition) -> dict[str, Any]:
        if self._plan.layout == "flat":
            found = flat_manifest(rounds, self._prefix).shards
            shards = [list(shard.chunks) for shard in found]
        else:
            shards = shard_chunks(rounds, range(self._plan.num_shards))
            self._write_shards("", shards, addition.first_shard)
        return finish_addition(self._store, self._prefix, addition, shards).summary

    def _write_shards(
        self, side: str, shards: Sequence[Sequence[Chunk]], first_shard: int = 0
    ) -> None:
        """Write what lies beside each shard's chunks; several at a time, as each waits for the disk."""

        def write(number: int, chunks: Sequence[Chunk]) -> None:
            folder = f"{side}shard_{number:03d}/"
            if chunks:
                self._write_peer_index(folder, chunks)
            total, width = first_shard + len(shards), self._plan.token_width
            content = encode_metadata(shard_metadata(number, total, chunks, width))
            self._store.put(f"{self._prefix}{folder}metadata.json", content)

        with ThreadPoolExecutor(_WRITES_AT_ONCE, thread_name_prefix="metadata") as pool:
            for _ in pool.map(write, range(first_shard, first_shard + len(shards)), shards):
                pass

    def _write_peer_index(self, folder: str, chunks: Sequence[Chunk]) -> None:
        index = peer_index(self._plan.format, chunks, self._range)
        if index is not None:
            self._store.put(f"{self._prefix}{folder}index.json", index)

    def _range(self, name: str, start: int, end: int) -> bytes:
        return self._store.read(self._prefix + name, start=start, end=end)[0]

    def _read(self, name: str, **span: int) -> bytes | None:
        try:
            return self._store.read(self._prefix + name, **span)[0]
        except (ObjectNotFoundError, DataNotFoundError):
            return None


def _summary(indexes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the master metadata, or what it would say; of two sides, their sums."""
    if len(indexes) == 1 and "total_tasks" in indexes[0]:
        return indexes[0]
    return {
        "total_tasks": sum(
            index.get("total_tasks", index.get("num_samples", 0)) for index in indexes
        ),
        "num_shards": sum(len(index["shards"]) for index in indexes),
    }

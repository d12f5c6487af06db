"""`_process.json`: what a batch job is, beside its claims; it also says which shards they are for."""

import msgspec

from tools_utilities.errors import DataError, ObjectNotFoundError
from tools_utilities.json_text import decode_json
from tools_utilities.manifest import Chunk, Manifest, Shard
from tools_utilities.object_store import ObjectStore, read_object
from tools_utilities.patience import patiently
from tools_utilities.prepared_types import prepared

JOB_KEY = "_process.json"


@prepared
class ProcessJob(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a job that job."""

    dataset: str
    function: str
    out: str
    """URI of the folder of results."""
    output_format: str = "jsonl"
    on_bad: str = "fail"
    max_samples: int | None = None
    token_dtype: str | None = None
    """As it was said of `.bin` files."""
    chunks: str = ""
    """Digest of the chunks' keys, counts and sizes."""
    shards: tuple[tuple[int, int], ...] = ()
    """(shard, samples; 1 where nobody has counted): claims are looked at without the dataset."""

    @property
    def manifest(self) -> Manifest:
        """The job's shards, without the chunks' names."""
        shards = tuple(
            Shard(shard_id=number, chunks=(Chunk(key="", num_samples=samples),))
            for number, samples in self.shards
        )
        return Manifest(prefix="", shards=shards)


class FoundJob(msgspec.Struct, frozen=True):
    """A job as it was read."""

    job: ProcessJob
    etag: str | None


def read_job(store: ObjectStore, prefix: str) -> FoundJob | None:
    """Return the job whose claims are below a prefix, or None.

    Raises:
        DataError: something else has its name.
    """
    return patiently(lambda: _read(store, prefix + JOB_KEY))


def _read(store: ObjectStore, key: str) -> FoundJob | None:
    try:
        data, info = read_object(store, key)
    except ObjectNotFoundError:
        return None
    try:
        return FoundJob(decode_json(data, type=ProcessJob), info.etag)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{key}: not the record of a job: {error}", hint="Move it away.", key=key
        ) from error

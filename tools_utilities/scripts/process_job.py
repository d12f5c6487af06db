"""Which job the claims beside a dataset belong to, so that two jobs never mix their results.

`_process.json` stands beside the claims: written once, by a conditional put, by whoever starts first.
A second job on the same dataset (another function, say) keeps its claims in its own output folder.
"""

import msgspec

from tools_utilities.errors import ConditionFailedError, DataError, ObjectNotFoundError, UsageError
from tools_utilities.object_store import ObjectStore
from tools_utilities.prepared_types import prepared
from tools_utilities.scripts.shard_manager import ShardManager

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
    chunks: str = ""
    """Digest of the chunks' keys, counts and sizes."""


def settle_job(manager: ShardManager, store: ObjectStore, prefix: str, job: ProcessJob) -> bool:
    """Return whether the claims below `prefix` are this job's; they become it if they are nobody's.

    An earlier job that left neither a result nor a claim is forgotten.
    """
    key = prefix + JOB_KEY
    while True:
        try:
            body = store.get(key)
        except ObjectNotFoundError:
            etag, found = None, None
        else:
            try:
                found = _decode(key, b"".join(body))
            finally:
                body.close()
            etag = body.info.etag
        if found == job:
            return True
        if found is not None and _in_use(manager):
            return False
        try:
            data = msgspec.json.format(msgspec.json.encode(job)) + b"\n"
            if etag is None:
                store.put_if_absent(key, data)
            else:
                store.put_if_match(key, data, etag)
        except ConditionFailedError:
            continue  # another machine was first, or this one was and nobody told it: look again
        return True


def other_job_error(store: ObjectStore, prefix: str, function: str) -> UsageError:
    """Return the error for a second job that has no place of its own."""
    place = f"{store.spec.uri}/{prefix}"
    return UsageError(
        f"{place}: another job has results here (see {place}{JOB_KEY}), not {function}'s",
        hint="Give this job a place of its own: `… to FOLDER` (--output_dir FOLDER).",
    )


def _decode(key: str, data: bytes) -> ProcessJob:
    try:
        return msgspec.json.decode(data, type=ProcessJob)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{key}: not the record of a job: {error}", hint="Move it away.", key=key
        ) from error


def _in_use(manager: ShardManager) -> bool:
    rows = manager.get_shard_status()["shards"]
    return any(row["output"] is not None or row["owner"] is not None for row in rows)

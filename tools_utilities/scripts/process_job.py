"""Which job the claims beside a dataset belong to, so that two jobs never mix their results.

`_process.json` stands beside the claims: written once, by a conditional put, by whoever starts first.
A second job on the same dataset (another function, say) keeps its claims in its own output folder.
"""

import functools

import msgspec

from tools_utilities.errors import ConditionFailedError, UsageError
from tools_utilities.object_store import ObjectStore
from tools_utilities.patience import patiently, told
from tools_utilities.process_record import JOB_KEY, ProcessJob, read_job
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.shard_status import DAMAGED


def settle_job(manager: ShardManager, store: ObjectStore, prefix: str, job: ProcessJob) -> bool:
    """Return whether the claims below `prefix` are this job's; they become it if they are nobody's.

    An earlier job that left neither a result nor a claim is forgotten.
    """
    data = msgspec.json.format(msgspec.json.encode(job)) + b"\n"

    def write(etag: str | None) -> None:
        if etag is None:
            store.put_if_absent(prefix + JOB_KEY, data)
        else:
            store.put_if_match(prefix + JOB_KEY, data, etag)

    while True:
        found = read_job(store, prefix)
        if found is not None and found.job == job:
            return True
        if found is not None and _in_use(manager):
            return False
        etag = found.etag if found else None
        try:
            patiently(functools.partial(told, functools.partial(write, etag)))
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


def _in_use(manager: ShardManager) -> bool:
    rows = manager.get_shard_status()["shards"]
    return any(
        row["output"] is not None or row["owner"] is not None or row["status"] == DAMAGED
        for row in rows
    )

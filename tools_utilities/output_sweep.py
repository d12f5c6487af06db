"""Finds, and removes, what claims that were lost left behind beside the committed outputs.

A worker writes below `<out>/shard_NNN/<gen>-<owner>/`; readers follow only the `output` of done records, so
what lies beside it is never seen, and stays. Only the shards that are done are looked at: nobody works
there any more, and a worker that was paused finds its claim lost whatever it still writes. Kept are the
committed folder, a generation beyond the record's, and every name that is not of this form.
"""

import functools
from collections.abc import Callable, Iterable

import msgspec

from tools_utilities.claim_record import ClaimRecord, output_folder
from tools_utilities.errors import DataNotFoundError
from tools_utilities.indexed_objects import FENCED_FOLDER
from tools_utilities.object_store import ObjectStore
from tools_utilities.patience import patiently


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """The output of one claim that was lost."""

    shard_id: int
    gen: int
    folder: str
    """URI, ends in `/`."""
    num_files: int
    num_bytes: int


def find_orphans(
    records: Iterable[tuple[int, ClaimRecord | None]],
    locate: Callable[[str], tuple[ObjectStore, str]],
    *,
    delete: bool = False,
) -> list[Orphan]:
    """Return what was left behind, by shard; with `delete` it is gone afterwards.

    `locate` gives the store and key prefix of an output's URI.
    """
    found = []
    for shard_id, record in records:
        if record is not None and record.state == "done" and record.output:
            found += _of_shard(shard_id, record, locate, delete=delete)
    return found


def _of_shard(
    shard_id: int,
    record: ClaimRecord,
    locate: Callable[[str], tuple[ObjectStore, str]],
    *,
    delete: bool,
) -> list[Orphan]:
    uri = (record.output or "").rstrip("/") + "/"
    committed = output_folder(f"shard_{shard_id:03d}", record)
    if not uri.endswith(f"/{committed}"):
        return []  # an output that was named by hand: what is beside it is not ours
    beside = uri.removesuffix(committed) + f"shard_{shard_id:03d}/"
    store, prefix = locate(beside)
    keep = committed.rstrip("/").rpartition("/")[2]
    claims: dict[str, list[tuple[str, int]]] = {}
    for key, size_bytes in _listed(store, prefix):
        name, slash, _ = key.removeprefix(prefix).partition("/")
        fenced = FENCED_FOLDER.fullmatch(name)
        if slash and fenced and name != keep and int(fenced[1]) <= record.gen:
            claims.setdefault(name, []).append((key, size_bytes))
    orphans = []
    for name, objects in sorted(claims.items(), key=lambda item: int(item[0].partition("-")[0])):
        if delete:
            # The list of finished chunks goes first, so that no half of one looks whole.
            for key, _ in sorted(objects, key=lambda entry: not entry[0].endswith(".done.json")):
                patiently(functools.partial(store.delete, key))
        orphans.append(
            Orphan(
                shard_id=shard_id,
                gen=int(name.partition("-")[0]),
                folder=f"{beside}{name}/",
                num_files=len(objects),
                num_bytes=sum(size_bytes for _, size_bytes in objects),
            )
        )
    return orphans


def _listed(store: ObjectStore, prefix: str) -> list[tuple[str, int]]:
    try:
        return patiently(lambda: [(info.key, info.size_bytes) for info in store.list(prefix)])
    except DataNotFoundError:  # the folder of results was removed
        return []

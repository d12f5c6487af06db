"""Which of a folder's data files are its data, where an index or a batch job says so.

A finished dataset is what its index names: beside it lie additions that nobody merged, and what batch
jobs made of it. Results of jobs stand in a folder for each claim, of which only some count.
"""

import logging
import re
from collections.abc import Sequence

from tools_utilities.errors import DataNotFoundError
from tools_utilities.manifest import FLAT, MASTER, load_manifest
from tools_utilities.object_store import ObjectInfo, ObjectStore

FENCED_FOLDER = re.compile(r"([0-9]+)-[^/]+_[0-9]+_[0-9a-f-]{36}")
"""`<generation>-<owner>`: what one claim of a shard wrote (`claim_record.output_folder`)."""

_LOGGER = logging.getLogger(__name__)


def named_objects(
    store: ObjectStore, listed: Sequence[ObjectInfo], chosen: Sequence[ObjectInfo], folder: str
) -> list[ObjectInfo]:
    """Return those of the chosen objects below `folder` that are its data; says what is left out.

    `listed`: everything there. Where there is an index, its objects are all there.

    Raises:
        DataNotFoundError: an index names what is not there, or nothing but results is.
        DataError: an index is damaged.
    """
    kept = list(chosen)
    there = {info.key for info in listed}
    for index in sorted(_indexed(listed, folder), key=len):
        kept = _of_index(store, kept, there, index)
    data = [info for info in kept if not _is_result(info.key[len(folder) :])]
    if kept and not data:
        raise DataNotFoundError(
            f"{store.spec.uri}/{folder}: results of batch jobs, and not all of them count",
            hint="Name the folders that the `output` of the done claim records says.",
            key=folder,
        )
    _tell(folder, "results of batch jobs", len(kept) - len(data))
    return data


def _indexed(listed: Sequence[ObjectInfo], folder: str) -> set[str]:
    """Return the folders that have an index of a dataset, or something called so."""
    found = set()
    for info in listed:
        head, slash, name = info.key.rpartition("/")
        if name in {MASTER, FLAT} and info.key.startswith(folder):
            found.add(head + slash)
    return found


def _of_index(
    store: ObjectStore, infos: list[ObjectInfo], there: set[str], folder: str
) -> list[ObjectInfo]:
    if not any(info.key.startswith(folder) for info in infos):
        return infos
    manifest = load_manifest(store, folder, patient=True)
    if manifest is None:
        return infos
    names = set(manifest.chunks)
    if missing := names - there:
        raise DataNotFoundError(
            f"{store.spec.uri}/{min(missing)} is not there, and the index of {folder or 'it'} names it",
            hint="Put it back, or delete the index to read the files that are there.",
            key=min(missing),
        )
    kept = [info for info in infos if not info.key.startswith(folder) or info.key in names]
    _tell(folder, "files that its index does not name", len(infos) - len(kept))
    return kept


def _is_result(below: str) -> bool:
    return any(FENCED_FOLDER.fullmatch(part) for part in below.split("/")[:-1])


def _tell(folder: str, what: str, count: int) -> None:
    if count:
        _LOGGER.warning("%s: left out: %d %s", folder or "the input", count, what)

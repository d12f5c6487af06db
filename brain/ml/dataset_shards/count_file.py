"""Counts and listings kept beside the cache, so that a dataset is counted once and not every run.

Files are named by fingerprints: data that changed has other names. Written whole and
renamed; losing one costs a recount. A folder that cannot be written is a debug line, not an error.
"""

import contextlib
import logging
import os
import zlib
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from brain.ml.dataset_shards.shuffle_order import Indices
from tools_utilities.cache_folder import COUNTS_FOLDER, SharedModes
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared

logger = logging.getLogger(__name__)

_MAGIC = b"quark-counts-1\n"
LISTING_OBJECTS = 200_000
"""Longer listings are not kept: they only serve to say what changed."""


@prepared
class ListedObject(msgspec.Struct, frozen=True, array_like=True):
    """One object of a listing that is kept to tell later what changed."""

    key: str
    """Relative to the dataset's folder."""
    size_bytes: int
    token: str
    """Its version: checksum or etag."""


def counts_folder(manager: Any, data_folder: str) -> Path | None:
    """Return where the counts of a manager's data are kept; None: nowhere.

    Never in the folder of the data itself: what lies there is somebody's, and is listed.
    """
    folder = getattr(manager, "counts_dir", None)
    if folder is None and (cache := getattr(manager, "cache_dir", None)) is not None:
        folder = Path(cache) / COUNTS_FOLDER
    scheme, _, root = manager.store.spec.uri.partition("://")
    if folder is None or scheme != "file":
        return folder
    inside = folder.resolve().is_relative_to((Path(root) / data_folder).resolve())
    return None if inside else folder


def encode_counts(counts: Indices) -> bytes:
    """Return counts as a file holds them."""
    body = counts.astype("<i8").tobytes()
    return _MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def decode_counts(data: bytes, num_splits: int) -> Indices | None:
    """Return the counts that a file holds; None: it is damaged, or of something else."""
    head, body = data[: len(_MAGIC) + 4], data[len(_MAGIC) + 4 :]
    intact = head == _MAGIC + zlib.crc32(body).to_bytes(4, "little")
    if not intact or len(body) != 8 * num_splits:
        return None
    return np.frombuffer(body, "<i8").astype(np.int64)


class CountFile:
    """The counts of one dataset's splits."""

    def __init__(self, folder: Path, order_fingerprint: str, change_fingerprint: str) -> None:
        self.folder = folder
        self.name = f"{change_fingerprint}-{order_fingerprint}"
        self._counts = folder / f"{self.name}.counts"
        self._listing = folder / f"{change_fingerprint}.listing"

    def load(self, num_splits: int) -> Indices | None:
        """Return saved counts (-1 where unknown), or None; a damaged file counts as none."""
        try:
            data = self._counts.read_bytes()
        except OSError:
            return None
        counts = decode_counts(data, num_splits)
        if counts is None:
            logger.debug("%s is damaged and left aside", self._counts)
        return counts

    def save(self, counts: Indices) -> None:
        """Add what is known now to what was saved."""
        saved = self.load(len(counts))
        merged = counts if saved is None else np.where(counts >= 0, counts, saved)
        if saved is not None and bool((merged == saved).all()):
            return
        write_whole(self._counts, encode_counts(merged))

    def save_listing(self, objects: Iterable[ListedObject]) -> None:
        """Keep a listing, once."""
        if not self._listing.exists():
            write_whole(self._listing, msgspec.json.encode(list(objects)))

    def load_listing(self) -> list[ListedObject] | None:
        """Return the kept listing, or None."""
        try:
            return decode_json(self._listing.read_bytes(), type=list[ListedObject])
        except (OSError, msgspec.DecodeError):
            return None


class LabelFile:
    """The classes of one dataset's splits: samples by the value of one field."""

    def __init__(self, beside: CountFile, key: str) -> None:
        name = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        self._path = beside.folder / f"{beside.name}-{name}.labels"

    def load(self) -> dict[int, dict[str, int]] | None:
        """Return what was saved, or None."""
        try:
            return decode_json(self._path.read_bytes(), type=dict[int, dict[str, int]])
        except (OSError, msgspec.DecodeError):
            return None

    def save(self, labels: dict[int, dict[str, int]]) -> None:
        """Keep them for the next process."""
        write_whole(self._path, msgspec.json.encode(labels))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all; quietly does nothing where it cannot."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        modes = _make_folder(path.parent)
        with temporary.open("wb") as file:
            modes.apply(file.fileno())
            file.write(data)
        temporary.replace(path)
    except OSError as error:
        logger.debug("%s is not kept: %s", path, error)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _make_folder(folder: Path) -> SharedModes:
    """Make a folder as open as the cache folder above it, which is private when it is new."""
    cache = folder.parent
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.mkdir(mode=0o700, exist_ok=True)
    modes = SharedModes(cache)
    modes.make_folder(folder)
    return modes

"""Counts kept in the bucket itself, beside the data: what ranks have counted together, once for everybody.

Machines come and go with their caches; a counting pass reads everything. So where the store may be
written to, its result is one small object below `_quark_counts/` in the dataset's folder (a hidden name:
never listed as data). Named by fingerprints, so that data that changed has another one. A store that
refuses is a debug line: reading needs no permission to write.
"""

import logging

from brain.ml.dataset_shards.count_file import decode_counts, encode_counts
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.stream_index import StreamIndex
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import ObjectStore

logger = logging.getLogger(__name__)

FOLDER = "_quark_counts/"


class SharedCounts:
    """The object that holds the counts of one dataset in its own store."""

    def __init__(self, store: ObjectStore, index: StreamIndex) -> None:
        """Name it; nothing is sent."""
        self._store = store
        self._num_splits = len(index.table)
        name = f"{index.change_fingerprint}-{index.order_fingerprint}.counts"
        self.key = index.folder + FOLDER + name

    @property
    def is_possible(self) -> bool:
        """Whether this is a bucket: nothing is ever put into a local folder of data."""
        return not self._store.spec.uri.startswith("file://")

    def load(self) -> Indices | None:
        """Return what an earlier run has counted (-1 where it could not), or None."""
        if not self.is_possible:
            return None
        try:
            body = self._store.get(self.key)
            try:
                data = b"".join(body)
            finally:
                body.close()
        except QuarkError as error:
            logger.debug("no counts in the store: %s", error)
            return None
        return decode_counts(data, self._num_splits)

    def save(self, counts: Indices) -> None:
        """Keep them for the next run, wherever that is; quietly does nothing where that is refused."""
        if not (self.is_possible and self._store.writable):
            return
        try:
            self._store.put(self.key, encode_counts(counts))
        except QuarkError as error:
            logger.debug("counts are not kept in the store: %s", error)
        else:
            logger.info("kept the counts of %d splits in %s", self._num_splits, self.key)

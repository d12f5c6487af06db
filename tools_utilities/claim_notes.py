"""What workers tell each other of done shards, so that not every worker reads every record.

Several workers are at the end of a dataset at the same time, and each would read what all the others
completed: (N - 1) requests more for every shard. One object beside the claims holds the versions under
which records were seen done. It is a hint and no part of the protocol: a note counts only for a record
that a listing shows under that very version, and versions do not come back (bodies are unique), so it says
what reading the record would say. What is lost when two workers write at once costs requests, nothing else.
"""

from collections.abc import Mapping

import msgspec

from tools_utilities.errors import ConditionFailedError, ObjectNotFoundError, QuarkError
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import ObjectStore, read_object

NOTES_NAME = ".quark-done.json"
TRIES = 3


class DoneNotes:
    """The notes beside the claims of one dataset. Nothing here raises: without notes, records are read."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._key = prefix + NOTES_NAME

    def read(self) -> dict[int, str]:
        """Return shard → the version of its record that was seen done."""
        try:
            return self._read()[0]
        except QuarkError:
            return {}

    def add(self, done: Mapping[int, str]) -> None:
        """Write down what is known to be done, beside what is there."""
        for _ in range(TRIES):
            try:
                notes, etag = self._read()
                data = msgspec.json.encode(dict(sorted((notes | dict(done)).items())))
                if etag is None:
                    self._store.put_if_absent(self._key, data)
                else:
                    self._store.put_if_match(self._key, data, etag)
            except ConditionFailedError:
                continue  # another worker wrote meanwhile: its notes are kept
            except QuarkError:
                return  # a hint is not worth waiting for
            return

    def _read(self) -> tuple[dict[int, str], str | None]:
        try:
            data, info = read_object(self._store, self._key)
        except ObjectNotFoundError:
            return {}, None
        try:
            return decode_json(data, type=dict[int, str]), info.etag
        except msgspec.MsgspecError:
            return {}, info.etag  # what somebody else wrote there is replaced

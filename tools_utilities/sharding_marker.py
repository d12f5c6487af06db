"""One source and one plan a prefix: runs of other machines that would write others into it are refused.

A run creates a small object under the prefix that says what it makes of what, before it writes anything
there, and removes it once the index is written, which says it from then on. The same source and plan go
on from any machine, also while the first is at it: they make the same bytes. What a crash left keeps
others away until somebody deletes it; the machine that left it may begin something else, for its own lock
shows that the run has ended. Local outputs need none of it: their lock and progress lie in them.
"""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

import msgspec

from tools_utilities.errors import (
    AccessError,
    ConditionFailedError,
    DataNotFoundError,
    ObjectNotFoundError,
    QuarkError,
    StoreError,
    UsageError,
)
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import ObjectInfo
from tools_utilities.patience import patiently, told
from tools_utilities.patient_store import PatientStore
from tools_utilities.prepared_types import prepared
from tools_utilities.sharding_progress import Header, difference

NAME = ".quark-sharding"
MAKER = ".quark-maker"
_TRIES = 5
_UNSUPPORTED = frozenset({400, 405, 501})
"""What stores answer that know no conditional writes."""
_LOGGER = logging.getLogger(__name__)


@prepared
class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What stands under a prefix while it is being written."""

    header: Header
    """Without its objects."""
    maker: str
    """The work folder that it was made in: a machine's, for one output."""


class PrefixMarker:
    """The marker of one run at one prefix."""

    def __init__(
        self, store: PatientStore, key: str, header: Header, work_folder: Path, output: str
    ) -> None:
        self._store = store
        self._key = key
        self._work_folder = work_folder
        self._output = output
        self._own = Marker(header=msgspec.structs.replace(header, objects={}), maker=self._maker())
        self._data = msgspec.json.format(msgspec.json.encode(self._own)) + b"\n"
        self.is_new = False
        """Whether this run made it, and not an earlier one of the same."""

    def take(self, check_progress: Callable[[], object]) -> None:
        """Return once this run may write here.

        `check_progress` raises where the progress that is found says that something else was begun. Where it
        does not, the marker of an earlier run of this work folder is of no use: it has ended.

        Raises:
            UsageError: a run of another source or plan is writing here, or left off.
        """
        for _ in range(_TRIES):
            found = self._read()
            if found is None:
                if self._create():
                    return
                continue  # somebody was faster, or it was this very request: it is read now
            marker, info = found
            if marker is not None and marker.header == self._own.header:
                return
            check_progress()  # it says more
            if marker is None or marker.maker != self._own.maker:
                raise self._refusal(marker)
            if self._supersede(info):
                return
        raise StoreError(f"{self._place}: changed by others all the time", hint="Run it again.")

    def release(self) -> None:
        """Remove it, if it is still this run's; who cannot delete leaves it, and beside an index it is none."""
        with contextlib.suppress(AccessError, StoreError):
            marker = (self._read() or (None, None))[0]
            if marker is not None and marker.header == self._own.header:
                self._store.delete(self._key)
        (self._work_folder / MAKER).unlink(missing_ok=True)

    @property
    def _place(self) -> str:
        return f"{self._store.endpoint_id}/{self._key}"

    def _read(self) -> tuple[Marker | None, ObjectInfo] | None:
        """Return the marker that is there (None: nobody can read it), or None."""
        try:
            data, info = self._store.read(self._key)
        except (ObjectNotFoundError, DataNotFoundError):
            return None
        try:
            return decode_json(data, type=Marker), info
        except msgspec.MsgspecError:
            return None, info

    def _maker(self) -> str:
        """Return what names this work folder alone."""
        with contextlib.suppress(OSError):
            if found := (self._work_folder / MAKER).read_text("ascii", "replace").strip():
                return found
        return str(uuid4())

    def _keep_maker(self) -> None:
        """Keep the name in the folder, so that it outlives a crash; before anybody is kept away by it."""
        (self._work_folder / MAKER).write_text(self._own.maker)

    def _create(self) -> bool:
        self._keep_maker()
        put = partial(self._store.put_if_absent, self._key, self._data)
        try:
            patiently(partial(told, put))
        except ConditionFailedError:
            return False
        except StoreError as error:
            if error.detail.get("status") not in _UNSUPPORTED:
                raise
            self._store.put(self._key, self._data)
            self._say_unguarded()
        else:
            self._check_conditions()
        self.is_new = True
        return True

    def _check_conditions(self) -> None:
        """Say so where the store makes again what is there."""
        with contextlib.suppress(QuarkError):  # it refuses, or cannot say
            self._store.put_if_absent(self._key, self._data)
            self._say_unguarded()

    def _say_unguarded(self) -> None:
        _LOGGER.warning(
            "%s: this store has no conditional writes; two runs of different sources that start here at "
            "the same moment are not kept apart",
            self._store.endpoint_id,
        )

    def _supersede(self, info: ObjectInfo) -> bool:
        """Take the place of an earlier run from this machine, which has ended without a finished chunk."""
        try:
            if info.etag is None:
                self._store.put(self._key, self._data)
            else:
                patiently(
                    partial(
                        told, partial(self._store.put_if_match, self._key, self._data, info.etag)
                    )
                )
        except ConditionFailedError:
            return False
        self.is_new = True
        return True

    def _refusal(self, marker: Marker | None) -> UsageError:
        what = "nobody can read what"
        if marker is not None:
            what = difference(marker.header, self._own.header)
        return UsageError(
            f"{self._output}: another run is writing it, or was and has not finished ({what})",
            hint="Choose another output, or wait for it. If it will not go on, delete "
            f"{self._place}; what it wrote is written over.",
        )

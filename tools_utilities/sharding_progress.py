"""How far a sharding run has come: an append-only file, one line a finished round.

A line is written after its chunks are safe, so what it says can be trusted after a kill at any
moment; a torn last line is as if it had never been written. It may be kept beside a remote output
too (`StoredProgress`), where any other machine finds it.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.errors import AccessError, ChangedError, DataNotFoundError, ObjectNotFoundError
from tools_utilities.manifest import Chunk
from tools_utilities.patient_store import PatientStore
from tools_utilities.prepared_types import prepared


@prepared
class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the run makes of what; a run goes on only under the same one."""

    schema: int = 1
    source: str
    fingerprint: str
    """Of the source's content."""
    objects: dict[str, str] = {}
    """What the source is made of (`Source.objects`)."""
    settings: dict[str, str | float | bool | None]


@prepared
class Round(msgspec.Struct, frozen=True, kw_only=True):
    """The state after a round: everything before it is in finished chunks."""

    samples: int
    """Records of the source dealt so far."""
    position: Mapping[str, int]
    """Where the next record is in the source."""
    chunks: dict[int, Chunk]
    """Shard → its chunk of this round; a shard that got no record has none."""
    schema: dict[str, str] = {}
    """The first round's: `schema_of` the first records."""


_LOOKED_AT = 256
_SHOWN_CHANGES = 3


def schema_of(records: Sequence[Any]) -> dict[str, str]:
    """Return field → JSON type (`integer or null` where they differ) of the first records."""
    kinds: dict[str, dict[str, None]] = {}
    for record in records[:_LOOKED_AT]:
        sample = msgspec.json.decode(record) if isinstance(record, bytes) else record
        for name, value in sample.items():
            kinds.setdefault(name, {})[_kind(value)] = None
    return {name: " or ".join(sorted(found)) for name, found in kinds.items()}


def _kind(value: Any) -> str:
    for kinds, name in _KINDS:
        if isinstance(value, kinds):
            return name
    return type(value).__name__  # datetime, Decimal, an array


# A bool is an int too: it has to be asked for first.
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "null"),
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (bytes, "bytes"),
    (dict, "object"),
    ((list, tuple), "array"),
)


class Progress:
    """The progress file of one output."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = str(path)
        """As it is said to whoever may want to delete it."""

    @property
    def begun(self) -> bool:
        """Whether a run began that has not ended."""
        return self._path.is_file()

    def load(self, header: Header) -> list[Round]:
        """Return the finished rounds, or none when nothing was begun.

        Raises:
            ChangedError: it was begun from another source or with other settings.
        """
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        if len(lines) < 2:  # noqa: PLR2004 - a header without its line end is torn
            return []
        self._compare(lines[0], header)
        # What follows the last line end was never finished.
        return [msgspec.json.decode(line, type=Round) for line in lines[1:-1]]

    def check(self, header: Header) -> None:
        """Raise what `load` would, and change nothing."""
        self.load(header)

    def _compare(self, line: bytes, header: Header) -> None:
        begun = msgspec.json.decode(line, type=Header)
        if begun != header:
            raise ChangedError(
                f"{self._name}: begun with {difference(begun, header)}",
                hint="Delete this file to start again, or run with what it was begun with.",
            )

    def begin(self, header: Header) -> None:
        """Start the file anew; it is durable with its first round."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(header) + b"\n")
        temporary.replace(self._path)

    def cut_torn_line(self) -> None:
        """Drop what follows the last line end, so that the next line starts clean."""
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._path, whole)

    def append(self, finished: Round) -> None:
        """Add a round, durably."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(finished) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def keep(self) -> None:
        """See to it that what was noted is found by whoever goes on; a file here is there already."""

    def remove(self) -> None:
        """Forget the run: its manifest is written."""
        self._path.unlink(missing_ok=True)


STORE_SECONDS = 10.0
"""Between two writes of progress to a store: it is written whole each time."""


class StoredProgress(Progress):
    """Progress beside the output, which whoever goes on finds from any machine; the file is a copy.

    What is in the store counts, also when the copy here is longer: another machine may have gone on.
    It may lack the rounds of the last seconds before a kill. Making them again makes the same bytes,
    and chunks that are there already are not sent again.
    """

    def __init__(
        self,
        path: Path,
        store: PatientStore,
        key: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path)
        self._store, self._key, self._clock = store, key, clock
        self._name = f"{store.endpoint_id}/{key}"
        self._kept_at = clock()

    def load(self, header: Header) -> list[Round]:
        """As of Progress, of what is in the store; what was begun here alone is taken there."""
        stored = self._stored()
        if stored is None:
            found = Progress(self._path).load(header)  # which says its own name
            if not found:
                super().begin(header)
            self.keep()
            return found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(stored)
        return super().load(header)

    def check(self, header: Header) -> None:
        """As of Progress."""
        stored = self._stored()
        if stored is None:
            Progress(self._path).load(header)
        elif b"\n" in stored:  # a header without its line end is torn
            self._compare(stored.partition(b"\n")[0], header)

    def begin(self, header: Header) -> None:
        """As of Progress."""
        super().begin(header)
        self.keep()

    def append(self, finished: Round) -> None:
        """As of Progress; in the store within STORE_SECONDS, or when the run ends."""
        super().append(finished)
        if self._clock() - self._kept_at >= STORE_SECONDS:
            self.keep()

    def keep(self) -> None:
        """Write it to the store."""
        if self._path.is_file():
            self._store.put(self._key, self._path.read_bytes())
            self._kept_at = self._clock()

    def remove(self) -> None:
        """As of Progress; who may not delete leaves it, and it counts no more beside a manifest."""
        super().remove()
        with contextlib.suppress(AccessError):
            self._store.delete(self._key)

    @property
    def is_stored(self) -> bool:
        """Whether somebody keeps it in the store."""
        return self._stored() is not None

    def _stored(self) -> bytes | None:
        try:
            return self._store.read(self._key)[0]
        except (ObjectNotFoundError, DataNotFoundError):
            return None


def difference(begun: Header, now: Header) -> str:
    """Say in words what the run began with that is not so now."""
    if begun.source != now.source:
        return f"another source ({begun.source})"
    if begun.fingerprint != now.fingerprint:
        return f"{begun.source} as it was before it changed ({_changes(begun, now)})"
    changed = [name for name, value in begun.settings.items() if now.settings.get(name) != value]
    return ", ".join(f"{name}={begun.settings[name]}" for name in changed) or "other settings"


def _changes(begun: Header, now: Header) -> str:
    found = []
    for name in sorted({**begun.objects, **now.objects}):
        before, after = begun.objects.get(name), now.objects.get(name)
        if before != after:
            found.append(f"{name}: {before or 'not there'} then, {after or 'not there'} now")
    shown = "; ".join(found[:_SHOWN_CHANGES])
    more = len(found) - _SHOWN_CHANGES
    return (shown + (f"; and {more} more" if more > 0 else "")) or "its objects"

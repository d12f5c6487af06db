"""Many listed objects in little memory: their text laid end to end, no Python object an entry.

A million objects take about 90 MB as `ObjectInfo` tuples do three times that. Costs a microsecond an
entry that is looked at.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
import numpy.typing as npt

from tools_utilities.object_store import ObjectInfo

_ERRORS = "surrogatepass"
_ABSENT = b"\x01"
"""No etag and no checksum is one control character."""


class PackedObjects(Sequence[ObjectInfo]):
    """A sequence that is filled once and makes each `ObjectInfo` when it is asked for."""

    def __init__(self, infos: Iterable[ObjectInfo] = ()) -> None:
        """Take over `infos` one by one; they are not kept."""
        self._text = bytearray()
        self._ends = array("q", [0])
        """Where key, etag and checksum of each end, three an entry."""
        self._sizes = array("q")
        for info in infos:
            self._append(info)

    def _append(self, info: ObjectInfo) -> None:
        self._text += info.key.encode("utf-8", _ERRORS)
        self._ends.append(len(self._text))
        for part in (info.etag, info.crc32c):
            self._text += _ABSENT if part is None else part.encode("utf-8", _ERRORS)
            self._ends.append(len(self._text))
        self._sizes.append(info.size_bytes)

    @property
    def size_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of every object; the memory is shared, so it cannot be written to."""
        sizes = np.frombuffer(self._sizes, np.int64) if self._sizes else np.zeros(0, np.int64)
        sizes.flags.writeable = False
        return sizes

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> ObjectInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[ObjectInfo]: ...
    def __getitem__(self, index: int | slice) -> ObjectInfo | list[ObjectInfo]:
        if isinstance(index, slice):
            return [self._at(number) for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        return self._at(number)

    def __iter__(self) -> Iterator[ObjectInfo]:
        return map(self._at, range(len(self)))

    def _at(self, number: int) -> ObjectInfo:
        cuts = self._ends[3 * number : 3 * number + 4]
        key, etag, checksum = (bytes(self._text[start:end]) for start, end in pairwise(cuts))
        return ObjectInfo(
            key=key.decode("utf-8", _ERRORS),
            size_bytes=self._sizes[number],
            etag=None if etag == _ABSENT else etag.decode("utf-8", _ERRORS),
            crc32c=None if checksum == _ABSENT else checksum.decode("utf-8", _ERRORS),
        )

"""WebDataset: a tar whose files are grouped into samples by their name up to the first dot.

A sample is `{"__key__": "folder/name", "ext": bytes, …}`: every field is the member's raw bytes, as
webdataset gives them undecoded; extensions are lower-cased, folders stay in the key. Files without a
dot or extension, and `__meta__` files, are no samples and are counted in `skipped`. Members of one
key need not be neighbours; a field that comes back later starts a new sample. Pickled fields are
refused by name: nothing in Quark unpickles data.
"""

import re
import tarfile
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np

from tools_utilities.cached_file import FAULT_BYTES
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.line_index import whole_object
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import ReadOptions, Sample, ShardBytes, ShardFormat, Split
from tools_utilities.split_content import SplitContent
from tools_utilities.tar_members import BLOCK_BYTES, Member, TarError, members, read_member

KEY_FIELD = "__key__"
PICKLED = frozenset({"pickle", "pkl", "pyd"})
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)


class WebDataset:
    """The format `webdataset`."""

    name = "webdataset"
    suffixes: tuple[str, ...] = (".tar",)
    names = None
    compressible = True

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],  # noqa: ARG002 - the contract's; a tar has no index
        target_bytes: int,  # noqa: ARG002 - the contract's; a tar cannot be cut
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> list[Split]:
        """Return one split: where a tar's members begin is only known by walking it."""
        return [whole_object(info)]

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> "TarSplit":
        """Walk the headers.

        Raises:
            RecordError: the archive is cut or damaged, or names a file twice in one sample.
        """
        return TarSplit(SplitContent(shard, split), options)

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write a tar with zero time stamps; values are bytes, or text for any other field.

        Raises:
            RecordError: a sample has no `__key__`, no field, or a value that is not bytes or text.
        """
        count = num_bytes = 0
        for sample in _told_apart(samples):
            for name, data in _member_bytes(sample, count):
                head = _member_header(name, len(data))
                end = bytes(-len(data) % BLOCK_BYTES)
                file.write(b"".join((head, data, end)))
                num_bytes += len(head) + len(data) + len(end)
            count += 1
        # As tarfile ends an archive: two empty blocks, filled up to a whole record.
        file.write(bytes(2 * BLOCK_BYTES + -(num_bytes + 2 * BLOCK_BYTES) % tarfile.RECORDSIZE))
        return count


_EMPTY_HEADER = tarfile.TarInfo("").tobuf(tarfile.PAX_FORMAT)
_NAME_BYTES, _SIZE_AT, _SUM_AT = 100, 124, 148
_MOST_OCTAL_BYTES = 8**11 - 1
_BARE_SUM = sum(_EMPTY_HEADER[:_SUM_AT]) + sum(_EMPTY_HEADER[_SUM_AT + 8 :]) - 11 * ord("0")
"""Of an empty header without its size and its sum."""


def _member_header(name: str, num_bytes: int) -> bytes:
    """Return a member's header blocks: as tarfile makes them, which takes twenty times as long."""
    if not name.isascii() or len(name) > _NAME_BYTES or num_bytes > _MOST_OCTAL_BYTES:
        entry = tarfile.TarInfo(name)
        entry.size = num_bytes
        return entry.tobuf(tarfile.PAX_FORMAT)
    named = name.encode("ascii")
    size = b"%011o" % num_bytes
    total = _BARE_SUM + sum(named) + sum(size) + 8 * ord(" ")
    return b"".join(
        (
            named.ljust(_NAME_BYTES, b"\0"),
            _EMPTY_HEADER[_NAME_BYTES:_SIZE_AT],
            size,
            _EMPTY_HEADER[_SIZE_AT + 11 : _SUM_AT],
            b"%06o\0 " % total,
            _EMPTY_HEADER[_SUM_AT + 8 :],
        )
    )


def split_name(name: str) -> tuple[str, str] | None:
    """Return (key, lower-case extension) of a member's name; None when it is no field."""
    found = _NAME.fullmatch(name)
    meta = "/" not in name and name.startswith("__") and name.endswith("__")
    return None if found is None or meta else (found[1], found[2].lower())


class TarSplit:
    """The samples of a tar, by index: where each member's header is, 4 bytes a member."""

    def __init__(self, content: SplitContent, options: ReadOptions) -> None:
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self._content = content
        self._columns = options.columns
        self._view = content.shard.read(0, content.shard.info.size_bytes)
        try:
            groups = self._group()
        except TarError as error:
            raise self._content.bad_record(str(error), offset=error.offset) from error
        self.num_samples = len(groups)
        self._bounds = np.cumsum([0, *map(len, groups)], dtype=np.uint32)
        self._blocks = np.array([block for group in groups for block in group], np.uint32)
        self.num_bytes = self._bounds.nbytes + self._blocks.nbytes + content.held_bytes

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples of raw bytes.

        Raises:
            RecordError: a field is pickled, or a field of `ReadOptions.columns` is missing.
        """
        return [self._sample(index) for index in indices]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return the bytes of samples that have exactly one field.

        Raises:
            UsageError: a sample has several.
        """
        return [self._only_field(self._sample(index)) for index in indices]

    def close(self) -> None:
        """Free the decoded bytes."""
        self._view = memoryview(b"")
        self._content.close()

    def _group(self) -> list["array[int]"]:
        groups: list[array[int]] = []
        newest: dict[
            str, tuple[int, set[str]]
        ] = {}  # key → its newest sample and that one's fields
        last_key = ""
        for member in members(self._view):
            self._content.passed(FAULT_BYTES)
            named = split_name(member.name) if member.is_file else None
            if named is None:
                self._skip(member)
                continue
            key, field = named
            place, fields = newest.get(key, (-1, set()))
            if field in fields and key == last_key:
                raise TarError(f"{member.name} is there twice in one sample", member.start)
            if place < 0 or field in fields:
                place, fields = len(groups), set()
                groups.append(array("Q"))
                newest[key] = place, fields
            fields.add(field)
            groups[place].append(member.start // BLOCK_BYTES)
            last_key = key
        return groups

    def _skip(self, member: Member) -> None:
        reason = "not a field" if member.is_file else "not a file"
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _sample(self, index: int) -> Sample:
        sample: Sample = {}
        num_bytes = 0
        blocks = self._blocks[self._bounds[index] : self._bounds[index + 1]].tolist()
        for block in blocks:
            member = read_member(self._view, block * BLOCK_BYTES)
            named = split_name(member.name)
            if named is None:
                continue
            key, field = named
            sample.setdefault(KEY_FIELD, key)
            if self._columns is not None and field not in self._columns:
                continue
            if field.rpartition(".")[2] in PICKLED:
                raise self._bad(index, member, f"the field {field!r} is pickled and is not read")
            sample[field] = bytes(self._view[member.data : member.data + member.num_bytes])
            num_bytes += member.num_bytes
        for name in self._columns or ():
            if name not in sample:
                raise self._bad(index, None, f"no field {name!r}; found {', '.join(sample)}")
        self._content.touched(2 * len(blocks), num_bytes)
        return sample

    def _bad(self, index: int, member: Member | None, reason: str) -> RecordError:
        offset = int(self._blocks[self._bounds[index]]) * BLOCK_BYTES
        named = split_name((member or read_member(self._view, offset)).name)
        return self._content.bad_record(
            reason,
            place=f"sample {index + 1} ({named[0] if named else ''})",
            record=index + 1,
            offset=member.start if member else offset,
            index=index,
        )

    def _only_field(self, sample: Sample) -> bytes:
        fields = [name for name in sample if name != KEY_FIELD]
        if len(fields) != 1:
            raise UsageError(
                f"{self.key}: a sample has the fields {', '.join(fields)}, not one record's bytes",
                hint="Leave out deserialize=, or name one field in columns.",
            )
        value: bytes = sample[fields[0]]
        return value


def _told_apart(samples: Iterable[Sample]) -> Iterable[Sample]:
    """Yield the samples; a key that the tar has already becomes `key-2`, `key-3` and so on.

    Readers would join the two samples, or refuse them. So it is where several tars, which count their
    keys from the beginning, become one.
    """
    used: dict[str, int] = {}
    for sample in samples:
        key = sample.get(KEY_FIELD)
        if not isinstance(key, str) or key not in used:
            used[str(key)] = 1
            yield sample
            continue
        number = used[key] + 1
        while (written := f"{key}-{number}") in used:
            number += 1
        used[key] = number
        used[written] = 1
        yield {**sample, KEY_FIELD: written}


def _member_bytes(sample: Sample, index: int) -> Iterable[tuple[str, bytes]]:
    key = sample.get(KEY_FIELD)
    fields = {name: value for name, value in sample.items() if name != KEY_FIELD}
    if not isinstance(key, str) or not fields:
        raise _unwritable(index, f"it needs {KEY_FIELD} (text) and at least one field")
    for field, value in fields.items():
        data: Any = value.encode("utf-8") if isinstance(value, str) else value
        name = f"{key}.{field}"
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise _unwritable(index, f"{field} is {type(value).__name__}, not bytes or text")
        if split_name(name) != (key, field):
            raise _unwritable(index, f"{name!r} would not be read back as {key!r} and {field!r}")
        yield name, bytes(data)


def _unwritable(index: int, why: str) -> RecordError:
    return RecordError(f"sample {index} cannot be written to a tar: {why}", record=index + 1)


SHARD_FORMAT: ShardFormat = WebDataset()

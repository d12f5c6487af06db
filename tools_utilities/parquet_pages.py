"""What Parquet's page headers claim, looked at before anything is decoded: small files may claim billions of values.

Run lengths, dictionaries and compression let some hundred bytes stand for any number of values, and
Arrow allocates what a header claims. `most_rows` walks the page headers of what is to be read, refuses
what grows beyond all measure, and says how many rows of repeated text may be decoded at once. Pages
are those of apache/parquet-format.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from tools_utilities.arrow_files import RangeFile
from tools_utilities.errors import RecordError
from tools_utilities.parquet_footer import ColumnChunk, column_chunks
from tools_utilities.thrift_compact import I32, STRUCT, ThriftError, fields, integer, struct

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Read = Callable[[int, int], bytes | memoryview]
UNSUSPICIOUS_BYTES = 256 << 20
MOST_RATIO = 250
"""Of what is decoded to what is stored, beyond that: as of compressed objects (`compression.py`)."""
UNSUSPICIOUS_ROWS = 1 << 24
_PAGE_BYTES = 128 << 20
"""One page that is no bomb whatever its ratio."""
_BATCH_BYTES = 128 << 20
_MOST_ROWS = 1 << 16
"""That are decoded at once anyway."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_INDEX_BYTES = 4
_FEW_ROWS = 1024
_DATA_PAGES, _DICTIONARY_PAGE = (0, 3), 2
_DICTIONARY_ENCODINGS, _DELTA_BYTE_ARRAY = (2, 8), 7
_PADDING = 100
"""Some writers' sizes leave out the dictionary page's header; Arrow reads so much further."""
_DETAILS = {0: 5, 2: 7, 3: 8}
"""Kind of page → the field of its header that says more."""
_NUMBERS = {(number, I32): integer(32) for number in (1, 2, 4)}
_HEADER = {
    **{(number, I32): integer(32) for number in (1, 2, 3)},
    **{(number, STRUCT): struct(_NUMBERS) for number in _DETAILS.values()},
}
_LENGTH = Struct("<I")


class Page(NamedTuple):
    """What one page's header says."""

    kind: int
    num_values: int
    encoding: int
    stored_bytes: int
    decoded_bytes: int
    body: int
    """Where its content begins in the chunk."""


def is_bomb(claimed_bytes: int, stored_bytes: int) -> bool:
    """Tell whether so few stored bytes cannot be what so many were made of."""
    return claimed_bytes > max(UNSUSPICIOUS_BYTES, MOST_RATIO * stored_bytes)


def bomb(key: str, claimed: str, stored_bytes: int) -> RecordError:
    """Return the error of what claims more than it can hold."""
    return RecordError(
        f"{key}: a bomb: {stored_bytes:,} bytes claim to be {claimed}",
        hint="If it is data, store it in smaller objects, or without such long repetitions.",
        key=key,
        reason="bomb",
    )


def check_rows(key: str, num_rows: int, stored_bytes: int) -> None:
    """Refuse more rows than so many bytes can hold.

    Raises:
        RecordError: with `reason` bomb.
    """
    if num_rows > max(UNSUSPICIOUS_ROWS, MOST_RATIO * stored_bytes):
        raise bomb(key, f"{num_rows:,} rows", stored_bytes)


def no_bomb(
    key: str, batches: Iterable["pa.RecordBatch"], stored_bytes: int
) -> Iterator["pa.RecordBatch"]:
    """Yield batches as long as all of them together can be what so many bytes were made of.

    Raises:
        RecordError: with `reason` bomb.
    """
    num_bytes = 0
    for batch in batches:
        num_bytes += batch.nbytes
        if is_bomb(num_bytes, stored_bytes):
            raise bomb(key, f"more than {num_bytes:,} bytes", stored_bytes)
        yield batch


def most_rows(
    key: str,
    metadata: "pq.FileMetaData",
    row_groups: Iterable[int],
    read: Read,
    size_bytes: int,
    columns: list[str] | None,
) -> int:
    """Return how many rows of some row groups may be decoded at once, for what their text repeats.

    `read` gives the bytes of the file, which has `size_bytes`; `columns` are the names at the top of the
    schema that are read; None: all.

    Raises:
        RecordError: a page or a column claims more than it can hold; `reason` is bomb.
    """
    longest = 0
    found = column_chunks(key, read, size_bytes, metadata.num_columns)
    for number in row_groups:
        chunks = [
            _Chunk(key, metadata.schema.column(place), (number, chunk), read, size_bytes)
            for place, chunk in enumerate(found[number])
            if columns is None or _is_below(metadata.schema.column(place).path, columns)
        ]
        longest = max(longest, sum(chunk.longest_repeated() for chunk in chunks))
    return max(1, _BATCH_BYTES // max(1, longest))


def _is_below(path: str, columns: list[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in columns)


class _Chunk:
    """One column of one row group."""

    def __init__(
        self, key: str, column: Any, chunk: tuple[int, ColumnChunk], read: Read, size: int
    ) -> None:
        """Take the page headers of a chunk (with the number of its row group) of a file of `size` bytes.

        Raises:
            RecordError: one cannot be read.
        """
        self._column = column
        self._key, self._read, self._size_bytes = key, read, size
        self._group, self._chunk = chunk
        start = self._chunk.start
        self._view = memoryview(read(start, start + self._chunk.num_bytes + _PADDING))
        try:
            self._pages = list(_pages(self._view, self._chunk))
        except ThriftError as error:
            raise RecordError(
                f"{key}: a page of {column.path} is damaged: its header cannot be read",
                key=key,
                reason="damaged",
            ) from error
        self._stored = sum(page.stored_bytes for page in self._pages)
        self._longest: int | None = None

    def longest_repeated(self) -> int:
        """Return the bytes of the longest text that is stored once for several rows; 0: none is.

        Raises:
            RecordError: it claims more than it can hold.
        """
        for page in self._pages:
            if page.stored_bytes > len(self._view) - page.body:
                raise self._cut(page)  # Arrow makes room for all of it before it reads
            if page.decoded_bytes > max(_PAGE_BYTES, MOST_RATIO * page.stored_bytes):
                raise self._bomb(f"a page of {page.decoded_bytes:,} bytes")
        data = [page for page in self._pages if page.kind in _DATA_PAGES]
        num_values = sum(page.num_values for page in data)
        width = _WIDTHS.get(self._column.physical_type) or max(0, self._column.length)
        if is_bomb(num_values * (width or _INDEX_BYTES), self._stored):
            raise self._bomb(f"{num_values:,} values of {self._column.path}")
        longest = 0 if width else max(map(self._repeated_text, data), default=0)
        if not self._column.max_repetition_level:
            return longest
        # One row may hold all of them, so they are counted where they could be too many.
        if is_bomb(num_values * longest, self._stored):
            num_bytes = self._count_texts()
            if is_bomb(num_bytes, self._stored):
                raise self._bomb(f"{num_bytes:,} bytes of {self._column.path}")
        return 0

    def _count_texts(self) -> int:
        """Return what the texts of a list come to, or enough of it to be a bomb; none of them is made."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        num_bytes, path = 0, self._column.path
        source: Any = RangeFile(self._read, self._size_bytes)
        with pq.ParquetFile(source, read_dictionary=[path], pre_buffer=False) as file:
            batches = file.iter_batches(
                batch_size=_FEW_ROWS, row_groups=[self._group], columns=[path], use_threads=False
            )
            for batch in batches:
                for texts in _dictionaries(batch.column(0)):
                    sizes = pc.binary_length(texts.dictionary).cast("int64").take(texts.indices)
                    num_bytes += pc.sum(sizes).as_py() or 0
                if is_bomb(num_bytes, self._stored):
                    break
        return num_bytes

    def _repeated_text(self, page: Page) -> int:
        if page.encoding in _DICTIONARY_ENCODINGS:
            if self._longest is None:
                self._longest = self._longest_entry()
            return self._longest
        return page.decoded_bytes if page.encoding == _DELTA_BYTE_ARRAY else 0

    def _bomb(self, claimed: str) -> RecordError:
        return bomb(self._key, claimed, self._stored)

    def _cut(self, page: Page) -> RecordError:
        return RecordError(
            f"{self._key}: a page of {self._column.path} claims {page.stored_bytes:,} bytes, "
            f"of which {max(0, len(self._view) - page.body):,} are there",
            hint="Check that the file is complete (a damaged one cannot be read at all).",
            key=self._key,
            reason="damaged",
        )

    def _longest_entry(self) -> int:
        """Return the bytes of the longest text of the dictionary; of one that cannot be read all of its bytes."""
        import pyarrow as pa

        page = next((page for page in self._pages if page.kind == _DICTIONARY_PAGE), None)
        if page is None:
            return 0
        if page.decoded_bytes <= _BATCH_BYTES // _MOST_ROWS:
            return page.decoded_bytes  # whatever is in it, it asks for no smaller batches
        data: Any = self._view[page.body : page.body + page.stored_bytes]
        name: Any = self._chunk.codec
        try:
            if name != "uncompressed":
                codec = pa.Codec(name)
                data = codec.decompress(data, page.decoded_bytes)
            return _longest_of(bytes(data), page.num_values)
        except (pa.ArrowException, OSError, ValueError):
            return page.decoded_bytes


def _dictionaries(array: Any) -> Iterator[Any]:
    """Yield the dictionary arrays that lie within a nested one."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        yield array
    elif pa.types.is_map(array.type):
        yield from chain(_dictionaries(array.keys), _dictionaries(array.items))
    elif pa.types.is_struct(array.type):
        yield from chain.from_iterable(map(_dictionaries, array.flatten()))
    elif hasattr(array.type, "value_type"):
        yield from _dictionaries(array.flatten())


def _longest_of(data: bytes, num_entries: int) -> int:
    """Return the longest of texts that each stand behind their length."""
    # A dictionary may hold a hundred thousand, and this runs before every decoding of it.
    unpack, longest, place = _LENGTH.unpack_from, 0, 0
    end = len(data) - _LENGTH.size
    for _ in range(num_entries):
        if place > end:
            break
        (size,) = unpack(data, place)
        if size > longest:  # noqa: PLR1730 - a call for each takes as long as all the rest
            longest = size
        place += size + 4
    return min(longest, len(data))


def _pages(view: memoryview, chunk: ColumnChunk) -> Iterator[Page]:
    """Yield the pages of a chunk; ends at what is no page: Arrow cannot read on there either."""
    place = seen = 0
    while place < len(view) and seen < chunk.num_values:
        try:
            header, body = fields(view, place, _HEADER)
            page = _page_of(header, body)
        except (IndexError, KeyError):
            return
        except ThriftError:
            if place < chunk.num_bytes:  # Arrow may know more of Thrift than is read here
                raise
            return
        if page.stored_bytes < 0 or page.decoded_bytes < 0 or page.num_values < 0:
            return
        yield page
        seen += page.num_values if page.kind in _DATA_PAGES else 0
        place = body + page.stored_bytes


def _page_of(header: dict[int, Any], body: int) -> Page:
    """Return what a header says.

    Raises:
        KeyError: it lacks what every header has.
    """
    kind = header[1]
    details = header.get(_DETAILS.get(kind, 0), {})
    encoding = details.get(4 if kind == _DATA_PAGES[1] else 2, 0)
    return Page(kind, details.get(1, 0), encoding, header[3], header[2], body)

"""How many bytes records take as a format writes them, before compression: what chunk_size_mb counts.

Of every record alone, so that chunks end at the same places wherever the source was read from, however
it was stored, and in whatever blocks. About right for formats that lay values out in columns of their own.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tools_utilities.errors import RecordError
from tools_utilities.json_records import encode_line
from tools_utilities.shard_format import Sample
from tools_utilities.tar_members import BLOCK_BYTES
from tools_utilities.token_width import FORMAT as TOKENS

_NUMBER_BYTES = 8
_FIXED_BYTES = {int: _NUMBER_BYTES, float: _NUMBER_BYTES, bool: 1, type(None): 1}
_OTHER_BYTES = 16
"""Dates, decimals and the like."""
_QUOTED_BYTES = 3
"""Quotes and comma around a value of CSV."""
LINES, WEBDATASET = "jsonl", "webdataset"
KEY = "__key__"


def measured(
    records: Sequence[Any], format_name: str, token_bytes: int
) -> tuple[Sequence[Any], list[int]]:
    """Return the records as they are dealt, and each one's bytes in the output.

    Samples for JSON lines become lines, since their length is not known otherwise. Where one cannot, all
    stay as they are: its chunk's writer says what is wrong, and with which.
    """
    if records and isinstance(records[0], bytes):
        if format_name == TOKENS:  # a line of one list: as many ids as commas, and one
            return records, [token_bytes * (line.count(b",") + 1) for line in records]
        if format_name == WEBDATASET:
            return records, [_member_bytes(len(line)) for line in records]
        return records, [len(line) + 1 for line in records]
    if format_name == LINES:
        lines = list(map(_line, records))
        sizes = [len(line or b"") for line in lines]
        whole = [line[:-1] for line in lines if line is not None]
        return (whole if len(whole) == len(lines) else records), sizes
    size = _sizers(token_bytes).get(format_name, _values_bytes)
    return records, [max(1, size(record)) for record in records]


def _line(sample: Sample) -> bytes | None:
    try:
        return encode_line(sample, 0)
    except RecordError:
        return None


def _sizers(token_bytes: int) -> dict[str, Callable[[Sample], int]]:
    return {
        TOKENS: lambda sample: token_bytes * max(map(_length, sample.values()), default=0),
        "json": lambda sample: len(_line(sample) or b""),
        "mds": _nested_bytes,
        "litdata": _nested_bytes,
        "csv": _text_bytes,
        "txt": _text_bytes,
        WEBDATASET: _tar_bytes,
    }


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


def _text_bytes(sample: Sample) -> int:
    return sum(value_bytes(str(value)) + _QUOTED_BYTES for value in sample.values())


def _tar_bytes(sample: Sample) -> int:
    """Return what a sample's members take in a tar; one that names no key is a single member of JSON."""
    if KEY not in sample:
        return _member_bytes(len(_line(sample) or b""))
    return sum(_member_bytes(value_bytes(value)) for name, value in sample.items() if name != KEY)


def _member_bytes(num_bytes: int) -> int:
    """Return what a member of a tar takes: its header, and its bytes in whole blocks."""
    return BLOCK_BYTES * (1 + -(-num_bytes // BLOCK_BYTES))


def _nested_bytes(sample: Sample) -> int:
    """Return the bytes of values where lists and mappings are kept as JSON text."""
    nested = (value for value in sample.values() if isinstance(value, list | dict))
    plain = (value for value in sample.values() if not isinstance(value, list | dict))
    return sum(len(_line({"": value}) or b"") for value in nested) + _sum(plain)


def _values_bytes(sample: Sample) -> int:
    return sum(map(value_bytes, sample.values()))


def value_bytes(value: Any) -> int:
    """Return about how many bytes a value takes where numbers are binary and text is UTF-8."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if type(value) in _FIXED_BYTES:
        return _FIXED_BYTES[type(value)]
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, dict):
        return _sum(value.values())
    if isinstance(value, list | tuple):
        # Lists of numbers are long, and of one kind.
        numbers = bool(value) and type(value[0]) in {int, float}
        return _NUMBER_BYTES * len(value) if numbers else _sum(value)
    nbytes: int = getattr(value, "nbytes", _OTHER_BYTES)  # numpy's arrays and scalars
    return nbytes


def _sum(values: Iterable[Any]) -> int:
    return sum(map(value_bytes, values))

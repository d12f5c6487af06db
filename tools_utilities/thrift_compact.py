"""Thrift's compact protocol (apache/thrift, doc/specs/thrift-compact-protocol.md), as far as Parquet needs it.

Numbers are taken as Thrift's C++ reader takes them, which is Arrow's: a header that is read here says
to both the same. All functions take where to read and return where that ends.
"""

from collections.abc import Callable, Mapping
from typing import Any

_DEEPEST = 8
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY = 1, 2, 3, 7, 8
_I16, _LISTS, _LONG_LIST = 4, (9, 10), 15
_BITS = {_I16: 16, 5: 32, 6: 64}
"""Of integers."""
_WIDE = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}
"""Bytes of values that are passed over; in a struct, truth is in the field's own head."""
STRUCT, LIST, I32, I64 = 12, 9, 5, 6
Reader = Callable[[memoryview, int], tuple[Any, int]]
Readers = Mapping[tuple[int, int], Reader]
"""By number and kind of a field."""


class ThriftError(Exception):
    """It is not Thrift's compact protocol."""


def fields(
    view: memoryview, place: int, readers: Readers, depth: int = 0
) -> tuple[dict[int, Any], int]:
    """Return those fields of a struct that `readers` names, by number; all else is passed over.

    As in Arrow's generated reader a field of another kind than its own is not there, of two that are
    the last counts, and a struct that comes twice keeps what the second lacks.

    Raises:
        ThriftError or IndexError: it is none.
    """
    found: dict[int, Any] = {}
    number = 0
    while head := view[place]:
        place += 1
        number, kind = number + (head >> 4), head & 15
        if not head >> 4:
            number, place = zigzag(view, place, _BITS[_I16])
        reader = readers.get((number, kind))
        if reader is None:
            place = _past(view, place, kind, depth)
            continue
        value, place = reader(view, place)
        found[number] = {**found.get(number, {}), **value} if kind == STRUCT else value
    return found, place + 1


def struct(readers: Readers) -> Reader:
    """Return what reads a struct, as `fields` does."""
    return lambda view, place: fields(view, place, readers)


def structs(readers: Readers) -> Reader:
    """Return what reads a list of structs, as `fields` does."""

    def read(view: memoryview, place: int) -> tuple[list[dict[int, Any]], int]:
        size, kind, place = _list_head(view, place)
        if kind != STRUCT:
            raise ThriftError
        found = []
        for _ in range(size):
            one, place = fields(view, place, readers)
            found.append(one)
        return found, place

    return read


def integer(bits: int) -> Reader:
    """Return what reads an integer of so many bits."""
    return lambda view, place: zigzag(view, place, bits)


def _past(view: memoryview, place: int, kind: int, depth: int) -> int:
    """Return where a value ends."""
    if depth > _DEEPEST:
        raise ThriftError
    if kind == STRUCT:
        return fields(view, place, {}, depth + 1)[1]
    if kind in _LISTS:
        return _past_list(view, place, depth + 1)
    if kind in _BITS:
        return _varint(view, place)[1]
    if kind == _BINARY:
        size, place = _varint(view, place)
        return place + size
    if kind not in _WIDE:
        raise ThriftError
    return place + _WIDE[kind]


def _list_head(view: memoryview, place: int) -> tuple[int, int, int]:
    size, kind = view[place] >> 4, view[place] & 15
    place += 1
    if size == _LONG_LIST:
        size, place = _varint(view, place)
    return size, kind, place


def _past_list(view: memoryview, place: int, depth: int) -> int:
    size, kind, place = _list_head(view, place)
    if kind in _WIDE:  # in a list each truth value has a byte of its own
        return place + size * max(1, _WIDE[kind])
    for _ in range(size):
        place = _past(view, place, kind, depth)
    return place


def zigzag(view: memoryview, place: int, bits: int) -> tuple[int, int]:
    """Return a number as Thrift's C++ reader takes it: what is above its width is cut off."""
    number, place = _varint(view, place)
    number &= (1 << max(32, bits)) - 1
    half = 1 << bits - 1
    return (((number >> 1) ^ -(number & 1)) + half) % (2 * half) - half, place


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = view[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the highest bit: more follows
            return number, place
    raise ThriftError

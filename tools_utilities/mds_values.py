"""The values of MDS columns, decoded and encoded as mosaicml-streaming 0.13 documents them.

Pictures stay the bytes that are stored; lists of pictures are lists of them. Nothing is unpickled.
"""

import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from tools_utilities.exact_numbers import widened

Decode = Callable[[bytes], Any]

_AS_STORED = frozenset({"bytes", "pil", "jpeg", "png"})
_LISTS = frozenset({"list[pil]", "list[jpeg]", "list[png]"})
_ARRAYS_OF_JPEG = frozenset({"jpeg_array", "jpegarray"})
_DTYPE_OF_CODE = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
    34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_SCALARS = frozenset(_DTYPE_OF_CODE.values())
_CODE_OF_DTYPE = {name: code for code, name in _DTYPE_OF_CODE.items()}
_SHAPE_DTYPES = ("<u1", "<u2", "<u4", "<u8")
_FLOAT = "float64"
_MAX_DIGITS = 4300
"""Longer numbers as text cost quadratic time; Python itself refuses them."""
_MAX_AXES = 63


class MdsValueError(ValueError):
    """A value, or an encoding, that cannot be read or written; says why."""


def decoder_of(encoding: str, *, allow_nan: bool) -> Decode:
    """Return what decodes the values of an encoding.

    Raises:
        MdsValueError: it is pickled, or not known.
    """
    name, _, config = encoding.partition(":")
    if name == "pkl":
        raise MdsValueError("the encoding pkl is pickled and is not read")
    if name == "ndarray":
        return _array_decoder(*_array_config(config))
    if config or name not in _KNOWN:
        raise MdsValueError(f"the encoding {encoding[:80]!r} is not known")
    if name in _SCALARS:
        return _scalar_decoder(np.dtype(name).newbyteorder("<"))
    if name == "json":
        return lambda data: json.loads(data, parse_constant=None if allow_nan else _refuse_constant)
    return _DECODERS[name]


def encoded_size(encoding: str) -> int | None:
    """Return the bytes of every value of an encoding; None when they differ."""
    name, _, config = encoding.partition(":")
    if name in _SCALARS:
        return np.dtype(name).itemsize
    if name == "int":
        return 8
    if name == "ndarray":
        dtype, shape = _array_config(config)
        if dtype is not None and shape is not None:
            return dtype.itemsize * math.prod(shape)
    return None


def encoding_for(value: Any) -> str:
    """Return the encoding that keeps a value exactly; JSON for lists, dicts, None and bools."""
    if isinstance(value, np.ndarray):
        return "ndarray"
    if isinstance(value, np.generic):
        return value.dtype.name if value.dtype.name in _SCALARS else "json"
    for kind, name in ((bool, "json"), (str, "str"), (int, "int"), (float, _FLOAT)):
        if isinstance(value, kind):
            return name
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes"
    return "str_decimal" if isinstance(value, Decimal) else "json"


def encode_value(encoding: str, value: Any) -> bytes:
    """Encode a value; `encoding` is one that `encoding_for` returns.

    A whole number in a column of floats becomes the float that it is.

    Raises:
        ValueError, TypeError, struct.error: it does not fit.
    """
    if encoding == _FLOAT:
        value = widened(value)
    if encoding in _ENCODERS:
        kinds, encode = _ENCODERS[encoding]
        return encode(_typed(value, kinds))
    if encoding in _SCALARS:
        kind = np.dtype(encoding)
        return np.asarray(_typed(value, kind.type)).astype(kind.newbyteorder("<")).tobytes()
    return json.dumps(value, allow_nan=False).encode()


def _typed(value: Any, kinds: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
        raise MdsValueError(f"a value of type {type(value).__name__} does not fit")
    return value


def _encode_array(array: Any) -> bytes:
    code = _CODE_OF_DTYPE.get(array.dtype.name)
    if code is None or not array.size or not 1 <= array.ndim <= _MAX_AXES:
        raise MdsValueError(f"MDS has no array of {array.dtype} and shape {array.shape}")
    width = next(i for i in range(4) if max(array.shape) < 1 << (8 << i))
    shape = np.array(array.shape, _SHAPE_DTYPES[width]).tobytes()
    body: bytes = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return bytes([code, array.ndim << 2 | width]) + shape + body


def _array_config(config: str) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    dtype_name, colon, shape_text = config.partition(":")
    if dtype_name and dtype_name not in _CODE_OF_DTYPE:
        raise MdsValueError(f"arrays of {dtype_name[:80]!r} are not known")
    dtype = np.dtype(dtype_name).newbyteorder("<") if dtype_name else None
    if not colon:
        return dtype, None
    sizes = shape_text.split(",")
    if not all(size.strip().isdecimal() and len(size) < 16 for size in sizes):  # noqa: PLR2004
        raise MdsValueError(f"not a shape: {shape_text[:80]!r}")
    shape = tuple(int(size) for size in sizes)
    if min(shape) < 1 or len(shape) > _MAX_AXES:
        raise MdsValueError(f"not a shape: {shape_text[:80]!r}")
    return dtype, shape


def _array_decoder(dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> Decode:
    def decode(data: bytes) -> Any:
        position, kind, dims = 0, dtype, shape
        if kind is None:
            name = _DTYPE_OF_CODE.get(data[0]) if data else None
            if name is None:
                raise MdsValueError(f"an array of unknown type {data[:1].hex() or 'none'}")
            kind, position = np.dtype(name).newbyteorder("<"), 1
        if dims is None:
            dims, position = _read_shape(data, position)
        if len(data) - position != kind.itemsize * math.prod(dims):
            raise MdsValueError(f"{len(data) - position} bytes for {kind.name} of shape {dims}")
        flat = np.frombuffer(data, kind, offset=position)
        return flat.astype(kind.newbyteorder("=")).reshape(dims)

    return decode


def _read_shape(data: bytes, position: int) -> tuple[tuple[int, ...], int]:
    if position >= len(data):
        raise MdsValueError("an array without a shape")
    num_axes, kind = data[position] >> 2, np.dtype(_SHAPE_DTYPES[data[position] % 4])
    end = position + 1 + num_axes * kind.itemsize
    if end > len(data):
        raise MdsValueError(f"an array of {num_axes} axes in {len(data)} bytes")
    return tuple(np.frombuffer(data[position + 1 : end], kind).tolist()), end


def _scalar_decoder(kind: np.dtype[Any]) -> Decode:
    def decode(data: bytes) -> Any:
        if len(data) != kind.itemsize:
            raise MdsValueError(f"{len(data)} bytes for {kind.name}")
        return np.frombuffer(data, kind).astype(kind.newbyteorder("="))[0]

    return decode


def _decode_int(data: bytes) -> int:
    number: int = struct.unpack("<q", data)[0]
    return number


def _number_text(data: bytes) -> str:
    if len(data) > _MAX_DIGITS:
        raise MdsValueError(f"a number of {len(data)} digits")
    return data.decode()


def _sized_pieces(data: bytes, position: int) -> list[bytes]:
    """Return the pieces of: a count, as many sizes, the pieces; nothing may follow."""
    if len(data) < position + 4:
        raise MdsValueError("a list without its length")
    count = struct.unpack_from("<I", data, position)[0]
    start = position + 4 + 4 * count
    if start > len(data):
        raise MdsValueError(f"a list of {count} in {len(data)} bytes")
    sizes = np.frombuffer(data, "<u4", count, position + 4).tolist()
    if start + sum(sizes) != len(data):
        raise MdsValueError(f"{len(data) - start} bytes for a list of {sum(sizes)}")
    pieces = []
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    return pieces


def _refuse_constant(text: str) -> None:
    raise MdsValueError(f"{text} is not JSON; allow_nan=true reads it")


_DECODERS: dict[str, Decode] = {
    **dict.fromkeys(_AS_STORED, bytes),
    **dict.fromkeys(_LISTS, lambda data: _sized_pieces(data, 4)),
    **dict.fromkeys(_ARRAYS_OF_JPEG, lambda data: _sized_pieces(data, 0)),
    "str": lambda data: data.decode(),
    "int": _decode_int,
    "str_int": lambda data: int(_number_text(data)),
    "str_float": lambda data: float(_number_text(data)),
    "str_decimal": lambda data: Decimal(_number_text(data)),
}
_ENCODERS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], bytes]]] = {
    "bytes": ((bytes, bytearray, memoryview), bytes),
    "str": (str, str.encode),
    "int": (int, lambda value: struct.pack("<q", value)),
    _FLOAT: (float, lambda value: struct.pack("<d", value)),
    "ndarray": (np.ndarray, _encode_array),
    "str_decimal": (Decimal, lambda value: str(value).encode()),
}
_KNOWN = {*_DECODERS, *_SCALARS, "json"}

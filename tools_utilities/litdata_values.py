"""The values in LitData chunks, decoded and encoded as litdata 0.2 documents them; nothing unpickled.

Tensors come as numpy arrays (bfloat16 as the float32 of the same value); pictures, sound, video and
other files are the bytes stored. A leaf serialised with `pickle`, or as a graph (whose description is
a pickle), is refused by name.
"""

import json
import math
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from tools_utilities.exact_numbers import widened

Decode = Callable[[bytes], Any]

_NUMPY_TYPES = (
    "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "b1",
)  # fmt: skip
_BFLOAT16 = "bfloat16"
_TORCH_TYPES = (
    "f4", "f4", "f8", "f8", "c8", "c8", "c16", "c16", "f2", "f2", _BFLOAT16, "u1", "i1", "i2", "i2",
    "i4", "i4", "i8", "i8", "b1", "u2",
)  # fmt: skip
_NUMPY_NUMBER = {np.dtype(name): number for number, name in enumerate(_NUMPY_TYPES)}
_AS_STORED = frozenset(
    {
        "audio", "bytes", "file", "image", "jpeg", "mesh", "nifti", "pdf", "pil", "tifffile", "video",
    }
)  # fmt: skip
_PICKLED = frozenset({"pickle", "graph"})
_MAX_AXES = 64
_MAX_DEPTH = 64


class LitDataValueError(ValueError):
    """A value, or a serializer, that cannot be read or written; says why."""


def decoder_of(data_format: str) -> Decode:
    """Return what decodes a leaf, by the name that the index gives its serializer.

    Raises:
        LitDataValueError: it is pickled, or not known.
    """
    name, _, detail = data_format.partition(":")
    if name in _PICKLED:
        raise LitDataValueError(f"the serializer {name} is pickled and is not read")
    if name in _AS_STORED:
        return bytes
    if name in {"no_header_numpy", "no_header_tensor"}:
        kind = _type_of(detail, _NUMPY_TYPES if name == "no_header_numpy" else _TORCH_TYPES)
        return lambda data: _array(data, kind, None)
    if name not in _DECODERS:
        raise LitDataValueError(f"the serializer {data_format[:80]!r} is not known")
    return _DECODERS[name]


def token_type(data_format: str) -> np.dtype[Any]:
    """Return the number type of a token chunk.

    Raises:
        LitDataValueError: it does not hold plain whole numbers.
    """
    name, _, detail = data_format.partition(":")
    if name in {"no_header_numpy", "no_header_tensor"}:
        kind = _type_of(detail, _NUMPY_TYPES if name == "no_header_numpy" else _TORCH_TYPES)
        if kind[0] in "iu":
            return np.dtype("<" + kind)
    raise LitDataValueError(f"{data_format[:80]!r} are no tokens")


def serializer_for(value: Any) -> str:
    """Return the serializer that keeps a value exactly.

    Raises:
        LitDataValueError: litdata would pickle it.
    """
    if isinstance(value, np.ndarray):
        number = _NUMPY_NUMBER.get(value.dtype.newbyteorder("="))
        if number is None or not value.ndim:
            raise LitDataValueError(f"an array of {value.dtype} and shape {value.shape}")
        return f"no_header_numpy:{number}" if value.ndim == 1 else "numpy"
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):
        if type(value) is kind:
            return name
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes"
    if value is None or isinstance(value, (list, dict)):
        return "json"
    raise LitDataValueError(f"a value of type {type(value).__name__}")


def encode_value(name: str, value: Any) -> bytes:
    """Encode a leaf with a serializer that `serializer_for` returned for the first sample.

    A whole number where floats are becomes the float that it is.

    Raises:
        ValueError, TypeError, struct.error: it does not fit.
    """
    if name == "float":
        value = widened(value)
    found = serializer_for(value)
    if found != name:
        raise LitDataValueError(f"{found}, not {name}")
    if name == "numpy":
        shape = struct.pack(f"<{2 + value.ndim}I", _NUMPY_NUMBER[value.dtype.newbyteorder("=")],
                            value.ndim, *value.shape)  # fmt: skip
        return shape + _little(value)
    if name.startswith("no_header_numpy"):
        return _little(value)
    return _ENCODERS[name](value)


def _little(array: Any) -> bytes:
    data: bytes = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return data


def _type_of(number: str, types: tuple[str, ...]) -> str:
    if not number.isdecimal() or len(number) > 4 or int(number) >= len(types):  # noqa: PLR2004
        raise LitDataValueError(f"the number type {number[:80]!r} is not known, or not plain")
    return types[int(number)]


def _array(data: bytes, kind: str, shape: tuple[int, ...] | None) -> Any:
    stored = np.dtype("<u2" if kind == _BFLOAT16 else "<" + kind)
    if shape is not None and len(data) != stored.itemsize * math.prod(shape):
        raise LitDataValueError(f"{len(data)} bytes for {kind} of shape {shape}")
    flat = np.frombuffer(data, stored)
    if kind == _BFLOAT16:
        return (flat.astype(np.uint32) << 16).view(np.float32).reshape(shape or flat.shape)
    return flat.astype(stored.newbyteorder("=")).reshape(flat.shape if shape is None else shape)


def _shaped(data: bytes, order: str, types: tuple[str, ...]) -> Any:
    number, num_axes = struct.unpack_from(order + "II", data)
    if num_axes > _MAX_AXES:
        raise LitDataValueError(f"an array of {num_axes} axes")
    shape = struct.unpack_from(f"{order}{num_axes}I", data, 8)
    kind = _type_of(str(number), types)
    return _array(data[8 + 4 * num_axes :], kind, shape)


def _fixed(order: str) -> Decode:
    return lambda data: struct.unpack(order, data)[0]


def _jpeg_array(data: bytes) -> list[bytes]:
    count = struct.unpack_from("<I", data)[0]
    if 4 + 4 * count > len(data):
        raise LitDataValueError(f"a list of {count} in {len(data)} bytes")
    sizes = struct.unpack_from(f"<{count}I", data, 4)
    ends = np.cumsum([4 + 4 * count, *sizes], dtype=np.int64).tolist()
    if ends[-1] != len(data):
        raise LitDataValueError(f"{len(data)} bytes for pictures of {sum(sizes)}")
    return [data[start:end] for start, end in pairwise(ends)]


class _Nested:
    """Reads litdata's compact form of lists and dicts: tags, lengths and little-endian values."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def whole(self) -> Any:
        if not self._data or self._data[0] > 0x20:  # noqa: PLR2004 - plain JSON, the older form
            return json.loads(self._data)
        value = self._value(0)
        if self._position != len(self._data):
            raise LitDataValueError(f"{len(self._data) - self._position} bytes follow a value")
        return value

    def _take(self, num_bytes: int) -> bytes:
        start, self._position = self._position, self._position + num_bytes
        if self._position > len(self._data):
            raise LitDataValueError("a nested value ends after its sample")
        return self._data[start : self._position]

    def _unpack(self, order: str) -> Any:
        return struct.unpack(order, self._take(struct.calcsize(order)))[0]

    def _count(self) -> int:
        """Return a length; everything counted takes at least a byte."""
        count: int = self._unpack("<I")
        if count > len(self._data) - self._position:
            raise LitDataValueError(f"a nested value of {count} in {len(self._data)} bytes")
        return count

    def _text(self) -> str:
        return self._take(self._count()).decode()

    def _value(self, depth: int) -> Any:
        tag = self._take(1)[0]
        if depth > _MAX_DEPTH or tag > 11:  # noqa: PLR2004 - the last tag
            raise LitDataValueError(f"nested too deep, or an unknown tag {tag}")
        readers: tuple[Callable[[], Any], ...] = (
            lambda: json.loads(self._take(self._count())),
            lambda: [self._text() for _ in range(self._count())],
            lambda: self._numbers("<i8"),
            lambda: self._numbers("<f8"),
            lambda: [byte != 0 for byte in self._take(self._count())],
            lambda: {self._text(): self._value(depth + 1) for _ in range(self._count())},
            self._records,
            self._text,
            lambda: self._unpack("<q"),
            lambda: self._unpack("<d"),
            lambda: self._take(1) != b"\0",
            lambda: None,
        )
        return readers[tag]()

    def _numbers(self, kind: str) -> list[Any]:
        numbers: list[Any] = np.frombuffer(self._take(8 * self._count()), kind).tolist()
        return numbers

    def _records(self) -> list[dict[str, Any]]:
        count = self._count()
        keys = [self._text() for _ in range(self._count())]
        readers: dict[int, Callable[[], Any]] = {
            0x10: lambda: None,
            0x11: self._text,
            0x12: lambda: self._unpack("<q"),
            0x13: lambda: self._unpack("<d"),
            0x14: lambda: self._take(1) != b"\0",
        }
        rows = []
        for _ in range(count):
            if not keys:
                raise LitDataValueError("records without keys")
            rows.append({key: self._field(readers) for key in keys})
        return rows

    def _field(self, readers: dict[int, Callable[[], Any]]) -> Any:
        tag = self._take(1)[0]
        if tag not in readers:
            raise LitDataValueError(f"an unknown tag {tag} in a record")
        return readers[tag]()


def _encode_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return b"\0" + struct.pack("<I", len(text)) + text


def _decode_bool(data: bytes) -> bool:
    if len(data) != 1:
        raise LitDataValueError(f"{len(data)} bytes for a bool")
    return data != b"\0"


_DECODERS: dict[str, Decode] = {
    "bool": _decode_bool,
    "float": _fixed("<d"),
    "int": _fixed("<q"),
    "jpeg_array": _jpeg_array,
    "json": lambda data: _Nested(data).whole(),
    "numpy": lambda data: _shaped(data, "<", _NUMPY_TYPES),
    "str": lambda data: data.decode(),
    "tensor": lambda data: _shaped(data, ">", _TORCH_TYPES),
    "text": lambda data: data.decode(),
}
_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "bool": lambda value: b"\1" if value else b"\0",
    "bytes": bytes,
    "float": lambda value: struct.pack("<d", value),
    "int": lambda value: struct.pack("<q", value),
    "json": _encode_json,
    "str": str.encode,
}

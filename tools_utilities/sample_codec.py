"""Samples as bytes and back, every type kept, without pickle: for what waits in temporary files."""

import io
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from tools_utilities.shard_format import Sample

_PLAIN = frozenset({type(None), bool, float, str, bytes})
_ARRAY, _SCALAR, _INTEGER, _DECIMAL, _DATETIME, _DATE, _TIME, _DURATION = range(8)
_INT64 = range(-(1 << 63), 1 << 63)
_encoder = msgspec.msgpack.Encoder()


def encode_sample(sample: Sample) -> bytes:
    """Return a sample as bytes.

    Raises:
        TypeError: it holds something that no format gives.
    """
    return _encoder.encode(_plain(sample))


def decode_sample(data: bytes | memoryview) -> Sample:
    """Return the sample that `encode_sample` was given; tuples come back as lists."""
    sample: Sample = _decoder.decode(data)
    return sample


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN or (kind is int and value in _INT64):
        return value
    if kind is dict:
        return {key: _plain(item) for key, item in value.items()}
    if kind in {list, tuple}:
        return [_plain(item) for item in value]
    for code, (kinds, encode, _) in _CODECS.items():
        if isinstance(value, kinds):
            return msgspec.msgpack.Ext(code, encode(value))
    raise TypeError(f"a value of type {kind.__name__} cannot be kept")


def _array_bytes(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _array(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: parse(data.decode())


def _duration_bytes(value: timedelta) -> bytes:
    return f"{value.days} {value.seconds} {value.microseconds}".encode()


def _duration(text: str) -> timedelta:
    days, seconds, microseconds = map(int, text.split())
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


def _iso_bytes(value: Any) -> bytes:
    return str(value.isoformat()).encode()


# A datetime is a date too: it has to be asked for first.
_CODECS: dict[int, tuple[type | tuple[type, ...], Callable[[Any], bytes], Callable[[bytes], Any]]]
_CODECS = {
    _ARRAY: (np.ndarray, _array_bytes, _array),
    _SCALAR: (np.generic, _array_bytes, lambda data: _array(data)[()]),
    _INTEGER: (int, lambda value: str(value).encode(), _text(int)),
    _DECIMAL: (Decimal, lambda value: str(value).encode(), _text(Decimal)),
    _DATETIME: (datetime, _iso_bytes, _text(datetime.fromisoformat)),
    _DATE: (date, _iso_bytes, _text(date.fromisoformat)),
    _TIME: (time, _iso_bytes, _text(time.fromisoformat)),
    _DURATION: (timedelta, _duration_bytes, _text(_duration)),
}


def _extension(code: int, data: memoryview) -> Any:
    return _CODECS[code][2](bytes(data))


_decoder = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_extension)

"""CRC-32C of bytes, and its spelling in store metadata. Costs about 0.04 ms a MB (awscrt)."""

import base64
import binascii
from collections.abc import Callable
from functools import cache

Buffer = bytes | bytearray | memoryview
_PIECE_BYTES = 1 << 20


@cache
def _implementation() -> Callable[[Buffer, int], int]:
    try:
        from awscrt.checksums import crc32c
    except ImportError:
        return _google_crc32c()
    hardware: Callable[[Buffer, int], int] = crc32c
    return hardware


def _google_crc32c() -> Callable[[Buffer, int], int]:
    import google_crc32c

    def extend(data: Buffer, previous: int) -> int:
        # This library takes bytes only: copy in pieces, so that a mapped file is never copied whole.
        view = memoryview(data)
        for offset in range(0, len(view), _PIECE_BYTES):
            previous = google_crc32c.extend(previous, bytes(view[offset : offset + _PIECE_BYTES]))
        return previous

    return extend


def crc32c(data: Buffer, previous: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from that of the bytes before it."""
    return _implementation()(data, previous)


def encode_crc32c(value: int) -> str:
    """Return a checksum as stores write it: base64 of the four bytes, big end first."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def decode_crc32c(text: str) -> int | None:
    """Return the checksum that a store or manifest wrote; None when the text is not one."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return int.from_bytes(raw, "big") if len(raw) == 4 else None  # noqa: PLR2004 - 32 bits

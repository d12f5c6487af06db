"""CRC-32C of bytes, and its spelling in store metadata. Costs about 0.04 ms a MB (awscrt)."""

import base64
import binascii
import os

Buffer = bytes | bytearray | memoryview
_PIECE_BYTES = 256 << 10
"""Stays in the processor's cache between being read and being summed."""


def crc32c(data: Buffer, previous: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from that of the bytes before it."""
    from awscrt.checksums import crc32c as hardware

    checksum: int = hardware(data, previous)
    return checksum


def file_crc32c(fd: int, size_bytes: int) -> int:
    """Return the CRC-32C of a file's first bytes (of all there are, if fewer); its position stays.

    Read into one small buffer: through a mapping all of it would count as this process's memory.

    Raises:
        OSError: it cannot be read.
    """
    buffer = memoryview(bytearray(min(size_bytes, _PIECE_BYTES)))
    checksum = done = 0
    while done < size_bytes:
        num_bytes = os.preadv(fd, [buffer[: size_bytes - done]], done)
        if not num_bytes:
            break
        checksum = crc32c(buffer[:num_bytes], checksum)
        done += num_bytes
    return checksum


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32C of two stretches laid end to end, from those of each."""
    from awscrt.checksums import combine_crc32c as combine

    checksum: int = combine(first, second, second_bytes)
    return checksum


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

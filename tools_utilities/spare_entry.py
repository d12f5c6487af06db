"""Entries of the cache that can be made again from others: kept in room that is free, evicting nothing."""

from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple

from tools_utilities.cache_entry import EntryId
from tools_utilities.checksum import crc32c
from tools_utilities.disk_cache import DiskCache, Reservation


class SpareContent(NamedTuple):
    """What such an entry is to hold."""

    num_bytes: int
    pieces: Iterable[memoryview]
    """In order, each used before the next is asked for."""


def keep_spare(cache: DiskCache, digest: str, content: SpareContent) -> None:
    """Make an entry, unless it is there, another process is making it, or there is no room.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    entry = EntryId(digest=digest, size_bytes=content.num_bytes)
    turn = cache.try_turn(entry)
    if turn is None:
        return
    try:
        found = cache.find(digest)
        if found is not None:
            found.close()
            return
        reservation = cache.reserve(entry, evict=False)
        if reservation is not None:
            _fill(cache, reservation, content.pieces)
    finally:
        cache.end_turn(turn)


def _fill(cache: DiskCache, reservation: Reservation, pieces: Iterable[memoryview]) -> None:
    checksum = offset = 0
    try:
        for piece in pieces:
            reservation.write(offset, piece)
            checksum = crc32c(piece, checksum)
            offset += len(piece)
        with closing(cache.publish(reservation, checksum, spare=True)):
            return
    except BaseException:
        cache.discard(reservation)
        raise

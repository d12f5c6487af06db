"""Damages a small shard in many ways and reads it: an error of ours or samples, never a crash."""

import random
import struct
from collections.abc import Iterator

from tests.memory_peak import memory_peak
from tests.shard_reading import DEFAULTS, in_memory, read_all
from tools_utilities.errors import DataError
from tools_utilities.shard_format import ReadOptions

NUM_MUTATIONS = 200
_MOST_BYTES = 64 << 20


def mutations(data: bytes, seed: int) -> Iterator[bytes]:
    """Yield `NUM_MUTATIONS` damaged copies, most of them damaged near the beginning or the end."""
    rng = random.Random(seed)
    for number in range(NUM_MUTATIONS):
        damaged = bytearray(data)
        near = min(len(data) - 1, rng.choice((8, 64, len(data) - 1)))
        place = rng.randint(0, near)
        place = len(data) - 1 - place if rng.random() < 0.3 else place
        kind = number % 5
        if kind == 0:
            damaged[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            damaged[place] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            wild = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, rng.randrange(2**32)))
            damaged[place // 4 * 4 : place // 4 * 4 + 4] = struct.pack("<I", wild)
        elif kind == 3:
            del damaged[place : place + rng.randint(1, 16)]
        else:
            damaged[place:place] = rng.randbytes(rng.randint(1, 16))
        yield bytes(damaged)


def assert_damage_is_an_error(
    name: str, key: str, data: bytes, *, options: ReadOptions = DEFAULTS, seed: int = 0
) -> None:
    """Read every damaged copy; at least a third must be noticed, and none may need much memory."""
    num_errors = 0
    with memory_peak() as peak:
        for damaged in mutations(data, seed):
            try:
                read_all(name, in_memory(key, damaged), target_bytes=300, options=options)
            except DataError as error:
                num_errors += 1
                assert error.detail["key"] == key  # noqa: PT017 - both ways out are fine
    assert peak.num_bytes < _MOST_BYTES
    assert num_errors >= NUM_MUTATIONS // 3

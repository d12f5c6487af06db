"""Which side of a train/val split a sample is on: decided by its own content alone.

The same sample lands on the same side in every run, whatever the order, the number of shards, the
format it came in or the seed; so nothing of the training side ever leaks into a later validation side.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tools_utilities.errors import RecordError

_UNIT = 1 << 64
_encoder = msgspec.json.Encoder(order="sorted", enc_hook=lambda value: value.tolist())
_samples = msgspec.json.Decoder(dict[str, Any])


class HoldoutSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Holds out a fraction of all samples for validation."""

    fraction: float
    """Of the samples, between 0 and 1."""
    key: str | None = None
    """Decide by this field alone, so that samples that share it stay together; None: by all."""

    def held_out(self, records: Sequence[Any], first: int) -> list[bool]:
        """Return, for each record (a JSON line or a sample), whether it is held out.

        `first`: number of the first record, for errors.

        Raises:
            RecordError: a record lacks the key.
        """
        limit = round(self.fraction * _UNIT)
        return [self._number(record, first + at) < limit for at, record in enumerate(records)]

    def _number(self, record: Any, number: int) -> int:
        sample = _samples.decode(record) if isinstance(record, bytes) else record
        value: Any = sample
        if self.key is not None:
            if self.key not in sample:
                raise RecordError(
                    f"sample {number} has no field {self.key} to split by",
                    hint="Name a field that every sample has, or leave val_key out.",
                    record=number + 1,
                )
            value = sample[self.key]
        digest = hashlib.blake2b(_encoder.encode(value), digest_size=8).digest()
        return int.from_bytes(digest, "big")

"""msgspec types that several threads may decode: what msgspec knows of a type is made beforehand.

msgspec (0.22) builds that on the first decoding, and another thread that decodes the same type
meanwhile reads it half built and crashes the process.
"""

from typing import TypeVar

import msgspec

_Type = TypeVar("_Type", bound=type[msgspec.Struct])

PREPARED: set[type[msgspec.Struct]] = set()


def prepared(struct: _Type) -> _Type:
    """Decorate a Struct that is decoded or converted to, so that any thread may do it first."""
    msgspec.json.Decoder(struct)
    PREPARED.add(struct)
    return struct

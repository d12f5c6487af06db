"""The record that says who holds a shard: one object a shard, never deleted.

Its body is a deterministic function of its fields, so that a retried put is byte-identical, and no
two states share a body: on S3 an ETag is a content hash, so a state that came back would let a stale
If-Match pass. Nothing in it is a time.
"""

from typing import Literal
from uuid import UUID

import msgspec

from tools_utilities.errors import DamagedClaimError
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared

ClaimState = Literal["free", "leased", "done"]


@prepared
class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows of one shard's claim. (gen, owner, state, seq) is unique."""

    gen: int
    """Grows with every takeover, never falls."""
    owner: str
    """`host/pid/uuid4` of the process that wrote it; changes only with a higher gen."""
    state: ClaimState
    seq: int
    """Grows with every write under one gen."""
    lease_seconds: float
    worker: str = ""
    """The worker id people gave; for display only."""
    output: str | None = None
    """Where a done shard's output is; readers of results follow nothing else."""
    num_samples: int | None = None
    checksum: str | None = None
    attempts: int = 1
    """Claims of this shard so far."""
    crashes: int = 0
    """Claims in a row, up to this one, that ended without a word: their leases ran out."""
    last_error: str | None = None


def encode_record(record: ClaimRecord) -> bytes:
    """Return the record's one encoding: JSON with sorted keys."""
    return msgspec.json.encode(record, order="sorted")


def decode_record(key: str, data: bytes) -> ClaimRecord:
    """Return the record in an object.

    Raises:
        DamagedClaimError: it is not a claim record. It is left alone, and nothing guessed from it.
    """
    try:
        return decode_json(data, type=ClaimRecord)
    except msgspec.MsgspecError as error:
        number = key.rpartition("/")[0].rpartition("shard_")[2]
        raise DamagedClaimError(
            f"{key}: not a claim record: {error}; who holds the shard, or whether it is done, "
            "cannot be told",
            hint="When nobody works on it, have it done anew: shard_manager.py --dataset_dir … "
            f"--action reset --shard_id {number.lstrip('0') or '0'} --force",
            key=key,
        ) from error


def new_owner(host: str, pid: int, unique: UUID) -> str:
    """Return an owner name: new at each process start, so a restart never inherits a claim."""
    return f"{host}/{pid}/{unique}"


def output_folder(shard: str, record: ClaimRecord) -> str:
    """Return the fenced folder `<shard>/<gen>-<owner>/`: no other claim writes there."""
    return f"{shard}/{record.gen}-{record.owner.replace('/', '_')}/"

"""Whether a candidate is a group: enough objects of enough size, or a manifest that names them."""

import msgspec

from tools_utilities.errors import DataError
from tools_utilities.folder_walk import Walk
from tools_utilities.manifest import FLAT, MASTER, load_manifest
from tools_utilities.object_store import ObjectStore
from tools_utilities.shard_format import shard_formats
from tools_utilities.shard_groups import Candidate


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a group must have."""

    min_objects: int
    min_bytes: float


def why_not(candidate: Candidate, limits: Limits) -> tuple[str, ...]:
    """Return why a candidate has too little, as sentences for people; none when it has enough."""
    reasons = []
    if len(candidate.objects) < limits.min_objects:
        reasons.append(f"{len(candidate.objects)} objects, fewer than {limits.min_objects}")
    if candidate.median_bytes < limits.min_bytes:
        reasons.append(f"median {candidate.median_bytes:,.0f} B, below {limits.min_bytes:,.0f} B")
    return tuple(reasons)


def is_group(candidate: Candidate, limits: Limits) -> bool:
    """Tell whether a candidate is a group by itself."""
    return candidate.kind in shard_formats() and not why_not(candidate, limits)


def manifest_says(
    store: ObjectStore, walk: Walk, candidate: Candidate
) -> tuple[bool, tuple[str, ...]]:
    """Return whether a manifest names the candidate's objects, and what is wrong with it."""
    names = {info.key for info in walk.folders[candidate.folder].objects}
    if not names & {candidate.folder + MASTER, candidate.folder + FLAT}:
        return False, ()
    try:
        manifest = load_manifest(store, candidate.folder)
    except DataError as error:
        return False, (f"manifest: {error}",)
    if manifest is None:
        return False, ()
    named = {candidate.folder + chunk.key for shard in manifest.shards for chunk in shard.chunks}
    return any(info.key in named for info in candidate.objects), ()

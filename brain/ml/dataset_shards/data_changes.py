"""Says what changed between the data a state was saved on and the data that is there now."""

from brain.ml.dataset_shards.count_file import LISTING_OBJECTS, CountFile, ListedObject
from brain.ml.dataset_shards.split_table import relative_key, version_token
from brain.ml.dataset_shards.stream_index import StreamIndex
from brain.ml.dataset_shards.stream_state import StreamState
from tools_utilities.errors import ChangedError


def listing_of(index: StreamIndex) -> list[ListedObject]:
    """Return an index's objects as they are kept beside the counts."""
    return [
        ListedObject(relative_key(info.key, index.folder), info.size_bytes, version_token(info))
        for info in index.table.objects
    ]


def keep_listing(index: StreamIndex) -> None:
    """Keep the listing that a state refers to, where there is a folder for it."""
    if index.count_file is not None and len(index.table.objects) <= LISTING_OBJECTS:
        index.count_file.save_listing(listing_of(index))


def refuse_change(state: StreamState, index: StreamIndex) -> None:
    """Raise when the data is not what the state was saved on.

    Raises:
        ChangedError: detail has added, removed, resized and rewritten keys where the listing was
            kept, else only the numbers.
    """
    if state.change_fingerprint == index.change_fingerprint:
        return
    was = (state.order.get("objects"), state.order.get("bytes"))
    now = (len(index.table.objects), index.table.total_bytes)
    changes = _compare(state, index)
    words = [f"{len(keys)} {kind} (first {keys[0]})" for kind, keys in changes.items() if keys] or [
        "same names and sizes, other versions" if was == now else "which, is not recorded here"
    ]
    raise ChangedError(
        f"the data has changed since the state was saved: {was[0]} objects of {was[1]} bytes then, "
        f"{now[0]} of {now[1]} now; {', '.join(words)}",
        hint="Go back to that data, or load with allow_changed=true to go on with what is there.",
        objects_before=was[0],
        objects_now=now[0],
        bytes_before=was[1],
        bytes_now=now[1],
        **changes,
    )


def _kept(own: CountFile, state: StreamState) -> list[ListedObject] | None:
    then = CountFile(own.folder, state.order_fingerprint, state.change_fingerprint)
    return then.load_listing()


def _compare(state: StreamState, index: StreamIndex) -> dict[str, list[str]]:
    own = index.count_file
    kept = None if own is None else _kept(own, state)
    if kept is None:
        return {}
    before = {found.key: found for found in kept}
    after = {found.key: found for found in listing_of(index)}
    both = sorted(before.keys() & after.keys())
    return {
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "resized": [key for key in both if before[key].size_bytes != after[key].size_bytes],
        "rewritten": [
            key
            for key in both
            if before[key].size_bytes == after[key].size_bytes and before[key] != after[key]
        ],
    }

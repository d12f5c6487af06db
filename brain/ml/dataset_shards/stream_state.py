"""StreamState: where a stream stands, for all ranks and workers together; small, versioned, JSON-able."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tools_utilities.errors import ChangedError, UsageError
from tools_utilities.prepared_types import prepared

STATE_VERSION = 1


@prepared
class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """A position in the global order; independent of world size and worker count."""

    version: int = STATE_VERSION
    seed: int
    epoch: int
    position: int
    """Positions of the epoch's global order already delivered, over all ranks."""
    order_fingerprint: str
    """Of the sorted relative keys, sizes, split bounds and order settings: equal on any store."""
    change_fingerprint: str
    """Adds etags or checksums; only decides whether a resume is refused."""
    order: dict[str, Any] = {}
    """What makes the order: `settings` (lanes, windows, split rule, permutation version …), the
    data's `objects` and `bytes`, and `lanes`: each lane's window and base, so that a resume needs
    no counts. A loader worker's own state adds `worker`."""


def parse_state(state: Any) -> StreamState:
    """Return a state dict as a StreamState.

    Raises:
        UsageError: it is no stream state, or of a version that is not known here.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != STATE_VERSION:
        raise UsageError(
            f"not a stream state of version {STATE_VERSION}: version is {version!r}",
            hint="Load what StreamDataset.state_dict() or StreamLoader.state_dict() returned.",
        )
    try:
        found = msgspec.convert(dict(state), StreamState)
    except msgspec.ValidationError as error:
        raise damaged_state(str(error)) from error
    if found.epoch < 0 or found.position < 0:
        raise damaged_state(f"epoch {found.epoch}, position {found.position}")
    return found


def damaged_state(why: str) -> UsageError:
    """Return the error of a state that cannot be one that was saved."""
    return UsageError(
        f"not a stream state, or a damaged one: {why}",
        hint="Load what StreamDataset.state_dict() or StreamLoader.state_dict() returned.",
    )


def check_seed(state: StreamState, seed: int) -> None:
    """Refuse a state of another seed: its position means nothing in this order."""
    if state.seed != seed:
        raise ChangedError(
            f"the state is of seed {state.seed}, the stream has seed {seed}",
            hint=f"Make the stream with seed={state.seed}.",
            was=state.seed,
            now=seed,
        )


def check_order(state: StreamState, settings: Mapping[str, Any], fingerprint: str) -> None:
    """Refuse a state whose order was made with other settings, naming the first that differs."""
    if state.order_fingerprint == fingerprint:
        return
    saved = state.order.get("settings", {})
    names = dict.fromkeys([*settings, *saved])
    name = next((name for name in names if saved.get(name) != settings.get(name)), "split bounds")
    raise ChangedError(
        f"the order has changed: {name} was {saved.get(name)!r}, is {settings.get(name)!r} now",
        hint="Make the stream with the settings of the run that saved the state.",
        setting=name,
        was=saved.get(name),
        now=settings.get(name),
    )

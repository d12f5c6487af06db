"""One rank's random generators: seeded, taken as plain data, and put back."""

import base64
import random
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from tools_utilities.prepared_types import prepared


@prepared
class RandomState(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's random generators."""

    python: list[Any]
    numpy: dict[str, Any]
    torch: str
    """Base64 of the generator's bytes."""
    cuda: str | None = None


def seed_everything(seed: int, rank: int) -> None:
    """Start every random generator of this process from the run's seed and the rank."""
    random.seed(seed * 1_000_003 + rank)
    np.random.seed((seed * 1_000_003 + rank) % (1 << 32))  # noqa: NPY002 - user models may draw from it
    torch.manual_seed(seed * 1_000_003 + rank)


def take_random_state(device: Any) -> RandomState:
    """Return the generators of this process as they are now."""
    version, words, position = random.getstate()[0], random.getstate()[1], random.getstate()[2]
    legacy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one is what may be in use
    legacy["state"]["key"] = [int(word) for word in legacy["state"]["key"]]
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return RandomState(
        python=[version, list(words), position],
        numpy=legacy,
        torch=_packed(torch.get_rng_state()),
        cuda=None if cuda is None else _packed(cuda),
    )


def restore_random_state(state: RandomState, device: Any) -> None:
    """Make this process's generators go on from a state."""
    version, words, position = state.python
    random.setstate((version, tuple(words), position))
    legacy = {**state.numpy, "state": dict(state.numpy["state"])}
    legacy["state"]["key"] = np.array(legacy["state"]["key"], np.uint32)
    np.random.set_state(legacy)  # noqa: NPY002 - see above
    torch.set_rng_state(_unpacked(state.torch))
    if state.cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(_unpacked(state.cuda), device)


def _packed(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _unpacked(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).copy())

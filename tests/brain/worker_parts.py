"""What loader workers in tests are given; imports no torch, so that a worker need not either."""

import os
import random
import signal
import sys
import time
from typing import Any

HEAVY = ("torch", "boto3", "botocore", "obstore", "pyarrow")


def list_ids(samples: Any) -> list[int]:
    return [sample["id"] for sample in samples]


def environment(_: Any) -> dict[str, str]:
    return dict(os.environ)


def loaded_modules(_: Any) -> list[str]:
    return [name for name in HEAVY if name in sys.modules]


def with_random(samples: Any) -> tuple[list[int], float]:
    return list_ids(samples), random.random()


class UnpicklableError(Exception):
    """Its `__init__` takes more than its message, so that pickle cannot make it again."""

    def __init__(self, place: str, number: int) -> None:
        super().__init__(f"{place} went wrong at {number}")


class FailAt:
    """A collate that raises at the batch that holds a sample."""

    def __init__(self, number: int, kind: type[Exception]) -> None:
        self.number = number
        self.kind = kind

    def __call__(self, samples: Any) -> list[int]:
        found = list_ids(samples)
        if self.number in found:
            if self.kind is UnpicklableError:
                raise UnpicklableError("the collate", self.number)
            raise self.kind(f"the collate failed at {self.number}")
        return found


class HangAt(FailAt):
    """A collate that never comes back from the batch that holds a sample, or dies there."""

    def __init__(self, number: int, *, die: bool) -> None:
        super().__init__(number, RuntimeError)
        self.die = die

    def __call__(self, samples: Any) -> list[int]:
        found = list_ids(samples)
        if self.number in found:
            if self.die:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return found


class Everything:
    """A collate whose batches hold values of many types, and one batch too large for a ring."""

    def __init__(self, large_bytes: int) -> None:
        self.large_bytes = large_bytes

    def __call__(self, samples: Any) -> dict[str, Any]:
        import numpy as np
        import torch

        ids = list_ids(samples)
        return {
            "ids": tuple(ids),
            "set": set(ids),
            "half": torch.tensor(ids, dtype=torch.bfloat16),
            "empty": torch.zeros(0, 3),
            "scalar": torch.tensor(len(ids)),
            "turned": torch.arange(6).reshape(2, 3).T,
            "array": np.array(ids, np.uint16)[::2],
            "grad": torch.ones(2, requires_grad=True),
            "large": np.full(self.large_bytes if 0 in ids else 1, ids[0] % 251, np.uint8),
        }

"""One data source of a job as records, for a model that makes its own batches of them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from brain.ml.streamed_source import StreamedSource
from brain.ml.training_job import DataSource, TrainingJob
from tools_utilities.errors import QuarkError, RecordError, said_by

MakeBatch = Callable[[list[Any]], tuple[Any, Any]]
"""Records → (inputs of the model, targets of the loss)."""


class RecordBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch: what `collate` made of some records."""

    inputs: Any
    targets: Any
    num_samples: int
    hashes: tuple[str, ...] = ()
    """Of the records, where the run keeps a sample log."""

    @property
    def num_targets(self) -> int:
        """Samples: each counts once in the mean loss."""
        return self.num_samples


class RecordCollate(msgspec.Struct, frozen=True, kw_only=True):
    """Calls the user's `collate`, and says which records it failed on."""

    make: MakeBatch
    name: str
    hashed: bool = False

    def __call__(self, samples: Sequence[Any]) -> RecordBatch:
        """Return the batch.

        Raises:
            RecordError: `collate` raised, or did not return (inputs, targets).
        """
        records = list(samples)
        try:
            made = self.make(records)
        except QuarkError:
            raise
        except Exception as error:
            raise RecordError(
                f"{self.name}: collate raised {said_by(error)} ({_fields(records)})",
                hint="It gets a list of records and returns (inputs, targets).",
            ) from error
        if not _is_pair(made):
            raise RecordError(
                f"{self.name}: collate returned {type(made).__name__}, not (inputs, targets)",
                hint="Return a tuple of two: what the model takes, and what the loss compares with.",
            )
        hashes = tuple(map(hash_of_record, records)) if self.hashed else ()
        return RecordBatch(inputs=made[0], targets=made[1], num_samples=len(records), hashes=hashes)


class RecordSource(StreamedSource):
    """A shard group as records."""

    def __init__(
        self, job: TrainingJob, data: DataSource, make: MakeBatch, *, training: bool
    ) -> None:
        """Make its stream; nothing is read yet."""
        super().__init__(job, data)
        self.view = None
        self.about = f"records, by {job.model}"
        self.collate = RecordCollate(make=make, name=job.model, hashed=job.sample_log)
        self.open_stream(training=training)


def _is_pair(made: Any) -> bool:
    return isinstance(made, tuple) and len(made) == 2  # noqa: PLR2004 - inputs and targets


def hash_of_record(record: Any) -> str:
    """Return a hash of a record's content, 16 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=8)
    _feed(digest, record)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for name in sorted(value):
            digest.update(f"{name}:".encode())
            _feed(digest, value[name])
    elif isinstance(value, bytes | bytearray | memoryview):
        digest.update(value)
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    else:
        digest.update(repr(value).encode("utf-8", "surrogatepass"))


def _fields(records: Sequence[Any]) -> str:
    first = records[0] if records else None
    if not isinstance(first, Mapping):
        return f"{len(records)} records"
    return f"{len(records)} records with the fields {', '.join(map(str, first))}"

"""A user's function on one batch of samples: results checked, errors that say which sample.

The function gets a list of samples and returns one result for each, in order: a list, an array or a
tensor whose first dimension is the batch.
"""

import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from tools_utilities.errors import QuarkError, UsageError, said_by
from tools_utilities.manifest import Chunk
from tools_utilities.shard_format import Sample

BatchFunction = Callable[[list[Sample]], Sequence[Any]]
"""A batch of samples → one result a sample, in order; each a mapping or anything JSON can hold."""


class FunctionError(QuarkError):
    """The user's function raised, or returned something that cannot be written."""


class BadSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that the function failed on, left out because `on_bad=skip` allows it."""

    sample: int
    """Its number in the chunk, from 0."""
    error: str


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with every shard."""

    function: BatchFunction
    function_name: str
    batch_size: int = 32
    """Not part of what the results are: another machine may take larger ones."""
    output_format: str = "jsonl"
    on_bad: str = "fail"
    bad_budget: int = 1000
    """Samples of one shard that `on_bad=skip` may leave out."""
    token_dtype: str | None = None
    """As it was said of the input's `.bin` files."""

    def fingerprint(self, chunk: Chunk) -> str:
        """Return what a finished chunk must share with this work to be used again."""
        made_of: tuple[str, ...] = (self.function_name, self.output_format, self.on_bad)
        made_of += () if self.token_dtype is None else (self.token_dtype,)
        content = (chunk.key, chunk.num_samples, chunk.num_bytes, chunk.crc32c, chunk.sha256)
        return hashlib.sha256(repr((made_of, content)).encode()).hexdigest()


def load_function(name: str, device: str | None = None) -> BatchFunction:
    """Return the function `package.module:function`; the working folder is searched too.

    A class is made once in each worker, with `device=` if it takes that, and its object called: the
    place to load a model.

    Raises:
        UsageError: there is none.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{name}: not of the form package.module:function")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{name}: {error}", hint="It must be importable from the folder you are in."
        ) from error
    if not callable(found):
        raise UsageError(f"{name} is no function")
    if device is not None and not (
        inspect.isclass(found) and "device" in inspect.signature(found).parameters
    ):
        raise UsageError(
            f"device={device}: {name} takes no device",
            hint="Write a class with __init__(self, device) and __call__(self, samples).",
        )
    if inspect.isclass(found):
        make: Any = found
        found = make(device=device) if "device" in inspect.signature(make).parameters else make()
        if not callable(found):
            raise UsageError(f"{name}: its objects cannot be called", hint="Give it __call__.")
    function: BatchFunction = found
    return function


def apply(work: Work, batch: list[Sample], chunk: Chunk, first: int) -> list[Any]:
    """Return a result for each sample of a batch whose first is number `first` of the chunk.

    Raises:
        FunctionError: names the function, the chunk and the sample.
    """
    where = f"{chunk.key}, samples {first} to {first + len(batch) - 1}"
    try:
        return _results(work, batch, where)
    except FunctionError:
        raise
    except Exception as error:
        culprit = first_failing(work, batch) if len(batch) > 1 else 0
        if culprit is not None:
            where = f"{chunk.key}, sample {first + culprit}"
        raise FunctionError(
            f"{work.function_name}: {said_by(error)} ({where})",
            hint="Its shard is free again; correct the function and run the same command, "
            "or leave such samples out with on_bad=skip.",
            key=chunk.key,
        ) from error


def first_failing(work: Work, batch: list[Sample]) -> int | None:
    """Return the first sample that the function fails on when it is alone; None: none does."""
    for at, sample in enumerate(batch):
        try:
            work.function([sample])
        except Exception:  # noqa: BLE001 - whatever the user's code raises
            return at
    return None


def apply_each(
    work: Work, batch: list[Sample], chunk: Chunk, first: int
) -> tuple[list[Any], list[BadSample]]:
    """Return the results of a failing batch sample by sample, and the samples left out."""
    results: list[Any] = []
    bad: list[BadSample] = []
    for at, sample in enumerate(batch):
        try:
            results += _results(work, [sample], f"{chunk.key}, sample {first + at}")
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            bad.append(BadSample(sample=first + at, error=said_by(error)))
    return results, bad


def _results(work: Work, batch: list[Sample], where: str) -> list[Any]:
    returned: Any = work.function(batch)
    countable = hasattr(returned, "__len__") and not isinstance(returned, str | bytes | dict)
    if not countable or len(returned) != len(batch):
        shown = f"{len(returned)} results" if countable else f"a {type(returned).__name__}"
        raise FunctionError(
            f"{work.function_name} returned {shown} for {len(batch)} samples ({where})",
            hint="It gets a list of samples and returns a list with one result for each.",
        )
    return list(returned)


_UNSAID = (bytes, bytearray, memoryview, datetime, date, time, timedelta, Decimal, UUID)
"""What msgspec would write as text of its own choice."""
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_exact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_line(result: Any, key: str) -> bytes:
    """Return a result as one JSON line, without its end; arrays and tensors become lists.

    Raises:
        FunctionError: JSON cannot hold it; a NaN is refused, not written as null.
    """
    try:
        said = msgspec.to_builtins(result, builtin_types=_UNSAID, enc_hook=plain)
        line = _encoder.encode(said)
        # msgspec writes NaN as null and bytes as text: its line stands only if it reads back equal.
        return line if _decoder.decode(line) == said else _exact.encode(said).encode()
    except (
        TypeError, ValueError, NotImplementedError, RecursionError, msgspec.MsgspecError,
    ) as error:  # fmt: skip
        raise FunctionError(
            f"a result of {key} is not JSON: {error}",
            hint="Return numbers, text, lists and mappings, None instead of NaN; "
            "--output_format parquet keeps NaN, bytes and times.",
            key=key,
        ) from error


def plain(value: Any) -> Any:
    """Turn numpy arrays and scalars, and tensors, into numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


def as_sample(result: Any, output_format: str, key: str) -> Sample:
    """Return a result as a row of a shard format: a mapping, its arrays as lists.

    Raises:
        FunctionError: it is no mapping.
    """
    if not isinstance(result, dict):
        raise FunctionError(
            f"a result of {key} is a {type(result).__name__}, and {output_format} holds fields",
            hint='Return a mapping for each sample: {"id": …, "vector": …}.',
            key=key,
        )
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in result.items()
    }

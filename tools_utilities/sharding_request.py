"""Whether what was asked of a sharding run makes sense, before anything is listed, read or written."""

import math
from collections.abc import Sequence
from pathlib import Path

from tools_utilities.data_objects import junk_reason
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.errors import UsageError

_ADDRESSED = frozenset({"hf", "http", "https"})
"""Inputs that are no folders."""


def chunk_bytes_of(megabytes: float, bytes_per_mb: int) -> int:
    """Return the bytes of chunks of so many megabytes; fractions are allowed.

    Raises:
        UsageError: it is no size.
    """
    if not math.isfinite(megabytes):
        raise UsageError(f"chunk_size_mb={megabytes}: a number of megabytes")
    return round(megabytes * bytes_per_mb)


def check_flat_name(name: str, first_key: str) -> None:
    """Refuse a name under which files would lie elsewhere, or not be found again.

    `first_key`: what the first file would be called.

    Raises:
        UsageError: so it is.
    """
    reason = junk_reason(first_key)
    if not name or "/" in name or not name.isprintable():
        reason = "not the beginning of a file's name"
    if reason is not None:
        raise UsageError(
            f"name={name!a}: {reason}",
            hint="Letters, digits and dashes; names that begin with `.` or `_` are not data.",
        )


def check_named(places: Sequence[str]) -> None:
    """Refuse a place without a name, which would be the folder that the program was started in.

    Raises:
        UsageError: one is empty.
    """
    if not all(places):
        raise UsageError(
            "an input or an output without a name",
            hint="A variable that is not set? `.` is the folder you are in.",
        )


def check_apart(inputs: Sequence[str], output: str, *, same_endpoint: bool) -> None:
    """Refuse an output that lies in a folder of the input: the next run would read it as input.

    `same_endpoint`: whether both sides' buckets are those of one store.

    Raises:
        UsageError: so it is.
    """
    target, below = locate_dataset(output)
    for uri in inputs:
        if uri.partition("://")[0] in _ADDRESSED:
            continue
        if "://" not in uri and not Path(uri).expanduser().is_dir():
            continue
        folder, prefix = locate_dataset(uri)
        local = folder.uri.startswith("file://")
        if local or (same_endpoint and folder.uri == target.uri):
            inside = f"{target.uri}/{below}".startswith(f"{folder.uri}/{prefix}")
            if inside:
                raise UsageError(
                    f"{output} lies in the input {uri}: the same command again would read what "
                    "it wrote",
                    hint="Choose an output beside it, or name the input's files.",
                )

"""Records of a Hugging Face dataset, streamed: `hf://owner/name` (extra `[hf]`)."""

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.sample_source import (
    HUB,
    SampleSource,
    Source,
    SourceBlock,
    SourceOptions,
    is_hub,
)

BLOCK_RECORDS = 1024


class HuggingFaceSource:
    """A dataset of the hub."""

    name = "huggingface"

    def takes(self, uri: str) -> bool:
        """Everything that begins with `hf://`."""
        return is_hub(uri)

    def open(self, uri: str, options: SourceOptions) -> Source:
        """Look the dataset up; UsageError without the `[hf]` extra."""
        try:
            from datasets import load_dataset_builder
        except ImportError as error:
            raise UsageError(
                f"{uri}: reading Hugging Face datasets needs the package `datasets`",
                hint="pip install 'quark-launcher[hf]'",
            ) from error
        name = uri.removeprefix(HUB).rstrip("/")
        split = options.split or "train"
        try:
            builder = load_dataset_builder(name, options.config, **options.load_kwargs)
            dataset = builder.as_streaming_dataset(split=split)
        except (OSError, ValueError) as error:
            raise DataNotFoundError(
                f"{uri} (split {split}): {error}", hint="Check its name, split and config."
            ) from error
        version = str(getattr(dataset.info, "version", None))
        checksums = sorted(getattr(dataset.info, "download_checksums", None) or {})
        made_of = (name, options.config, split, sorted(options.load_kwargs), version, checksums)
        return HuggingFaceRecords(uri, dataset, repr((*made_of, builder.hash, _files(builder))))


def _files(builder: Any) -> list[tuple[str, list[str], list[Any]]]:
    """Return every split's files and their versions: etags and revisions, or times of change."""
    found = getattr(builder.config, "data_files", None)
    if not isinstance(found, Mapping):
        return []
    return sorted(
        (str(split), list(map(str, files)), list(getattr(files, "origin_metadata", ())))
        for split, files in found.items()
    )


class HuggingFaceRecords:
    """Numbered records of an iterable dataset."""

    def __init__(self, uri: str, dataset: Any, made_of: str) -> None:
        self.uri = uri
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()
        self.objects: Mapping[str, str] = {uri: made_of}
        self.num_bytes: int | None = None
        self._dataset = dataset

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        """Yield blocks of 1,024 records; a resumed run skips to its place."""
        del position  # a stream has no other place than its number
        rows = iter(self._dataset.skip(start) if start else self._dataset)
        number, failed = start, None
        while failed is None:
            records, failed = _next_rows(rows)
            if not records:
                break
            yield SourceBlock(
                first=number,
                records=records,
                position={"index": 0},
            )
            number += len(records)
        if failed is not None:
            raise failed


def _next_rows(rows: Iterator[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], Exception | None]:
    """Return up to a block of rows, and the error that ended them early, if one did."""
    records: list[dict[str, Any]] = []
    try:
        for row in itertools.islice(rows, BLOCK_RECORDS):
            records.append(dict(row))  # noqa: PERF401 - what was read before an error is kept
    except Exception as error:  # noqa: BLE001 - of the dataset's own code; raised again in its place
        return records, error
    return records, None


SAMPLE_SOURCE: SampleSource = HuggingFaceSource()

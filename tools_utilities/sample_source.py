"""The contract of a sample source: what shards are made from, as numbered records in a fixed order.

`tools_utilities/sample_sources/` holds one kind of source a file, each ending in `SAMPLE_SOURCE`.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.plugins import load_plugins
from tools_utilities.shard_format import ReadOptions, Sample

HUB = "hf://"
"""How addresses of Hugging Face datasets begin."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a source is read."""

    read: ReadOptions = ReadOptions()
    json_bytes: bool = False
    """Give records that are JSON lines as their own bytes (checked), so that they can be copied."""
    format_name: str | None = None
    """Only files of this shard format; None: of any."""
    endpoint_url: str | None = None
    profile: str | None = None
    region: str | None = None
    split: str | None = None
    """Hugging Face: which split; default `train`."""
    config: str | None = None
    """Hugging Face: which configuration."""
    load_kwargs: dict[str, Any] = {}
    """Hugging Face: further arguments of `load_dataset`."""


class SourceBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive records of a source; where blocks end means nothing, and may differ when resumed."""

    first: int
    """Number of the first record, from 0 over the whole source."""
    records: list[Sample] | list[bytes]
    position: Mapping[str, int]
    """Where the record after `first` + k is: `Source.blocks(position_after(block, k))`."""
    done_bytes: int | None = None
    """Of the source's `num_bytes`, what lies before the block; None: not known."""


class Source(Protocol):
    """One opened source."""

    uri: str
    fingerprint: str
    """Of everything that decides the records: names, sizes, versions; equal means equal records."""
    objects: Mapping[str, str]
    """What it is made of: name → version, to say what changed; may leave some out."""
    num_bytes: int | None
    """As stored, for estimates; None: not known."""

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        """Yield blocks whose first record is number `start`; `position` finds it without reading on.

        `position` is a block's own, with `index` raised by the records already taken from it.
        Records read before an error are handed out before it is raised: it is told with their number.
        """
        ...


class SampleSource(Protocol):
    """One kind of source."""

    name: str

    def takes(self, uri: str) -> bool:
        """Say whether this kind reads the address."""
        ...

    def open(self, uri: str, options: SourceOptions) -> Source:
        """Look at the source (list it, read its description); read no records yet.

        Raises:
            DataNotFoundError: nothing is there.
            UsageError: it cannot be read with what is installed or known.
        """
        ...


@cache
def sample_sources() -> dict[str, Any]:
    """Return every kind of source by name."""
    return load_plugins("tools_utilities.sample_sources", "SAMPLE_SOURCE")


def open_source(uri: str, options: SourceOptions) -> Source:
    """Return the opened source of an address (a path counts as one).

    Raises:
        UsageError: no kind of source reads it.
    """
    for kind in sample_sources().values():
        if kind.takes(uri):
            source: Source = kind.open(uri, options)
            return source
    raise UsageError(
        f"{uri}: no source reads this", hint=f"Known kinds: {', '.join(sample_sources())}."
    )


def open_sources(uris: Sequence[str], options: SourceOptions) -> Source:
    """Return several addresses as one source, in the order given.

    What is said of a Hugging Face dataset is of those among them.

    Raises:
        UsageError: no kind of source reads one, or it is said and none of them is one.
    """
    if len(uris) == 1:
        return open_source(uris[0], options)
    others = options
    if any(map(is_hub, uris)):
        others = msgspec.structs.replace(options, split=None, config=None, load_kwargs={})
    return JoinedSource([open_source(uri, options if is_hub(uri) else others) for uri in uris])


def is_hub(uri: str) -> bool:
    """Say whether an address is one of a Hugging Face dataset."""
    return uri.startswith(HUB)


def refuse_hub_options(
    uri: str, split: str | None, config: str | None, load_kwargs: Mapping[str, Any]
) -> None:
    """Refuse what can be said of a Hugging Face dataset alone, where the address is another.

    Raises:
        UsageError: so it is; it would have no effect.
    """
    given = {"split": split, "config": config, "load_kwargs": load_kwargs or None}
    said = [name for name, value in given.items() if value is not None]
    if said and not is_hub(uri):
        raise UsageError(
            f"{uri}: {' and '.join(said)} would have no effect: only {HUB} datasets have them",
            hint=f"Leave {' and '.join(said)} out and name the files of the split, "
            f"or read {HUB}OWNER/NAME.",
        )


class JoinedSource:
    """Sources one after another; a position says which one with `source`."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.uri = " ".join(source.uri for source in sources)
        made_of = "\n".join(source.fingerprint for source in sources)
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()
        self.objects: Mapping[str, str] = {
            name: version for source in sources for name, version in source.objects.items()
        }
        sizes = [source.num_bytes for source in sources]
        known = [size for size in sizes if size is not None]
        self.num_bytes = sum(known) if len(known) == len(sizes) else None
        self._sizes = known if len(known) == len(sizes) else [0] * len(sizes)

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        """Yield the blocks of each source in turn, numbered through."""
        number = start
        where = dict(position) if position else {"source": 0}
        first = where.pop("source")
        for current in range(first, len(self._sources)):
            inside = where if current == first and position else None
            for block in self._sources[current].blocks(number, inside):
                number = block.first + len(block.records)
                before = sum(self._sizes[:current])
                yield msgspec.structs.replace(
                    block,
                    position={**block.position, "source": current},
                    done_bytes=before + (block.done_bytes or 0),
                )

"""From folder listings to candidate groups, and from a candidate to its score. Pure.

A candidate is (folder, stem before the shard number, format). Shard folders (`shard_003/`) and
partition folders (`date=2019-01-01/`) are shards of their parent folder's candidate.

The score: four facts and the format make a base in [0, 1]; the split then picks the band it is
spread over, so that no hold-out ever scores above another group.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median

import msgspec

from tools_utilities.data_objects import (
    HOLDOUTS,
    LOOSE,
    assign_stems,
    folder_stem,
    is_junk_folder,
    is_shard_folder,
    kind_of,
    parse_name,
    split_of,
    split_word,
)
from tools_utilities.folder_walk import FolderListing, Walk
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import shard_formats, split_suffix

MAX_MISSING = 100
_WEIGHTS = {"count": 0.3, "volume": 0.2, "evenness": 0.2, "numbering": 0.2, "format": 0.1}
_BANDS = {"train": (0.5, 1.0), None: (0.5, 0.95), "val": (0.3, 0.5), "test": (0.1, 0.3)}
_BROKEN_BAND = (0.0, 0.1)
_MANY_OBJECTS = 1024
_MANY_BYTES = 1e12
_DENSE = 0.5
"""Numbers that fill less of their range than this (time stamps) are no numbering with gaps."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that may be one group."""

    folder: str
    stem: str
    kind: str
    """Format name, or the suffix that no format reads."""
    objects: tuple[ObjectInfo, ...]
    complete: bool
    shard_folders: bool = False
    alone: bool = False
    """The only group of its folder, and the only series of its format there."""

    @property
    def prefix(self) -> str:
        """The folder when it holds one group, else what stands before the shard number."""
        named = not self.alone and self.stem != LOOSE
        return self.folder + self.stem if named else self.folder

    @property
    def stands_alone(self) -> bool:
        """A single object that no series claims."""
        return len(self.objects) == 1 and self.stem == LOOSE

    @property
    def sizes(self) -> list[int]:
        """Object sizes, in bytes."""
        return [info.size_bytes for info in self.objects]

    @property
    def median_bytes(self) -> float:
        """Median object size, in bytes."""
        return float(median(self.sizes))


class Rating(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's score and what it is made of."""

    score: float
    factors: dict[str, float]
    reasons: tuple[str, ...]
    missing: tuple[int, ...]
    split: str | None
    holdout: bool


def find_candidates(walk: Walk, is_group: Callable[[Candidate], bool]) -> list[Candidate]:
    """Return the candidates of every folder that was looked into.

    `is_group` tells whether one has enough objects of enough size.
    """
    members = _member_folders(walk)
    found: list[Candidate] = []
    for listing in walk.folders.values():
        if listing.prefix not in members:
            found.extend(_of_folder(listing, walk, members, is_group))
    return found


def _of_folder(
    listing: FolderListing,
    walk: Walk,
    members: dict[str, tuple[str, str]],
    is_group: Callable[[Candidate], bool],
) -> list[Candidate]:
    named: dict[str, list[ObjectInfo]] = {}
    for info in listing.data:
        named.setdefault(kind_of(info.key), []).append(info)
    found: dict[tuple[str, str], Candidate] = {}
    for kind, infos in named.items():
        start = len(listing.prefix)
        stems = assign_stems(info.key[start:] for info in infos)
        for stem in dict.fromkeys(stems.values()):
            own = tuple(info for info in infos if stems[info.key[start:]] == stem)
            complete = listing.complete and stem not in listing.truncated
            found[stem, kind] = Candidate(
                folder=listing.prefix, stem=stem, kind=kind, objects=own, complete=complete
            )
    for candidate in _of_shard_folders(listing, walk, members):
        found.setdefault((candidate.stem, candidate.kind), candidate)
    return [
        msgspec.structs.replace(candidate, alone=_is_alone(candidate, found.values(), is_group))
        for candidate in found.values()
    ]


def _is_alone(
    candidate: Candidate, found: Iterable[Candidate], is_group: Callable[[Candidate], bool]
) -> bool:
    """Tell whether a folder's prefix means this candidate: no other series, no other group."""
    others = (other for other in found if other is not candidate)
    return not any(other.kind == candidate.kind or is_group(other) for other in others)


def _of_shard_folders(
    listing: FolderListing, walk: Walk, members: dict[str, tuple[str, str]]
) -> list[Candidate]:
    gathered: dict[tuple[str, str], list[ObjectInfo]] = {}
    for prefix, (parent, stem) in members.items():
        if parent == listing.prefix:
            for info in walk.folders[prefix].data:
                gathered.setdefault((stem, kind_of(info.key)), []).append(info)
    complete = listing.complete and not listing.truncated
    whole = complete and all(
        walk.folders[prefix].complete and not walk.folders[prefix].truncated
        for prefix, (parent, _) in members.items()
        if parent == listing.prefix
    )
    return [
        Candidate(
            folder=listing.prefix,
            stem=stem,
            kind=kind,
            objects=tuple(infos),
            complete=whole and not _is_sampled(listing.prefix, walk),
            shard_folders=True,
        )
        for (stem, kind), infos in gathered.items()
    ]


def _is_sampled(prefix: str, walk: Walk) -> bool:
    return any(sampled.startswith(prefix) for sampled in walk.sampled)


def _member_folders(walk: Walk) -> dict[str, tuple[str, str]]:
    """Return shard or partition folder → (the folder whose shard it is, stem)."""
    members: dict[str, tuple[str, str]] = {}
    for prefix, listing in walk.folders.items():
        owner = members.get(prefix)
        series: dict[str, list[str]] = {}
        for folder in listing.folders:
            name = listing.name(folder)
            stem = folder_stem(name)
            if stem is not None and folder in walk.folders and not is_junk_folder(name):
                series.setdefault(stem, []).append(folder)
        for stem, folders in series.items():
            if stem.endswith("="):
                # A partition of a partition belongs to the outermost one.
                members |= dict.fromkeys(folders, owner or (prefix, stem))
            elif stem not in _file_stems(listing) and _are_shards(folders, walk):
                members |= dict.fromkeys(folders, (prefix, stem))
    return members


def _file_stems(listing: FolderListing) -> set[str]:
    """Return the stems of a folder's own files: folders that share one are no shards beside them."""
    return {_stem(info.key[len(listing.prefix) :]) for info in listing.data}


def _are_shards(folders: list[str], walk: Walk) -> bool:
    """Tell whether numbered folders are shards of one dataset rather than datasets of their own."""
    listings = [walk.folders[folder] for folder in folders]
    data = [info.key for listing in listings for info in listing.data]
    words = any(split_word(_stem(key.rpartition("/")[2])) for key in data)
    named_shard = (
        is_shard_folder(folders[0].split("/")[-2]) and not folders[0].split("/")[-2].isdigit()
    )
    return bool(data) and not words and (len(folders) > 1 or named_shard)


def _stem(name: str) -> str:
    parsed = parse_name(name)
    return parsed.stem if parsed is not None else name


def rate(candidate: Candidate, root: str, *, decodes: bool | None = None) -> Rating:
    """Return a candidate's score; `decodes=False` puts it below every group that can be read."""
    split, holdout = _split(candidate, root)
    numbering, missing, notes = _numbering(candidate)
    known = candidate.kind in shard_formats()
    doubles = _doubles(candidate)
    factors = {
        "count": min(1.0, math.log2(len(candidate.objects) + 1) / math.log2(_MANY_OBJECTS + 1)),
        "volume": min(1.0, math.log10(sum(candidate.sizes) + 1) / math.log10(_MANY_BYTES)),
        "evenness": _evenness(candidate.sizes),
        "numbering": numbering,
        "format": (0.5 if doubles else 1.0) if known else 0.0,
    }
    base = sum(weight * factors[name] for name, weight in _WEIGHTS.items())
    low, high = _BROKEN_BAND if decodes is False else _BANDS[split if holdout else _plain(split)]
    factors["split"] = high
    if decodes is not None:
        factors["decodes"] = float(decodes)
    if doubles:
        notes = (*notes, f"{doubles} shards are there compressed and uncompressed")
    return Rating(
        score=round(low + (high - low) * base, 4),
        factors={name: round(value, 4) for name, value in factors.items()},
        reasons=notes,
        missing=missing,
        split=split,
        holdout=holdout,
    )


def _plain(split: str | None) -> str | None:
    return split if split == "train" else None


def _split(candidate: Candidate, root: str) -> tuple[str | None, bool]:
    """Return the split, and whether it is a hold-out: not so when the person pointed right at it."""
    stem = "" if candidate.stem == LOOSE else candidate.stem
    below = split_of(candidate.folder[len(root) :], stem)
    if below is not None:
        return below, below in HOLDOUTS
    return split_word(root.rstrip("/").rpartition("/")[2]), False


def _evenness(sizes: list[int]) -> float:
    """Return 1 for equal sizes, less the further a typical object is from the median."""
    middle = median(sizes)
    if not middle:
        return 0.0
    return max(0.0, 1.0 - median(abs(size - middle) for size in sizes) / middle)


def _numbering(candidate: Candidate) -> tuple[float, tuple[int, ...], tuple[str, ...]]:
    """Return how complete the numbering is, the missing numbers, and a sentence about it."""
    names = [info.key[len(candidate.folder) :].split("/", 1)[0] for info in candidate.objects]
    parsed = [found for name in names if (found := parse_name(name)) is not None]
    if candidate.stem == LOOSE or candidate.stem.endswith("="):
        return 0.5, (), ()
    totals = sorted({found.total for found in parsed if found.total is not None})
    if len(totals) > 1:
        said = " and ".join(str(total) for total in totals[:3])
        return 0.5, (), (f"names say both -of-{said}",)
    numbers = {found.numbers[0] for found in parsed if len(found.numbers) == 1}
    if not numbers or not candidate.complete:
        return 1.0, (), ()
    expected = _expected(numbers, totals[0] if totals else None)
    if len(numbers & set(expected)) < _DENSE * len(expected) and not totals:
        return 0.5, (), ()
    missing = tuple(number for number in expected if number not in numbers)
    if not missing:
        return 1.0, (), ()
    shown = ", ".join(str(number) for number in missing[:5]) + (", …" if len(missing) > 5 else "")  # noqa: PLR2004 - enough to see the pattern
    note = f"{len(missing):,} of {len(expected):,} shards missing: {shown}"
    return 1.0 - len(missing) / len(expected), missing[:MAX_MISSING], (note,)


def _expected(numbers: set[int], total: int | None) -> range:
    if total is not None and total <= 10 * _MANY_OBJECTS**2:
        first = 1 if 0 not in numbers and total in numbers else 0
        return range(first, first + total)
    low, high = min(numbers), max(numbers)
    # Series start at 0 or 1; a later start (a year, an id) is no gap.
    first = low if low > 1 + len(numbers) else min(low, 1 if 0 not in numbers else 0)
    return range(first, high + 1)


def _doubles(candidate: Candidate) -> int:
    plain = Counter(split_suffix(info.key)[0] for info in candidate.objects)
    return sum(count > 1 for count in plain.values())

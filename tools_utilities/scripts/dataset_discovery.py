"""Finds the shard groups below a prefix: listing → candidates → scored groups.

    python tools_utilities/scripts/dataset_discovery.py --bucket B --root P --auto-shards --human

Also a program: prints the groups best first, as a table, plain lines or JSON.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if not __package__ and str(Path(__file__).parents[2]) not in sys.path:
    # Run by path from a checkout that is not installed: the packages lie beside this folder.
    sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec

from tools_utilities.candidate_checks import Limits, is_group, manifest_says, why_not
from tools_utilities.console import SCHEMA, Console, Surroundings
from tools_utilities.decode_probe import Probe, ProbeRules, probe
from tools_utilities.errors import AccessError, DataNotFoundError, QuarkError
from tools_utilities.folder_walk import Walk, walk_folders
from tools_utilities.group_lines import detail_lines, failure_lines, folder_lines, group_lines
from tools_utilities.group_listing import folder_of, list_members
from tools_utilities.object_store import ObjectInfo, ObjectStore, open_store
from tools_utilities.patient_store import PatientStore
from tools_utilities.redaction import guard_process
from tools_utilities.settings import load_settings, read_environment
from tools_utilities.shard_format import shard_formats
from tools_utilities.shard_groups import Candidate, Rating, find_candidates, rate
from tools_utilities.walk_report import (
    FolderSummary,
    by_reason,
    ignored_in,
    notes_of,
    require_objects,
    tree_of,
)

DEFAULT_ROOT = "data/datasets/alphagenome/"
PROBED_AT_ONCE = 12
MAX_PROBED = 48
_THREADS = 8


class ShardGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Shards of one split of a dataset, as the store lists them."""

    prefix: str
    """Its folder when that holds one group, else the literal prefix before the shard number."""
    stem: str
    """Names are this, then a number; `*`: the names of the folder that belong to no series."""
    split: str | None
    """train, val or test, where a name says so."""
    num_objects: int
    total_bytes: int
    median_bytes: float
    format: str | None
    """None: no format reads these names."""
    score: float
    """In [0, 1]; hold-outs score below every other group, groups that fail decoding below those."""
    factors: dict[str, float]
    """What the score is made of, each in [0, 1]."""
    reasons: tuple[str, ...]
    """Why it scored so, and why it does not qualify; text for people."""
    ignored: int
    """Objects of its folder that are not data."""
    qualifies: bool
    """Enough objects of enough size, or a manifest."""
    complete_listing: bool
    """False: the store holds more of it than was listed; counts and bytes are lower bounds."""
    objects_shown: str
    """The count for people: `8`, or `≥ 1,000, not all listed`."""
    holdout: bool
    """Offered as validation, never chosen for training."""
    decodes: bool | None = None
    """False: records of a few shards could not be decoded; None: not tried."""
    missing: tuple[int, ...] = ()
    """Shard numbers that the numbering leaves out (the first 100)."""
    has_manifest: bool = False

    @property
    def folder(self) -> str:
        """The folder that holds the shards; ends in `/`, or is empty for the bucket itself."""
        return folder_of(self.prefix)

    @property
    def is_choice(self) -> bool:
        """Whether it counts when choosing what to train on."""
        return self.qualifies and not self.holdout and self.decodes is not False


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found below a root."""

    store: str
    """The store's URI."""
    root: str
    groups: tuple[ShardGroup, ...]
    """Groups that qualify, best first; those that fail decoding last."""
    candidates: tuple[ShardGroup, ...]
    """What did not qualify, each with its reasons."""
    loose: tuple[ObjectInfo, ...]
    """Data objects that stand alone."""
    tree: tuple[FolderSummary, ...]
    ignored: dict[str, int]
    """Objects that are not data, counted by reason."""
    ignored_keys: dict[str, tuple[str, ...]]
    """The same, named."""
    notes: tuple[str, ...] = ()

    @property
    def choices(self) -> list[ShardGroup]:
        """The groups that may be trained on, best first."""
        return [group for group in self.groups if group.is_choice]

    @property
    def holdouts(self) -> list[ShardGroup]:
        """The groups offered as validation, best first."""
        return [group for group in self.groups if group.holdout and group.decodes is not False]


def group_objects(
    store: ObjectStore, prefix: str, stem: str | None = None, *, format_name: str | None = None
) -> list[ObjectInfo]:
    """Return the data objects of a prefix in key byte order; what is not data is left out.

    A prefix ending in `/` is a folder: everything below it. Any other is a literal key prefix; one
    that is itself the key of a readable object means that object alone. With `stem` (a
    ShardGroup's), only the shards of that series in the prefix's folder. Where some names have a
    format that is known, names of none are left out; `format_name` keeps only that format.
    """
    return list_members(store, prefix, stem, format_name)


def list_group(store: ObjectStore, group: ShardGroup) -> list[ObjectInfo]:
    """Return all data objects of a group, listed in full, in key byte order."""
    return group_objects(store, group.prefix, group.stem, format_name=group.format)


def find_groups(
    store: ObjectStore,
    root_prefix: str,
    *,
    depth: int = 3,
    min_objects: int = 8,
    min_size_kb: float = 1.0,
    probe: bool = True,
    rules: ProbeRules = ProbeRules(),  # noqa: B008 - frozen
) -> Discovery:
    """Return the shard groups down to `depth` folders below a folder.

    `root_prefix` is a folder with or without its closing slash; empty is the whole bucket. With
    `probe`, a few records of a few shards of the best groups are decoded, by `rules`.

    Raises:
        DataNotFoundError: no such bucket, or nothing below the prefix.
        AccessError: listing is refused, or reading is and no group can be read.
        StoreError: the store did not answer.
    """
    root = root_prefix if root_prefix.endswith("/") or not root_prefix else root_prefix + "/"
    store = PatientStore(store)
    walk = walk_folders(store, root, depth)
    require_objects(store, walk)
    limits = Limits(min_objects=min_objects, min_bytes=min_size_kb * 1024)
    ignored = {prefix: ignored_in(listing) for prefix, listing in walk.folders.items()}
    rated = [
        _group(store, walk, candidate, limits, _ignored_below(candidate, ignored))
        for candidate in find_candidates(walk, lambda candidate: is_group(candidate, limits))
    ]
    rated = _best_first(rated)
    qualifying = [found for found in rated if found.group.qualifies]
    if probe:
        qualifying = _probed(store, root, qualifying, rules)
    failed = [found for found in rated if not found.group.qualifies]
    loose = [found for found in failed if found.candidate.stands_alone]
    denied = [listing for listing in walk.folders.values() if listing.denied is not None]
    if denied and not qualifying and denied[0].denied is not None:
        raise denied[0].denied
    return Discovery(
        store=store.spec.uri,
        root=root,
        groups=tuple(found.group for found in qualifying),
        candidates=tuple(found.group for found in failed if found not in loose),
        loose=tuple(info for found in loose for info in found.candidate.objects),
        tree=tree_of(walk),
        ignored=dict(Counter(reason for found in ignored.values() for reason, _ in found)),
        ignored_keys=by_reason(ignored),
        notes=notes_of(walk),
    )


class _Rated(msgspec.Struct, frozen=True, kw_only=True):
    candidate: Candidate
    group: ShardGroup


def _best_first(rated: Sequence[_Rated]) -> list[_Rated]:
    return sorted(rated, key=lambda found: (-found.group.score, found.group.prefix))


def _group(
    store: ObjectStore, walk: Walk, candidate: Candidate, limits: Limits, ignored: int
) -> _Rated:
    rating = rate(candidate, walk.root)
    short = why_not(candidate, limits)
    known = candidate.kind in shard_formats()
    has_manifest = False
    reasons = rating.reasons
    if short and known:
        has_manifest, trouble = manifest_says(store, walk, candidate)
        reasons = (*reasons, *trouble)
    if not known:
        short = (*short, f"no format reads {candidate.kind or 'names without a suffix'}")
    if not has_manifest:
        reasons = (*short, *reasons)
    group = _shard_group(candidate, rating, ignored)
    return _Rated(
        candidate=candidate,
        group=msgspec.structs.replace(
            group,
            qualifies=known and (has_manifest or not short),
            has_manifest=has_manifest,
            reasons=reasons,
        ),
    )


def _shard_group(candidate: Candidate, rating: Rating, ignored: int) -> ShardGroup:
    count = len(candidate.objects)
    return ShardGroup(
        prefix=candidate.prefix,
        stem=candidate.stem,
        split=rating.split,
        num_objects=count,
        total_bytes=sum(candidate.sizes),
        median_bytes=candidate.median_bytes,
        format=candidate.kind if candidate.kind in shard_formats() else None,
        score=rating.score,
        factors=rating.factors,
        reasons=rating.reasons,
        ignored=ignored,
        qualifies=False,
        complete_listing=candidate.complete,
        objects_shown=f"{count:,}" if candidate.complete else f"≥ {count:,}, not all listed",
        holdout=rating.holdout,
        missing=rating.missing,
    )


def _probed(
    store: ObjectStore, root: str, rated: Sequence[_Rated], rules: ProbeRules
) -> list[_Rated]:
    """Decode some of the best groups, until one that may be chosen is among them."""
    done: list[_Rated] = []
    refused: list[AccessError] = []
    waiting = list(rated)
    while waiting and len(done) < MAX_PROBED:
        now, waiting = waiting[:PROBED_AT_ONCE], waiting[PROBED_AT_ONCE:]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="probe") as pool:
            probes = list(pool.map(lambda found: probe(store, found.candidate.objects, rules), now))
            refused.extend(one.error for one in probes if isinstance(one.error, AccessError))
            done.extend(
                _with_probe(found, root, result) for found, result in zip(now, probes, strict=True)
            )
        if any(found.group.is_choice for found in done):
            return _best_first([*done, *waiting])
    if refused:
        raise refused[0]
    return _best_first([*done, *waiting])


def _with_probe(found: _Rated, root: str, result: Probe) -> _Rated:
    rating = rate(found.candidate, root, decodes=result.decodes)
    reasons = found.group.reasons
    if result.decodes is False:
        reasons = (f"decoding failed: {result.message}", *reasons)
    elif result.decodes is None:
        reasons = (f"not decoded: {result.message}", *reasons)
    return _Rated(
        candidate=found.candidate,
        group=msgspec.structs.replace(
            found.group,
            score=rating.score,
            factors=rating.factors,
            decodes=result.decodes,
            reasons=reasons,
        ),
    )


def _ignored_below(candidate: Candidate, ignored: dict[str, list[tuple[str, str]]]) -> int:
    """Return how many ignored entries lie in a candidate's folder, its shard folders with it."""
    folders = {candidate.folder}
    if candidate.shard_folders:
        folders |= {folder_of(info.key) for info in candidate.objects}
    return sum(len(ignored.get(folder, ())) for folder in folders)


def discover(
    bucket: str, depth: int = 3, root_prefix: str = DEFAULT_ROOT
) -> dict[str, dict[str, int]]:
    """Return prefix → `{"objects": n, "bytes": n}` for every folder that holds data.

    Looks `depth` folders down below `root_prefix`. Counts are of the data objects directly in a
    folder, listed in full. `bucket` is a bucket's name, a store URI or an alias of quark.yaml.

    Raises:
        DataNotFoundError: no such bucket, or nothing below the prefix.
        AccessError: listing is refused.
    """
    store = _open(bucket)
    root = root_prefix if root_prefix.endswith("/") or not root_prefix else root_prefix + "/"
    walk = walk_folders(store, root, depth, in_full=True)
    require_objects(store, walk)
    denied = [listing.denied for listing in walk.folders.values() if listing.denied is not None]
    if denied:
        raise denied[0]
    return {
        folder.prefix: {"objects": folder.num_objects, "bytes": folder.total_bytes}
        for folder in tree_of(walk)
        if folder.num_objects
    }


def discover_shard_groups(
    bucket: str, root_prefix: str = DEFAULT_ROOT, *, min_objects: int = 8, min_size_kb: float = 1
) -> list[ShardGroup]:
    """Return the groups below a folder, best first. See `find_groups`."""
    found = find_groups(
        _open(bucket), root_prefix, min_objects=min_objects, min_size_kb=min_size_kb
    )
    return list(found.groups)


def _open(bucket: str | None) -> ObjectStore:
    return open_store(load_settings(start_dir=Path.cwd()).store_spec(bucket))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Find the shard groups below a prefix.")
    parser.add_argument("--bucket", help="bucket, store URI or alias; default: the configured one")
    parser.add_argument("--root", default=DEFAULT_ROOT, help="folder to look below")
    parser.add_argument("--depth", type=int, default=3, help="folders to look down")
    parser.add_argument("--auto-shards", action="store_true", help="find shard groups")
    parser.add_argument("--human", action="store_true", help="a table with binary units")
    parser.add_argument("--min-objects", type=int, default=8, help="fewest objects of a group")
    parser.add_argument("--min-size-kb", type=float, default=1.0, help="smallest median, in KiB")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.add_argument("--verbose", action="store_true", help="with what was left out, and why")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns 0, 3 when there is nothing, 4 without permission, 2 for misuse."""
    guard_process(sys.argv[1:] if arguments is None else arguments)
    options = _parse(arguments)
    about = read_environment()
    console = Console(
        Surroundings(
            term=about.term, no_color=about.no_color, ci=about.ci, columns=about.columns,
            json=options.json, verbose=options.verbose,
        )
    )  # fmt: skip
    try:
        return _run(options, _open(options.bucket), console)
    except QuarkError as error:
        return console.error(error)


def _run(options: argparse.Namespace, store: ObjectStore, console: Console) -> int:
    found = find_groups(
        store,
        options.root,
        depth=options.depth,
        min_objects=options.min_objects,
        min_size_kb=options.min_size_kb,
        probe=options.auto_shards,
    )
    data = {"schema": SCHEMA, **msgspec.to_builtins(found)}
    lines = (group_lines if options.auto_shards else folder_lines)(data, human=options.human)
    console.note(*(f"note: {note}" for note in data["notes"]))
    console.result([*lines, *(detail_lines(data) if options.verbose else [])], data)
    if found.groups or not options.auto_shards:
        return 0
    console.note(*folder_lines(data, human=True), *failure_lines(data))
    console.failure(
        f"{found.store}/{found.root}: no shard group down to {options.depth} folders",
        "Lower --min-objects or --min-size-kb, raise --depth, or point closer.",
    )
    return DataNotFoundError.exit_code


if __name__ == "__main__":
    sys.exit(main())

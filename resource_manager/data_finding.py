"""From dataset paths to the shard groups of a run: discover, choose, list in full, decode a few records.

Reads only: listings and byte ranges of a few shards, straight from the store and past the cache, so
that nothing is written before the plan is confirmed.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from brain.ml.training_job import DataSource
from resource_manager.group_choice import Chooser, choose_groups, validation_siblings
from resource_manager.order_looking import OrderLook, look_at_order
from resource_manager.plan import PlannedData
from tools_utilities.decode_probe import ProbeRules, probe
from tools_utilities.errors import DataError, DataNotFoundError, QuarkError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import ObjectInfo, ObjectStore, StoreSpec, open_store
from tools_utilities.scripts.dataset_discovery import (
    Discovery,
    ShardGroup,
    find_groups,
    group_objects,
    list_group,
)
from tools_utilities.shard_format import Sample, split_suffix

PREVIEW_RECORDS = 3
PREVIEW_CHARACTERS = 400


class DataTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dataset path points."""

    spec: StoreSpec
    prefix: str
    """A folder to discover below when it ends in `/` (or is empty), else a literal key prefix."""
    is_given: bool = False
    """Named by `train_prefix` or `val_prefix`: taken as it is, nothing is discovered below it."""
    note: str = ""
    """How a typed path became this, when that is not plain."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What discovery looks for."""

    depth: int = 3
    min_objects: int = 8
    min_size_kb: float = 1.0
    rules: ProbeRules = ProbeRules()
    """How a few records are decoded: as the run will read them all."""


class FoundData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one run."""

    train: tuple[DataSource, ...]
    val: tuple[DataSource, ...]
    planned: tuple[PlannedData, ...]
    samples: tuple[Sample, ...]
    """A few decoded records of the first training group."""
    notes: tuple[str, ...] = ()
    looks: tuple[OrderLook | None, ...] = ()
    """How the samples of each training group lie in its shards."""


class NoGroupsError(DataNotFoundError):
    """Nothing below a prefix can be trained on; `discovery` says what is there instead."""

    def __init__(self, message: str, *, hint: str = "", **detail: Any) -> None:
        super().__init__(message, hint=hint, **detail)
        self.discovery: Discovery | None = None


class DataFinder:
    """Finds the data of a run; one store is opened once."""

    def __init__(
        self,
        limits: Limits,
        ask: Chooser,
        *,
        working: Callable[[str], AbstractContextManager[None]] = lambda _what: nullcontext(),
        open_: Callable[[StoreSpec], ObjectStore] = open_store,
    ) -> None:
        self._limits = limits
        self._ask = ask
        self._working = working
        self._open = open_
        self._stores: dict[StoreSpec, ObjectStore] = {}
        self.told: list[str] = []
        """What discovery did not look at; the picker and the plan say so."""

    def store(self, spec: StoreSpec) -> ObjectStore:
        """Return the store of a spec, opened on first use."""
        if spec not in self._stores:
            self._stores[spec] = self._open(spec)
        return self._stores[spec]

    def find(
        self,
        targets: Sequence[DataTarget],
        *,
        wanted: Any = None,
        val_target: DataTarget | None = None,
        use_siblings: bool = True,
    ) -> FoundData:
        """Return the groups below `targets` that are trained on, and what validates them.

        `wanted` picks groups (see `choose_groups`). Without `val_target`, the validation groups
        beside the chosen ones are used, unless `use_siblings` is false.

        Raises:
            NoGroupsError: nothing qualifies below a target.
            DataError: the chosen data cannot be decoded.
            InputNeededError: several qualify and nobody can choose.
        """
        train: list[_Found] = []
        val: list[_Found] = []
        for target in targets:
            chosen, siblings = self._train_groups(target, wanted)
            train += chosen
            val += siblings if use_siblings and val_target is None else []
        if val_target is not None:
            val = self._val_groups(val_target)
        return FoundData(
            train=tuple(found.source for found in train),
            val=tuple(found.source for found in val),
            planned=tuple(found.planned for found in (*train, *val)),
            samples=train[0].samples,
            notes=(*(target.note for target in targets if target.note), *self.told),
            looks=tuple(found.look for found in train),
        )

    def validation(self, target: DataTarget, *, wanted: Any = None) -> FoundData:
        """Return the data to evaluate on: the groups `wanted`, else the hold-outs, else all there is.

        Raises:
            NoGroupsError: there is no group below the target.
        """
        if wanted is None or not _is_folder(target):
            found = self._val_groups(target)
        else:
            known = [one for one in self.discover(target).groups if one.decodes is not False]
            chosen, why = choose_groups(known, wanted, self._ask)
            found = [self._group(target, group, "validation", why) for group in chosen]
        return _only_validation(found, target.note)

    def describe(
        self, train: Sequence[DataSource], val: Sequence[DataSource], why: str
    ) -> FoundData:
        """Return the sources of an earlier run as they are now.

        Raises:
            DataNotFoundError: one of them is gone.
        """
        found = [self._source(source, "train", why) for source in train]
        beside = [self._source(source, "validation", why) for source in val]
        both = [*found, *beside]
        return FoundData(
            train=tuple(one.source for one in found),
            val=tuple(one.source for one in beside),
            planned=tuple(one.planned for one in both),
            samples=both[0].samples if both else (),
            looks=tuple(one.look for one in found),
        )

    def objects(self, source: DataSource) -> list[ObjectInfo]:
        """Return a source's objects as they are now, in the order of their keys.

        Raises:
            DataNotFoundError: there are none.
        """
        infos = group_objects(
            self.store(source.store), source.prefix, source.stem, format_name=source.format
        )
        if not infos:
            raise DataNotFoundError(
                f"{source.store.uri}/{source.prefix}: no data objects any more",
                hint="Name data that is there.",
                prefix=source.prefix,
            )
        return infos

    def _source(self, source: DataSource, role: str, why: str) -> "_Found":
        infos = self.objects(source)
        return self._described(self.store(source.store), source, infos, role, why)

    def discover(self, target: DataTarget) -> Discovery:
        """Return everything below a target's folder."""
        limits = self._limits
        return find_groups(
            self.store(target.spec), target.prefix, depth=limits.depth,
            min_objects=limits.min_objects, min_size_kb=limits.min_size_kb, rules=limits.rules,
        )  # fmt: skip

    def preview(self, spec: StoreSpec, group: ShardGroup) -> list[str]:
        """Return a few records of a group as lines, or why there are none."""
        store = self.store(spec)
        try:
            found = probe(store, list_group(store, group), self._limits.rules)
        except QuarkError as error:
            return [f"{group.prefix}: {error}"]
        if not found.samples:
            return [f"{group.prefix}: {found.message or 'no records'}"]
        records = found.samples[:PREVIEW_RECORDS]
        return [f"{group.prefix}: {len(records)} records", *(_record_text(one) for one in records)]

    def _train_groups(
        self, target: DataTarget, wanted: Any
    ) -> tuple[list["_Found"], list["_Found"]]:
        if not _is_folder(target):
            return [self._literal(target, "train", "this prefix")], []
        discovery = self.discover(target)
        if not discovery.choices:
            raise _no_groups(target, discovery)
        self.told += [note for note in discovery.notes if note not in self.told]
        chosen, why = choose_groups(discovery.choices, wanted, self._ask)
        beside = validation_siblings(chosen, [*discovery.groups, *discovery.candidates])
        return (
            [self._group(target, group, "train", why) for group in chosen],
            [
                self._group(target, group, "validation", "beside the training data")
                for group in beside
            ],
        )

    def _val_groups(self, target: DataTarget) -> list["_Found"]:
        """Return the groups of an explicit validation path: its hold-outs, else whatever it has."""
        if not _is_folder(target):
            return [self._literal(target, "validation", "this prefix")]
        discovery = self.discover(target)
        known = [*discovery.groups, *discovery.candidates]  # few shards are enough to validate on
        usable = [group for group in known if group.decodes is not False]
        groups = [group for group in usable if group.split == "val"] or usable
        if not groups:
            raise _no_groups(target, discovery)
        return [self._group(target, group, "validation", "as said") for group in groups]

    def _group(self, target: DataTarget, group: ShardGroup, role: str, why: str) -> "_Found":
        store = self.store(target.spec)
        source = DataSource(
            store=target.spec, prefix=group.prefix, stem=group.stem, format=group.format
        )
        return self._described(store, source, list_group(store, group), role, why)

    def _literal(self, target: DataTarget, role: str, why: str) -> "_Found":
        store = self.store(target.spec)
        infos = group_objects(store, target.prefix)
        if not infos:
            where = f"{target.spec.uri}/{target.prefix}"
            raise DataNotFoundError(
                f"{where}: no data objects start with this prefix",
                hint=f'`quark "what datasets are under {where}"` shows what is there.',
                prefix=target.prefix,
            )
        source = DataSource(store=target.spec, prefix=target.prefix)
        return self._described(store, source, infos, role, why)

    def _described(
        self, store: ObjectStore, source: DataSource, infos: list[ObjectInfo], role: str, why: str
    ) -> "_Found":
        with self._working(f"reading a few records of {source.prefix}"):
            found = probe(store, infos, self._limits.rules)
            folder = source.prefix[: source.prefix.rfind("/") + 1]
            options = self._limits.rules.options
            look = look_at_order(store, infos, folder, options) if role == "train" else None
        if found.decodes is False:
            raise _undecodable(source, found.message, found.error)
        sizes = sorted(info.size_bytes for info in infos)
        known = _known_samples(store, source)
        guess = _guessed_samples(infos, found.samples)
        planned = PlannedData(
            role=role,
            store=source.store.uri,
            prefix=source.prefix,
            num_shards=len(infos),
            total_bytes=sum(sizes),
            median_bytes=float(sizes[len(sizes) // 2]) if sizes else 0.0,
            format=source.format or _format_name(infos),
            num_samples=known if known is not None else guess,
            samples_known=known is not None,
            records_decoded=found.num_records,
            why=why,
        )
        return _Found(source=source, planned=planned, samples=found.samples, look=look)


def _only_validation(found: Sequence["_Found"], note: str) -> FoundData:
    return FoundData(
        train=(),
        val=tuple(one.source for one in found),
        planned=tuple(one.planned for one in found),
        samples=found[0].samples,
        notes=(note,) if note else (),
    )


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    source: DataSource
    planned: PlannedData
    samples: tuple[Sample, ...]
    look: OrderLook | None = None


def _is_folder(target: DataTarget) -> bool:
    return not target.is_given and (not target.prefix or target.prefix.endswith("/"))


def _format_name(infos: Sequence[ObjectInfo]) -> str | None:
    from tools_utilities.shard_format import format_of

    found = format_of(infos[0].key) if infos else None
    return found.name if found else None


def _known_samples(store: ObjectStore, source: DataSource) -> int | None:
    """Return the samples that a manifest counts, where it speaks of exactly this folder."""
    if not source.prefix.endswith("/"):
        return None
    try:
        manifest = load_manifest(store, source.prefix)
    except DataError:  # a broken manifest fails the run's own check; it only lacks a count here
        return None
    return manifest.num_samples if manifest is not None else None


def _guessed_samples(infos: Sequence[ObjectInfo], samples: Sequence[Sample]) -> int | None:
    """Return about how many records uncompressed JSON lines of these sizes hold."""
    if not samples or not infos or not infos[0].key.endswith(".jsonl"):
        return None
    if any(split_suffix(info.key)[1] for info in infos):
        return None
    lengths = [len(json.dumps(sample, ensure_ascii=False, default=str)) + 1 for sample in samples]
    mean = sum(lengths) / len(lengths)
    return round(sum(info.size_bytes for info in infos) / mean)


def _record_text(sample: Sample) -> str:
    text = json.dumps(sample, ensure_ascii=False, default=str)
    more = len(text) - PREVIEW_CHARACTERS
    return text if more <= 0 else f"{text[:PREVIEW_CHARACTERS]} (and {more:,} more characters)"


def _undecodable(source: DataSource, message: str, error: QuarkError | None) -> QuarkError:
    where = f"{source.store.uri}/{source.prefix}"
    if error is not None and not isinstance(error, DataError):
        return error
    detail = error.detail if error is not None else {}
    return DataError(
        f"{where}: cannot be decoded: {message}",
        hint="Repair or remove that shard; nothing was started.",
        **detail,
    )


def _no_groups(target: DataTarget, discovery: Discovery) -> NoGroupsError:
    where = f"{target.spec.uri}/{target.prefix}"
    broken = [group for group in discovery.groups if group.decodes is False]
    if broken:
        error = NoGroupsError(
            f"{where}: no shard group can be decoded; {broken[0].prefix}: {broken[0].reasons[0]}",
            hint="Repair or remove that shard; nothing was started.",
        )
    elif discovery.holdouts:
        error = NoGroupsError(
            f"{where}: only hold-out groups (val, test); they are never trained on unasked",
            hint="To train on one, name it: --override train_prefix="
            f"{discovery.holdouts[0].prefix}",
        )
    else:
        error = NoGroupsError(
            f"{where}: no shard group qualifies",
            hint="See why above; --override min_objects=1 takes smaller ones, depth=5 looks deeper.",
        )
    error.discovery = discovery
    return error

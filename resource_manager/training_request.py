"""What a train command asks for, from a sentence or from Python, and where its data lies."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from resource_manager.data_finding import DataFinder, DataTarget
from resource_manager.dataset_paths import PathContext, resolve_dataset_path
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.settings import Settings

FIRST_KEYS = 5
REQUEST_SLOTS = frozenset(
    {"model", "data", "weights", "groups", "val", "init_from", "plan_only", "set", "then"}
)
"""Slots that are no settings."""


class TrainingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A train command, its settings apart."""

    task: str = "train"
    model: str = "quark"
    data: tuple[str, ...] = ()
    """Paths and URIs as typed."""
    weights: tuple[float, ...] | None = None
    groups: Any = None
    """The language's `groups` slot, or the text of `--groups`."""
    val: str | bool | None = None
    """A path, false for none, or None for the validation groups beside the data."""
    init_from: str | None = None
    plan_only: bool = False
    canonical: str | None = None
    notes: tuple[str, ...] = ()


def request_from(slots: Mapping[str, Any], **rest: Any) -> TrainingRequest:
    """Return the request that a reading's slots make."""
    if slots.get("then"):
        raise UsageError(
            "`then` belongs to a sentence: one call carries out one command",
            hint="KnowledgeHub().handle_command carries out a sentence with `then`.",
        )
    weights = slots.get("weights")
    return TrainingRequest(
        model=slots.get("model") or "quark",
        data=tuple(slots.get("data") or ()),
        weights=tuple(float(weight) for weight in weights) if weights else None,
        groups=slots.get("groups"),
        val=slots.get("val"),
        init_from=slots.get("init_from"),
        plan_only=bool(slots.get("plan_only")),
        **rest,
    )


def data_targets(
    request: TrainingRequest, settings: Settings, finder: DataFinder
) -> list[DataTarget]:
    """Return where the training data lies; `train_prefix` wins over the paths.

    Raises:
        InputNeededError: there is neither.
        UsageError: a path that means nothing here (see `resolve_dataset_path`).
    """
    prefix = settings.value("train_prefix")
    if prefix is not None:
        return [given_target(prefix, settings)]
    if not request.data:
        raise InputNeededError(
            "train needs data",
            hint='Say where it is: quark "train quark with data/datasets/NAME".',
        )
    return [path_target(text, settings, finder) for text in request.data]


def val_target(
    request: TrainingRequest, settings: Settings, finder: DataFinder
) -> DataTarget | None:
    """Return where the validation data was said to lie; None when nothing was said."""
    if request.val is False:
        return None
    prefix = settings.value("val_prefix")
    if prefix is not None:
        return given_target(prefix, settings)
    return path_target(request.val, settings, finder) if isinstance(request.val, str) else None


def given_target(prefix: str, settings: Settings) -> DataTarget:
    """Return a prefix of the configured store (or of the one it names) as it was given."""
    scheme, separator, rest = prefix.partition("://")
    if not separator:
        return DataTarget(spec=settings.store_spec(), prefix=prefix.lstrip("/"), is_given=True)
    bucket, _, below = rest.partition("/")
    return DataTarget(spec=settings.store_spec(f"{scheme}://{bucket}"), prefix=below, is_given=True)


def path_target(
    text: str, settings: Settings, finder: DataFinder, *, allow_root: bool = False
) -> DataTarget:
    """Return where a typed path, URI or alias points."""

    def first_keys(store_uri: str, prefix: str, start_after: str) -> list[str]:
        store = finder.store(settings.store_spec(store_uri))
        found: Iterator[Any] = store.list(prefix, start_after=start_after)
        return [info.key for info in islice(found, FIRST_KEYS)]

    context = PathContext(
        root=settings.root,
        cwd=settings.start_dir,
        home=settings.environment.home,
        store_uri=settings.store_uri,
        first_keys=first_keys,
        allow_root=allow_root,
    )
    written = settings.aliases.get(text, text)
    found = resolve_dataset_path(written, context)
    notes = [*([f"{text} stands for {written}"] if written != text else []), *found.notes]
    return DataTarget(
        spec=settings.store_spec(found.store_uri), prefix=found.prefix, note="; ".join(notes)
    )

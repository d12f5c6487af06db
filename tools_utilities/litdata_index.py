"""What LitData's `index.json` says of the chunks beside it: serializers, structure, compression.

A chunk does not say how its items are serialised; its folder's index does. `with_litdata_index` adds
that to the options that chunks are opened with. The structure is litdata's text form of a pytree,
parsed as the JSON that it is.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tools_utilities.errors import ObjectNotFoundError
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import ObjectInfo, ObjectStore, read_object
from tools_utilities.prepared_types import prepared
from tools_utilities.shard_format import ReadOptions, format_of

INDEX_NAME = "index.json"
TOKENS_LOADER = "TokensLoader"
_PYTREE_LOADER = "PyTreeLoader"
_MAX_DEPTH = 64
_PROBLEM = "!"
"""What is kept of a folder whose index says nothing begins so."""
_LEAF = '{"type": null, "context": null, "children_spec": []}'

Unflatten = Callable[[Iterator[Any]], Any]


@prepared
class LitDataConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an index's `config` that reading needs."""

    data_format: tuple[str, ...]
    """One serializer a leaf."""
    data_spec: str | None = None
    """How leaves make up an item."""
    compression: str | None = None
    compression_level: str | None = None
    """Where zstd is applied: `chunk` (or None), `batch` or `sample`."""
    item_loader: str | None = None
    encryption: Any = None


@prepared
class _Index(msgspec.Struct, frozen=True):
    """An index, as far as it shows that it is LitData's."""

    chunks: list[dict[str, Any]]
    config: LitDataConfig


def with_litdata_index(
    store: ObjectStore, infos: Sequence[ObjectInfo], options: ReadOptions
) -> ReadOptions:
    """Return options that hold what the indexes beside LitData chunks say.

    One small object is read for each folder that holds chunks and is not known yet; for other
    formats nothing is. An index that cannot be read is an error only where a chunk needs it.
    """
    known = dict(options.litdata_indexes)
    folders = {
        info.key[: info.key.rfind("/") + 1]
        for info in infos
        if getattr(format_of(info.key), "name", "") == "litdata"
    }
    if folders <= known.keys():
        return options
    for folder in sorted(folders - known.keys()):
        known[folder] = _read_index(store, folder + INDEX_NAME)
    return msgspec.structs.replace(options, litdata_indexes=tuple(known.items()))


def config_for(key: str, options: ReadOptions) -> LitDataConfig | None:
    """Return the configuration of the chunk `key`, or None when no index was found beside it."""
    text = dict(options.litdata_indexes).get(key[: key.rfind("/") + 1], "")
    return decode_json(text, type=LitDataConfig) if text.startswith("{") else None


def index_problem(key: str, options: ReadOptions) -> str:
    """Return why there is no configuration of the chunk `key`, in words."""
    text = dict(options.litdata_indexes).get(key[: key.rfind("/") + 1], "")
    return text.removeprefix(_PROBLEM) or f"there is no {INDEX_NAME} beside it"


def _read_index(store: ObjectStore, key: str) -> str:
    try:
        data, _ = read_object(store, key)
    except ObjectNotFoundError:
        return _PROBLEM
    try:
        found = decode_json(data)
        if not isinstance(found, dict) or "config" not in found:
            return f"{_PROBLEM}{key} is no LitData index"
        index = msgspec.convert(found, _Index)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return f"{_PROBLEM}{key} is no LitData index: {error}"
    return msgspec.json.encode(index.config).decode()


def index_of(chunks: Sequence[tuple[str, int, int]], config: LitDataConfig) -> bytes:
    """Return an `index.json` for chunks: (file name, bytes, samples) each, in order."""
    listed = [
        {"chunk_bytes": num_bytes, "chunk_size": num_samples, "dim": None, "filename": name}
        for name, num_bytes, num_samples in chunks
    ]
    settings = {
        "chunk_bytes": max((num_bytes for _, num_bytes, _ in chunks), default=0),
        "chunk_size": None,
        "compression": None,
        "data_format": list(config.data_format),
        "data_spec": config.data_spec,
        "encryption": None,
        "item_loader": _PYTREE_LOADER,
    }
    return json.dumps({"chunks": listed, "config": settings}, sort_keys=True).encode()


def dict_spec(names: Sequence[str]) -> str:
    """Return the structure of a dict of leaves, as torch's and litdata's pytree print it."""
    context = json.dumps(json.dumps(list(names)))
    leaves = ", ".join([_LEAF] * len(names))
    return f'[1, {{"type": "builtins.dict", "context": {context}, "children_spec": [{leaves}]}}]'


class Structure:
    """How the leaves of an item make up a sample."""

    def __init__(self, spec: str, num_leaves: int) -> None:
        """Parse a structure.

        Raises:
            ValueError: it is not one, holds a type that is not plain, or has other leaves.
        """
        version, root = json.loads(spec)
        if version != 1:
            raise ValueError(f"a structure of version {version!r}")
        self._unflatten, found = _node(root, 0)
        if found != num_leaves:
            raise ValueError(f"a structure of {found} leaves for {num_leaves} serializers")
        self.fields: tuple[str, ...] | None = None
        """The names of the top level, where it is a dict with text as keys."""
        self.leaf_field: tuple[int, ...] = (0,) * num_leaves
        """For each leaf, which of `fields` it is part of."""
        if root["type"] in _DICTS:
            names = _keys(root["context"])
            if all(isinstance(name, str) for name in names):
                counts = [_node(child, 1)[1] for child in root["children_spec"]]
                self.fields = tuple(names)
                self.leaf_field = tuple(i for i, count in enumerate(counts) for _ in range(count))

    def item(self, leaves: Sequence[Any]) -> Any:
        """Return an item made of its leaves."""
        return self._unflatten(iter(leaves))


_DICTS = frozenset({"builtins.dict", "collections.OrderedDict"})


def _keys(context: Any) -> list[Any]:
    names = json.loads(context)
    if not isinstance(names, list):
        raise TypeError(f"not the keys of a dict: {context[:80]!r}")
    return names


def _node(node: Any, depth: int) -> tuple[Unflatten, int]:
    """Return what builds a node from leaves, and how many it takes."""
    if depth > _MAX_DEPTH:
        raise ValueError("a structure nested too deep")
    kind, children = node["type"], node["children_spec"]
    if kind is None and not children:
        return next, 1
    parts = [_node(child, depth + 1) for child in children]
    build, count = [part for part, _ in parts], sum(number for _, number in parts)
    if kind in _DICTS:
        names = _keys(node["context"])
        if len(names) != len(build):
            raise ValueError(f"{len(names)} keys for {len(build)} values")
        return lambda leaves: {
            name: make(leaves) for name, make in zip(names, build, strict=True)
        }, count
    if kind == "builtins.list":
        return lambda leaves: [make(leaves) for make in build], count
    if kind == "builtins.tuple":
        return lambda leaves: tuple(make(leaves) for make in build), count
    raise ValueError(f"a structure of type {kind!r} is not read")

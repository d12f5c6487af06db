"""How wide the numbers of token files are, where the index of their dataset says it.

A `.bin` file holds numbers and nothing else; ids of four bytes read as two would be other ids, and
mostly valid ones. So whoever wrote the dataset says it in its index, and `with_token_widths` adds that
to the options that files are opened with. What a person says must agree with it.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from tools_utilities.errors import AccessError, DataNotFoundError, ObjectNotFoundError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.manifest import FLAT, MASTER, MAX_BYTES, SHARD
from tools_utilities.object_store import ObjectInfo, ObjectStore, read_object
from tools_utilities.patience import patiently
from tools_utilities.shard_format import ReadOptions, ShardFormat, format_of, shard_formats

TOKEN_DTYPE = "token_dtype"  # noqa: S105 - a field's name, not a secret
_LOGGER = logging.getLogger(__name__)
WIDTHS = ("uint16", "uint32")
NARROW = WIDTHS[0]
FORMAT = "tokens"


def with_token_widths(
    store: ObjectStore, infos: Sequence[ObjectInfo], options: ReadOptions
) -> ReadOptions:
    """Return options that hold what indexes say of the token files among `infos`.

    One or two small objects are read for each folder that is not known yet, one for all shards of a
    dataset; of other formats nothing is.
    """
    known = dict(options.token_widths)
    for info in infos:
        if not _places(info.key) & known.keys() and _is_tokens(info.key):
            folder, width = _read_width(store, info.key)
            known[folder] = width
    if len(known) == len(options.token_widths):
        return options
    return msgspec.structs.replace(options, token_widths=tuple(known.items()))


def width_of(key: str, options: ReadOptions) -> str:
    """Return the number type of a token file: as its index says, else as people do, else as is likely.

    Raises:
        UsageError: the two differ, or it is none that is read.
    """
    recorded, said = recorded_width(key, options), options.token_dtype
    if recorded and said and recorded != said:
        raise UsageError(
            f"{key}: token_dtype={said}, but its dataset's index says {recorded}",
            hint="Leave token_dtype out: the index says how the files were written.",
        )
    return checked_width(recorded or said or options.likely_token_dtype)


def recorded_width(key: str, options: ReadOptions) -> str:
    """Return what an index says of a token file, empty where none does."""
    known = dict(options.token_widths)
    return next((known[place] for place in _places(key) if known.get(place)), "")


def is_said(key: str, options: ReadOptions) -> bool:
    """Say whether somebody said how wide a token file's numbers are: its index, or a person."""
    return bool(options.token_dtype or recorded_width(key, options))


def checked_width(name: str) -> str:
    """Return the name of a number type of token files.

    Raises:
        UsageError: it is none.
    """
    if name not in WIDTHS:
        raise UsageError(f"token_dtype={name!r}", hint=f"Use {' or '.join(WIDTHS)}.")
    return name


def writing_format(name: str, token_dtype: str = NARROW) -> ShardFormat:
    """Return the format of a name; token files are written as wide as `token_dtype`."""
    found: Any = shard_formats()[name]
    chosen: ShardFormat = found.as_wide(token_dtype) if name == FORMAT else found
    return chosen


def _is_tokens(key: str) -> bool:
    return getattr(format_of(key), "name", "") == FORMAT


def _places(key: str) -> set[str]:
    """Return the folders whose index may speak of a file: its own, and that of the shards around it."""
    own, around = _folders(key)
    return {own} if around is None else {own, around}


def _folders(key: str) -> tuple[str, str | None]:
    own = key[: key.rfind("/") + 1]
    before, _, name = own.rstrip("/").rpartition("/")
    if not name.startswith("shard_"):
        return own, None
    return own, f"{before}/" if before else ""


def _read_width(store: ObjectStore, key: str) -> tuple[str, str]:
    """Return the folder whose index says it, and what it says; of none, the file's own and nothing."""
    own, around = _folders(key)
    # The index of all shards first, since it answers for all. A shard's own for who reads it alone.
    if around is not None:
        width = _said_by(store, around + MASTER)
        if width is not None:
            return around, width
    for name in (FLAT, SHARD):
        width = _said_by(store, own + name)
        if width:
            return own, width
    return own, ""


def _said_by(store: ObjectStore, key: str) -> str | None:
    """Return what an index says, empty where it says nothing of it; None: it is not there."""
    try:
        if patiently(partial(store.head, key)).size_bytes > MAX_BYTES:
            return ""
        found: Any = decode_json(patiently(partial(read_object, store, key))[0])
    except (ObjectNotFoundError, DataNotFoundError):
        return None
    except AccessError as error:
        # Some stores say so of what is not there; and one file may be all that one may read.
        _LOGGER.warning("whether it says how wide token files are is not known: %s", error)
        return None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ""  # whoever reads it as an index tells that it is damaged
    width = found.get(TOKEN_DTYPE) if isinstance(found, dict) else None
    return width if isinstance(width, str) else ""

"""What a key's name says: data or not, which series it belongs to, which split it is of. No I/O.

A *series* is the shards of one group: names that are a stem, then a number (`train-00007-of-00064`,
`part-00000-<uuid>.snappy`, `chunk-0-12`). Names without a number, and numbered names that are mere
bystanders (`bug1554` among two hundred others), belong to the folder itself: stem `LOOSE`.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from tools_utilities.read_compressions import READ_COMPRESSIONS
from tools_utilities.shard_format import COMPRESSIONS, format_of, split_suffix

LOOSE = "*"
"""Stem of the names of a folder that belong to no series."""

HOLDOUTS = ("val", "test")

_SPLIT_WORDS = {
    "train": "train",
    "trn": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "eval": "val",
    "evaluation": "val",
    "holdout": "val",
    "heldout": "val",
    "test": "test",
    "tst": "test",
}
_WHOLE_NAMES = {"training": "train", "testing": "test"}
"""Split words only when nothing else stands beside them: `parquet-testing` is no hold-out."""
_MANIFESTS = frozenset(
    {
        "manifest.json",
        "manifest.jsonl",
        "master_metadata.json",
        "claim.json",
        "metadata.json",
        "dataset_info.json",
        "dataset_infos.json",
        "dataset_dict.json",
        "state.json",
    }
)
_INDEX = re.compile(r"index(?:\.json|\.html?)?(?:\.(?:gz|zst|zstd))?|.*\.(?:idx|index)(?:\.gz)?")
_CHECKSUM_SUFFIXES = (".crc", ".md5", ".sha1", ".sha256", ".sha512")
_CHECKSUMS = frozenset({"md5sums", "sha1sums", "sha256sums", "checksums.txt"})
# `authors.parquet` is data; `AUTHORS` and `authors.txt` are not.
_DOCUMENT = re.compile(
    r"(?:readme|licen[cs]e|notice|copying|changelog|citation|authors)"
    r"(?:\.(?:txt|rst|html?|pdf|cff|bib))?|.*\.md"
)
_SYSTEM_FILES = frozenset({"thumbs.db", "desktop.ini"})
_TEMPORARY_SUFFIXES = (".tmp", ".temp", ".partial", ".inprogress", ".crdownload", ".lock")

# Codecs and task ids that writers put between the number and the suffix.
_CODEC = re.compile(
    r"\.(?:snappy|gz|gzip|zst|zstd|lz4|lz4raw|brotli|bz2|xz|c[0-9]{3})$", re.IGNORECASE
)
_DIGITS = re.compile(r"[0-9]+")
_ONE_NUMBER = re.compile(
    r"(?P<stem>[^0-9]*)(?P<run>[0-9]+)(?P<suffix>\.[A-Za-z]+)?(?:\.(?:gz|zst))?", re.IGNORECASE
)
_OF = re.compile(r"(?P<stem>.*?)(?P<run>[0-9]+)[-_]of[-_](?P<total>[0-9]+)(?:[-_.].*)?")
_SPARK = re.compile(r"(?P<stem>part-(?:[rm]-)?)(?P<run>[0-9]{5,})(?:[-.].*)?")
_TRAILING = re.compile(r"(?P<stem>.*?)(?P<run>(?:(?<![0-9A-Za-z])[0-9]+[-_.])*[0-9]+)")
# A remark after the number: `case-043-INVALID`.
_MIDDLE = re.compile(r"(?P<stem>.*?(?:[-_.]|^))(?P<run>[0-9]{3,})[-_.](?P<tail>[A-Za-z][^/]*)")
_SHARD_FOLDER = re.compile(
    r"(?:shard|part|partition|bucket)s?[-_.]?[0-9]+|0[0-9]*|[0-9]{1,3}", re.IGNORECASE
)
_HIVE_FOLDER = re.compile(r"(?P<stem>[A-Za-z_][A-Za-z0-9_.-]*=).+")
_WORD = re.compile(r"[0-9A-Za-z]+")
_NUMBERED_SHARE = 0.9
"""A folder with at least this share of numbered names consists of series."""
_DENSE = 0.5
"""Of a series at least this share of the numbers between its first and last are there."""


class ShardName(msgspec.Struct, frozen=True, kw_only=True):
    """A name taken apart."""

    stem: str
    """What stands before the number."""
    numbers: tuple[int, ...]
    """The number, or several (`chunk-0-12`, `2024-01-31`)."""
    total: int | None = None
    """N of `-of-N`."""
    padded: bool = False
    """The number is written with leading zeros."""


def junk_reason(relative_key: str) -> str | None:
    """Return why a key, relative to the folder that was asked for, is not data; None when it may be.

    Keys are judged by every part of the path below that folder: `_temporary/0/part-9.parquet` is
    not data. A zero-byte object is data unless its key ends in a slash.
    """
    if relative_key.endswith("/") or not relative_key:
        return "directory marker"
    *folders, name = relative_key.split("/")
    for folder in folders:
        if folder == "_temporary":
            return "temporary"
        if folder.startswith((".", "_")) and folder not in {".", ".."}:
            return "hidden folder"
    return _junk_name(_shape(name))


def _shape(name: str) -> str:
    """Return a name with the numbers before its last suffix made equal: what rules on names see.

    A million shards then have one shape, and every rule is asked once.
    """
    head, dot, suffix = name.rpartition(".")
    return _DIGITS.sub("0", head) + dot + suffix


@lru_cache(maxsize=4096)
def _junk_name(name: str) -> str | None:
    lower = name.lower()
    rules = (
        ("checksum", lower.endswith(_CHECKSUM_SUFFIXES) or lower in _CHECKSUMS),
        ("marker", lower.startswith(("_success", "_started", "_committed"))),
        ("hidden name", lower.startswith((".", "_"))),
        ("claim", lower == "claim.json"),
        ("manifest", lower in _MANIFESTS or lower.endswith(".manifest.json")),
        ("index", _INDEX.fullmatch(lower) is not None),
        ("document", _DOCUMENT.fullmatch(lower) is not None),
        ("temporary", lower.endswith(_TEMPORARY_SUFFIXES)),
        ("system file", lower in _SYSTEM_FILES),
    )
    return next((reason for reason, applies in rules if applies), None)


def is_junk_folder(name: str) -> bool:
    """Tell whether a folder of this name is never looked into."""
    return name.startswith((".", "_"))


def kind_of(key: str) -> str:
    """Return the format's name, or the bare suffix (`.db`, or empty) when no format reads the key."""
    return _kind_of_name(_shape(key.rpartition("/")[2]))


@lru_cache(maxsize=4096)
def _kind_of_name(name: str) -> str:
    found = format_of(name)
    return found.name if found is not None else _suffix(split_suffix(name)[0]).lower()


def _suffix(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    return dot + suffix if stem and dot and not suffix.isdigit() else ""


def parse_name(name: str) -> ShardName | None:
    """Take a file's or folder's name apart; None when it holds no shard number."""
    plain = _ONE_NUMBER.fullmatch(name)
    if plain and _is_plain(plain):  # the long way comes to the same, six times slower
        run = plain["run"]
        padded = len(run) > 1 and run[0] == "0"
        return ShardName(stem=plain["stem"], numbers=(int(run),), padded=padded)
    return _parse_odd_name(name)


_PACKED = {*COMPRESSIONS, *("." + suffix.rpartition(".")[2] for suffix in READ_COMPRESSIONS)}


def _is_plain(found: re.Match[str]) -> bool:
    """Tell whether the number stands before the suffix, not in it (`.mp4`)."""
    stem, suffix = found["stem"], found["suffix"]
    before_suffix = suffix is not None and suffix.lower() not in _PACKED
    return before_suffix or "." not in stem or stem.endswith(".")


def _parse_odd_name(name: str) -> ShardName | None:
    base = split_suffix(name)[0]
    base = base.removesuffix(_suffix(base))
    while (shorter := _CODEC.sub("", base)) != base:
        base = shorter
    for pattern in (_OF, _SPARK, _TRAILING, _MIDDLE):
        found = pattern.fullmatch(base)
        if found:
            break
    else:
        return None
    run = re.split(r"[-_.]", found["run"])
    total = found.groupdict().get("total")
    return ShardName(
        stem=found["stem"],
        numbers=tuple(int(number) for number in run),
        total=int(total) if total else None,
        padded=any(len(number) > 1 and number.startswith("0") for number in run),
    )


def assign_stems(names: Iterable[str]) -> dict[str, str]:
    """Return name → stem of its series, or LOOSE, for the names of one folder and one kind.

    A series declares itself by `-of-N`, by a split word before the number, or by numbers that are
    padded with zeros and close together. Other numbered names are one only where nearly every name
    of the folder is numbered.
    """
    parsed = {name: parse_name(name) for name in names}
    members: dict[str, list[ShardName]] = {}
    for found in parsed.values():
        if found is not None and found.stem != LOOSE:
            members.setdefault(found.stem, []).append(found)
    declared = {stem for stem, found in members.items() if _declares(stem, found)}
    common = {stem for stem, found in members.items() if len(found) > 1}
    share = sum(len(members[stem]) for stem in declared | common)
    series = declared | common if share >= _NUMBERED_SHARE * len(parsed) else declared
    return {
        name: found.stem if found is not None and found.stem in series else LOOSE
        for name, found in parsed.items()
    }


def _declares(stem: str, members: list[ShardName]) -> bool:
    if any(found.total is not None for found in members):
        return True
    words = _WORD.findall(stem)
    if words and words[-1].lower() in _SPLIT_WORDS:
        return True
    # Hashes that happen to be all digits are padded too, but far apart.
    numbers = {found.numbers[0] for found in members}
    dense = len(numbers) > _DENSE * (max(numbers) - min(numbers))
    return len(members) > 1 and dense and any(found.padded for found in members)


def is_shard_folder(name: str) -> bool:
    """Tell whether a folder of this name is one shard (`shard_003`, `0007`), not a dataset (`v2`)."""
    return _SHARD_FOLDER.fullmatch(name) is not None


def hive_stem(name: str) -> str | None:
    """Return `date=` for a partition folder `date=2019-01-01`, else None."""
    found = _HIVE_FOLDER.fullmatch(name)
    return found["stem"] if found else None


def folder_stem(name: str) -> str | None:
    """Return the stem that a shard or partition folder belongs to, or None for any other folder."""
    hive = hive_stem(name)
    if hive is not None:
        return hive
    parsed = parse_name(name) if is_shard_folder(name) else None
    return parsed.stem if parsed is not None else None


def in_series(relative_key: str, stem: str) -> bool:
    """Tell whether a key, relative to its group's folder, belongs to the series `stem`.

    Its own name does (`train-0001.jsonl`), or the shard folder that holds it
    (`shard_001/chunk_0000.jsonl`), or the partition that it lies below (`year=2019/…`).
    """
    first, slash, rest = relative_key.partition("/")
    if not slash:
        parsed = parse_name(first)
        return parsed is not None and parsed.stem == stem
    if folder_stem(first) != stem:
        return False
    return stem.endswith("=") or "/" not in rest


def split_word(text: str) -> str | None:
    """Return train, val or test when a whole word of `text` says so; the last such word counts.

    `www_farodevigo` says nothing; `dev-clean` says val.
    """
    words = [_SPLIT_WORDS.get(word.lower()) for word in _WORD.findall(text)]
    if len(words) == 1 and words[0] is None:
        return _WHOLE_NAMES.get(_WORD.findall(text)[0].lower())
    return next((word for word in reversed(words) if word), None)


def split_of(relative_folder: str, stem: str) -> str | None:
    """Return the split of a group: its stem's, else its folder's, else one of a folder above."""
    *above, nearest = relative_folder.strip("/").split("/")
    # `myteam-dev/alpha/shard-0`: far above the data, only a whole name tells a split.
    whole = [name for name in reversed(above) if len(_WORD.findall(name)) == 1]
    return next(filter(None, map(split_word, (stem, nearest, *whole))), None)


def differ_by_split(held_out: str, trained_on: str) -> bool:
    """Tell whether two names are of one dataset: alike but for a split word, which the first has.

    `c4-validation.` goes with `c4-train.` and `val/` with `shards/`, but not `books-val-` with
    `wiki-train-`.
    """
    if split_word(held_out) is None:
        return False
    rest = _without_splits(held_out)
    if split_word(trained_on) is None:
        return not rest
    return rest == _without_splits(trained_on)


def _without_splits(text: str) -> list[str]:
    words = (word.lower() for word in _WORD.findall(text))
    return [word for word in words if word not in _SPLIT_WORDS]

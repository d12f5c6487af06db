"""The demo's dataset: the standard library's own sources as JSONL shards, the same on every run.

A file of the library goes to validation by the hash of its name, so that no text of a validation
file is in training; pieces that occur more than once are kept once.
"""

import hashlib
import json
import math
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tools_utilities.errors import DataNotFoundError

NUM_TRAIN_SHARDS = 16
NUM_VAL_SHARDS = 8
MIN_BYTES = 8_000_000
MAX_BYTES = 10_000_000
"""Enough of the library: more makes nothing clearer."""
PIECE_BYTES = 4_000
VAL_ONE_IN = 32


class DemoData(msgspec.Struct, frozen=True, kw_only=True):
    """What was made."""

    folder: str
    num_train_samples: int
    num_val_samples: int
    num_bytes: int
    """Of all shard files."""
    val_entropy: float
    """Entropy of the validation text's bytes taken one by one, in nats: what a model that knows
    only how frequent each byte is would score."""


def make_demo_data(
    folder: Path, library: Path | None = None, *, min_bytes: int = MIN_BYTES
) -> DemoData:
    """Write the shards into `folder` (made if missing) and return what they hold.

    Files are replaced one by one, the same bytes each time for one Python installation.

    Raises:
        DataNotFoundError: the library's sources are not on this machine.
    """
    # A Python cut down by its distributor may lack much: installed packages make up for it.
    folders = [library] if library else [Path(sysconfig.get_path(n)) for n in ("stdlib", "purelib")]
    train, val = _split(folders)
    folder.mkdir(parents=True, exist_ok=True)
    num_bytes = _write_shards(folder, "train", train, NUM_TRAIN_SHARDS)
    num_bytes += _write_shards(folder, "val", val, NUM_VAL_SHARDS)
    if num_bytes < min_bytes or len(val) < NUM_VAL_SHARDS:
        raise DataNotFoundError(
            f"{folders[0]}: only {num_bytes:,} bytes of Python sources, the demo needs {min_bytes:,}",
            hint="Install Python with its standard library's sources (.py files).",
        )
    return DemoData(
        folder=str(folder),
        num_train_samples=len(train),
        num_val_samples=len(val),
        num_bytes=num_bytes,
        val_entropy=byte_entropy(record["text"].encode() for record in val),
    )


def byte_entropy(texts: Iterator[bytes]) -> float:
    """Return the entropy, in nats a byte, of the bytes of all `texts`."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(text)
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())


def _split(folders: list[Path]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the training and the validation records, in order of folder and file name."""
    train: list[dict[str, str]] = []
    val: list[dict[str, str]] = []
    seen: set[bytes] = set()
    num_bytes = 0
    for name, path in (found for folder in folders for found in _sources(folder)):
        if num_bytes >= MAX_BYTES:
            break
        wanted = val if _hash(name) % VAL_ONE_IN == 0 else train
        for piece in _pieces(path):
            digest = hashlib.sha256(piece.encode()).digest()
            if digest not in seen:
                seen.add(digest)
                wanted.append({"file": name, "text": piece})
                num_bytes += len(piece.encode())
    return train, val


def _sources(library: Path) -> Iterator[tuple[str, Path]]:
    # In order of a hash of the name: a library cut short by MAX_BYTES is still a fair sample.
    names = (path.relative_to(library).as_posix() for path in library.rglob("*.py"))
    own = [name for name in names if not name.startswith(("site-packages/", "dist-packages/"))]
    return ((name, library / name) for name in sorted(own, key=lambda name: (_hash(name), name)))


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _pieces(path: Path) -> Iterator[str]:
    """Yield a file in pieces of about PIECE_BYTES, cut at ends of lines; nothing if it is not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):  # a few test files are in other encodings on purpose
        return
    piece: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            yield "".join(piece)
            piece, size = [], 0
    if "".join(piece).strip():
        yield "".join(piece)


def _write_shards(folder: Path, stem: str, records: list[dict[str, str]], count: int) -> int:
    """Deal records to `count` shards and return the bytes written; each shard appears whole."""
    num_bytes = 0
    for i in range(count):
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records[i::count]]
        data = "".join(lines).encode()
        path = folder / f"{stem}-{i:05}-of-{count:05}.jsonl"
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
        num_bytes += len(data)
    return num_bytes

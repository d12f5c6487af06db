"""Reads damaged shards and indexes in a process of its own: `python -m tests.reliability.mutate READER SEED COUNT`.

Prints one JSON line: cases, failures, the peak of memory, the slowest case. What kills the process
leaves the number of its case in the file that the fourth argument names; `COUNT` of 1 with the same
seed and `FIRST=N` in the fifth runs one case again.
"""

import json
import mmap
import random
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.contracts.test_shard_formats import FORMATS, key_of, samples_of
from tests.memory_peak import peak_bytes
from tests.shard_reading import CASES, in_memory, read_all, written
from tools_utilities.compression import compressed_writer
from tools_utilities.errors import QuarkError
from tools_utilities.litdata_index import INDEX_NAME, with_litdata_index
from tools_utilities.manifest import Chunk, Manifest, Shard, encode_manifest, load_manifest
from tools_utilities.object_store import StoreSpec
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.shard_format import ReadOptions
from tools_utilities.yaml_text import load_yaml

MOST_SECONDS = 5.0
MOST_BYTES = 512 << 20
_ADDRESS_BYTES = 6 << 30
_SEALED_SHARE = 0.7
Read = Callable[[bytes], None]
_WILD = (0, 1, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1)
_VALUES: tuple[Any, ...] = (
    *(None, -1, 0, 2**31, 2**63, 2**64, 1e308, "", "x" * 3000, "../../etc/passwd", "/abs", "a\0b"),
    *(True, [], {}, [[[[]]]], {"a": {"b": {}}}, "\ud800", "9" * 400),
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return a copy with one to three damages, most of them near its beginning or its end."""
    copy = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _damage(copy, rng)
    return bytes(copy)


def _damage(copy: bytearray, rng: random.Random) -> None:
    if not copy:
        return
    place = rng.randint(0, min(len(copy) - 1, rng.choice((8, 64, 512, len(copy) - 1))))
    place = len(copy) - 1 - place if rng.random() < 0.4 else place
    kind = rng.randrange(8)
    if kind == 0:
        copy[place] ^= 1 << rng.randrange(8)
    elif kind == 1:
        copy[place] = rng.choice((0, 1, 127, 128, 255))
    elif kind == 2:
        width, form = rng.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
        copy[place : place + width] = struct.pack(form, rng.choice(_WILD) % 256**width)
    elif kind == 3:
        del copy[place : place + rng.randint(1, 16)]
    elif kind == 4:
        copy[place:place] = rng.randbytes(rng.randint(1, 16))
    elif kind == 5:
        del copy[place:]
    elif kind == 6:
        other = rng.randrange(len(copy))
        copy[place : place + 32] = copy[other : other + 32]
    else:
        copy += rng.randbytes(rng.randint(1, 64))


def sealed(data: bytes) -> bytes:
    """Return a tar archive whose headers' checksums are right again: what they guard is believed."""
    copy = bytearray(data)
    for at in range(0, len(copy) - 511, 512):
        if copy[at + 257 : at + 262] == b"ustar":
            copy[at + 148 : at + 156] = b" " * 8
            copy[at + 148 : at + 156] = b"%06o\0 " % sum(copy[at : at + 512])
    return bytes(copy)


def reshaped(data: bytes, rng: random.Random) -> bytes:
    """Return a JSON document with a value replaced, dropped or repeated; sometimes with its bytes damaged."""
    if rng.random() < 0.3:
        return damaged(data, rng)
    document = json.loads(data)
    places = list(_places(document))
    if places:
        holder, name = rng.choice(places)
        kind = rng.randrange(3)
        if kind == 0:
            holder[name] = rng.choice(_VALUES)
        elif kind == 1:
            del holder[name]
        elif isinstance(holder, list):
            holder.append(holder[name])
        else:
            holder[f"{name}_"] = holder[name]
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    names: Iterable[Any] = (
        node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    )
    for name in list(names):
        yield node, name
        yield from _places(node[name])


# What reads: each takes damaged bytes and raises nothing but errors of ours.


def _shards(name: str) -> Iterator[tuple[str, bytes, ReadOptions]]:
    options = ReadOptions(seq_len=5)
    for count in (3, 40):
        whole = written(name, samples_of(name, count))
        yield key_of(name), whole, options
        if name not in {"litdata", "mds"}:
            for suffix, compression in ((".gz", "gzip"), (".zst", "zstd")):
                yield key_of(name, suffix), _compressed(whole, compression), options
    folder = CASES / "peers"
    for path in sorted(folder.rglob("*.mds*" if name == "mds" else "chunk-*.bin*")):
        if name == "mds" or (name == "litdata" and (path.parent / INDEX_NAME).exists()):
            store = _store({f"d/{INDEX_NAME}": (path.parent / INDEX_NAME).read_bytes()})
            info = store.put(f"d/{path.name}", path.read_bytes())
            yield info.key, path.read_bytes(), with_litdata_index(store, [info], options)
    if name == "parquet":
        for path in sorted((CASES / "parquet").rglob("*.parquet"))[:8]:
            if path.stat().st_size < 60_000:
                yield f"d/{path.name}", path.read_bytes(), options


def _compressed(data: bytes, compression: str) -> bytes:
    import io

    file = io.BytesIO()
    writer = compressed_writer(file, compression)
    writer.write(data)
    writer.close()
    return file.getvalue()


def _store(objects: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore(StoreSpec(uri="memory://mutations"))
    for key, data in objects.items():
        store.put(key, data)
    return store


def readers_of(name: str) -> list[tuple[bytes, Read, bool]]:
    """Return (whole bytes, how they are read, is JSON) of each shard or document of a reader."""
    if name in FORMATS:
        return [
            (data, _reads_shard(name, key, options), False) for key, data, options in _shards(name)
        ]
    return [(data, read, True) for data, read in _documents(name)]


def _reads_shard(name: str, key: str, options: ReadOptions) -> Read:
    def read(data: bytes) -> None:
        read_all(name, in_memory(key, data), target_bytes=300, options=options)

    return read


def _documents(name: str) -> Iterator[tuple[bytes, Read]]:
    chunk = {
        "chunk_id": 0,
        "file": "chunk_0000.jsonl",
        "num_tasks": 3,
        "size_mb": 0.1,
        "bytes": 77,
        "crc32c": "AAAAAA==",
    }
    shard = {
        "shard_id": 0,
        "total_shards": 1,
        "status": "available",
        "total_tasks": 3,
        "num_chunks": 1,
        "chunks": [chunk],
    }
    listed = {"shard_id": 0, "directory": "shard_000", "status": "available"}
    master = {"total_tasks": 3, "num_shards": 1, "chunk_size_mb": 100, "shards": [listed]}
    parts = {
        "d/master_metadata.json": json.dumps(master).encode(),
        "d/shard_000/metadata.json": json.dumps(shard).encode(),
    }
    flat = encode_manifest(
        Manifest(
            prefix="d/",
            shards=(
                Shard(
                    shard_id=0,
                    chunks=(Chunk(key="a.jsonl", num_samples=3, num_bytes=9, crc32c="AAAAAA=="),),
                ),
            ),
        )
    )
    if name == "manifest":
        for key, part in parts.items():
            yield part, _reads_manifest(parts, key)
        yield flat, _reads_manifest({}, "d/manifest.json")
    elif name == "litdata-index":
        path = CASES / "peers" / "litdata"
        chunks = sorted(path.glob("chunk-*"))
        yield (path / INDEX_NAME).read_bytes(), _reads_index(chunks[0])
    elif name == "yaml":
        yield json.dumps({"a": [1, {"b": "c"}], "d": "e: f"}).encode(), _reads_yaml


def _reads_manifest(parts: dict[str, bytes], key: str) -> Read:
    def read(data: bytes) -> None:
        store = _store({**parts, key: data})
        found = load_manifest(store, "d/")
        for shard in found.shards if found else ():
            for each in shard.chunks:
                whole = f"d/{each.key}"
                assert not {"", ".", ".."} & set(whole.split("/")), whole

    return read


def _reads_index(chunk: Path) -> Read:
    content = chunk.read_bytes()

    def read(data: bytes) -> None:
        store = _store({f"d/{INDEX_NAME}": data})
        info = store.put(f"d/{chunk.name}", content)
        options = with_litdata_index(store, [info], ReadOptions(seq_len=5))
        read_all("litdata", in_memory(info.key, content), target_bytes=300, options=options)

    return read


def _reads_yaml(data: bytes) -> None:
    load_yaml(data.decode("utf-8", "replace"), source="x.yaml")


READERS = (*FORMATS, "manifest", "litdata-index", "yaml")


def main() -> None:
    """Read damaged bytes and print what came of it."""
    name, seed, count, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    first = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    place.write_bytes(bytes(8))
    with place.open("r+b") as file:
        current = mmap.mmap(file.fileno(), 8)
    whole = readers_of(name)
    failures: list[str] = []
    refused, slowest = 0, 0.0
    for number in range(first, first + count):
        current[:] = number.to_bytes(8, "little")
        rng = random.Random(f"{name} {seed} {number}")
        data, read, is_json = whole[number % len(whole)]
        broken = reshaped(data, rng) if is_json else damaged(data, rng)
        if name == "webdataset" and rng.random() < _SEALED_SHARE:
            broken = sealed(broken)
        began = time.process_time()
        try:
            read(broken)
        except QuarkError as error:
            refused += 1
            if not error.message_text:
                failures.append(f"{name} {number}: an error without words")
        except BaseException as error:  # noqa: BLE001 - what is counted
            failures.append(f"{name} {number}: {type(error).__name__}: {str(error)[:200]}")
        took = time.process_time() - began
        slowest = max(slowest, took)
        if took > MOST_SECONDS:
            failures.append(f"{name} {number}: {took:.1f} s")
    # Not ru_maxrss: a process begins with that of whoever started it.
    peak = peak_bytes()
    if peak > MOST_BYTES:
        failures.append(f"{name}: {peak >> 20} MB of memory")
    result = {
        "cases": count,
        "refused": refused,
        "failures": failures,
        "peak_mb": peak >> 20,
        "slowest_s": round(slowest, 2),
    }
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()

"""Names, archives, bombs and documents made to hurt: an error of ours or samples, in bounds, inside the root."""

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes import StubS3
from tests.reliability.bombs import BOMBS
from tests.reliability.matrix import Cells, matrix
from tests.shard_reading import in_memory, read_all
from tools_utilities.errors import QuarkError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.terminal_text import shown
from tools_utilities.yaml_text import load_yaml

ROOT = Path(__file__).resolve().parents[2]
CASE_SECONDS = 5.0
MOST_BYTES = 512 << 20
KEYS = {
    "up": "../outside",
    "up inside": "d/../../outside",
    "far up": "../" * 40 + "tmp/outside",
    "absolute": "/tmp/quark-outside",  # noqa: S108 - never written
    "double slash": "d//x.jsonl",
    "dot": "d/./x.jsonl",
    "only dots": "..",
    "folder marker": "d/",
    "empty": "",
    "NUL": "d/a\0b.jsonl",
    "1,024 bytes": "d/" + "k" * 1022,
    "1,024 bytes of two": "é" * 512,
    "300 bytes a part": "d/" + "p" * 300 + ".jsonl",
    "ANSI": "d/\x1b[2J\x1b]0;owned\x07.jsonl",
    "bidi": "d/\u202egpj.lnosj\u2066.jsonl",
    "newline": "d/a\nb: c.jsonl",
    "composed": "d/caf\u00e9.jsonl",
    "decomposed": "d/cafe\u0301.jsonl",
    "full width": "d/\uff0e\uff0e/x.jsonl",
    "coded dots": "d/%2e%2e/%2e%2e/x.jsonl",
    "backslash": "d\\..\\x.jsonl",
    "tilde": "~/x.jsonl",
    "variable": "$HOME/x.jsonl",
    "option": "--delete",
    "own temporary": ".quark-tmp-x",
    "own locks": ".quark-locks/00",
    "lone surrogate": "d/\udcff.jsonl",
    "private use": "d/\ue000\U0010ffff.jsonl",
    **{
        f"byte {value:02x}": f"d/a{chr(value)}b.jsonl"
        for value in (*range(1, 0x30), 0x5C, 0x7C, 0x7F, 0x85)
    },
}
RECORD = b'{"id": 1}\n'


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def use(store: ObjectStore, key: str) -> None:
    """Do everything that is done with a key; whatever is refused is refused by an error of ours."""
    for do in (
        lambda: store.put(key, RECORD),
        lambda: store.head(key),
        lambda: b"".join(store.get(key)),
        lambda: list(store.list(key)),
        lambda: list(store.list_folder(key + "/")),
        lambda: store.put_if_absent(key, RECORD),
        lambda: store.delete(key),
    ):
        try:
            do()
        except QuarkError as error:
            check_words(error)


def check_words(error: QuarkError) -> None:
    """A message is for a terminal: it goes through `shown` there, and holds no NUL to stop it."""
    text = shown(str(error) + error.hint)
    assert all(char.isprintable() or char in "\n " for char in text), repr(text)


def check_local(name: str, folder: Path) -> None:
    """A local store never leaves its root."""
    root = folder / "a/b/root"
    root.mkdir(parents=True)
    (folder / "outside").write_bytes(b"not ours")
    before = tree(folder)
    use(open_store(StoreSpec(uri=f"file://{root}")), KEYS[name])
    changed = {path for path in tree(folder) ^ before if not path.startswith("a/b/root")}
    assert not changed, changed
    assert (folder / "outside").read_bytes() == b"not ours"


def check_cached(stub: StubS3, name: str, folder: Path) -> None:
    """What is streamed through a cache lands in it under names of its own."""
    folder.mkdir()
    key = KEYS[name]
    manager = StreamingManager.for_store(
        StoreSpec(uri="s3://bucket", endpoint_url=stub.url),
        cache_dir=str(folder / "in/cache"),
        cache_bytes=1 << 20,
    )
    try:
        with manager.open(key) as file:
            assert file.read() == RECORD
    except QuarkError as error:
        check_words(error)
    assert all(path == "in" or path.startswith("in/cache") for path in tree(folder))
    assert not any("outside" in path or "jsonl" in path for path in tree(folder))


def check_manifest(name: str) -> None:
    """A manifest names nothing outside its folder."""
    store = open_store(StoreSpec(uri=f"memory://hostile-{name}"))
    chunk = {"key": KEYS[name], "num_samples": 1}
    document = {"prefix": "x/", "shards": [{"shard_id": 0, "chunks": [chunk]}]}
    store.put("x/manifest.json", json.dumps(document).encode("utf-8", "surrogatepass"))
    try:
        found = load_manifest(store, "x/")
    except QuarkError as error:
        check_words(error)
        return
    for whole in found.chunks if found else ():
        parts = whole.split("/")
        assert parts[0] == "x"
        assert not {"", ".", ".."} & set(parts), whole
        assert "\0" not in whole


# Archives.


def _tar(*members: tuple[str, bytes, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "/etc/passwd", len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def archives() -> Iterator[tuple[str, bytes]]:
    plain = tarfile.REGTYPE
    for name in (
        "../up.txt",
        "/abs.txt",
        "a/../../up.txt",
        "a\x1b[2J.txt",
        "\u202ea.txt",
        "a" * 900 + ".txt",
    ):
        yield f"name {name[:20]!r}", _tar((name, plain, b"x"))
    for kind in (
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        b"Z",
    ):
        yield f"kind {kind!r}", _tar(("a.txt", kind, b""), ("a.cls", plain, b"1"))
        yield f"kind {kind!r} with data", _tar(("a.txt", kind, b"x" * 600), ("a.cls", plain, b"1"))
    yield "twice", _tar(("a.txt", plain, b"1"), ("a.txt", plain, b"2"))
    yield "no names", _tar(("", plain, b"1"), (".", plain, b"2"), ("/", plain, b"3"))
    whole = bytearray(_tar(("a.txt", plain, b"x")))
    whole[124:136] = b"77777777777\0"
    yield "8 GiB that are not there", bytes(whole)
    whole[124:136] = b"\x80" + bytes(3) + struct.pack(">Q", 2**63 - 1)
    yield "2^63 bytes", bytes(whole)


def check_archive(data: bytes, folder: Path) -> None:
    folder.mkdir()
    before, here = tree(folder), Path.cwd()
    os.chdir(folder)
    try:
        read_all("webdataset", in_memory("d/x.tar", data))
    except QuarkError as error:
        check_words(error)
    finally:
        os.chdir(here)
    assert tree(folder) == before
    assert not Path("/abs.txt").exists()


# Documents, and what is decoded: read in a process with little memory.

_READ = """
import sys, time
from tests.memory_peak import peak_bytes
from tests.reliability.test_hostile_data import DOCUMENTS, read_document
began = time.process_time()
ended = read_document(sys.argv[1])
peak = peak_bytes()  # not ru_maxrss, which begins with that of whoever started this
print(ended, peak, time.process_time() - began)
"""
_DEEP = 200_000
_BILLION = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def _zstd_of_zeros(num_bytes: int) -> bytes:
    import zstandard

    file = io.BytesIO()
    piece = bytes(1 << 24)
    with zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as writer:
        for _ in range(num_bytes >> 24):
            writer.write(piece)
    return file.getvalue()


def _gzip_of_zeros(num_bytes: int) -> bytes:
    file = io.BytesIO()
    piece = bytes(1 << 24)
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6) as writer:
        for _ in range(num_bytes >> 24):
            writer.write(piece)
    return file.getvalue()


def _shard(name: str, key: str, data: bytes) -> None:
    read_all(name, in_memory(key, data))


DOCUMENTS: dict[str, Callable[[], object]] = {
    "gz bomb": lambda: _shard("jsonl", "d/x.jsonl.gz", _gzip_of_zeros(600 << 20)),
    "gz bomb of members": lambda: _shard("txt", "d/x.txt.gz", _gzip_of_zeros(64 << 20) * 12),
    "zstd bomb": lambda: _shard("jsonl", "d/x.jsonl.zst", _zstd_of_zeros(3 << 30)),
    "zstd bomb in csv": lambda: _shard("csv", "d/x.csv.zst", _zstd_of_zeros(1 << 30)),
    "gz in gz": lambda: _shard("jsonl", "d/x.jsonl.gz", gzip.compress(_gzip_of_zeros(64 << 20))),
    "deep JSON line": lambda: _shard("jsonl", "d/x.jsonl", b"[" * _DEEP + b"]" * _DEEP),
    "deep JSON object": lambda: _shard(
        "jsonl", "d/x.jsonl", b'{"a":' * _DEEP + b"1" + b"}" * _DEEP
    ),
    "deep JSON list": lambda: _shard("json", "d/x.json", b"[" * _DEEP + b"]" * _DEEP),
    "long number": lambda: _shard("jsonl", "d/x.jsonl", b'{"a": ' + b"9" * 1_000_000 + b"}"),
    "million keys": lambda: _shard(
        "jsonl", "d/x.jsonl", json.dumps({str(n): n for n in range(300_000)}).encode()
    ),
    "aliased YAML": lambda: load_yaml(_BILLION, source="x.yaml"),
    "deep YAML": lambda: load_yaml("[" * 50_000 + "]" * 50_000, source="x.yaml"),
    "deep YAML map": lambda: load_yaml("{a: " * 20_000 + "1" + "}" * 20_000, source="x.yaml"),
    "recursive YAML": lambda: load_yaml("a: &a [*a]", source="x.yaml"),
    "tagged YAML": lambda: load_yaml("!!python/object/apply:os.system ['true']", source="x.yaml"),
    "npy of 2^60 rows": lambda: _shard(
        "npy",
        "d/x.npy",
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976, 4), }".ljust(
            117
        )
        + b"\n",
    ),
    "deep manifest": lambda: _manifest(b"[" * _DEEP),
}


def _manifest(data: bytes) -> None:
    store = open_store(StoreSpec(uri="memory://deep"))
    store.put("d/master_metadata.json", data)
    load_manifest(store, "d/")


def read_document(name: str) -> str:
    """Read one of DOCUMENTS; says how it ended."""
    try:
        DOCUMENTS[name]()
    except QuarkError as error:
        check_words(error)
        return "refused"
    return "read"


def check_document(name: str, right: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _READ, name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-400:]
    ended, peak, seconds = done.stdout.split()
    assert ended == right
    assert int(peak) <= MOST_BYTES, f"{int(peak) >> 20} MB"
    assert float(seconds) <= CASE_SECONDS, f"{seconds} s"


READ_WELL = {"million keys"}


def run_bombs(cells: Cells) -> None:
    """Read what claims to be huge, all in a process of little address space."""
    command = [sys.executable, "-m", "tests.reliability.bombs"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(120, process.kill)
        timer.start()
        out, _ = process.communicate()
        timer.cancel()
    lines = {line["name"]: line for line in map(json.loads, out.splitlines())}
    for name in BOMBS:
        with cells.case(f"bomb, {name}"):
            line = lines.get(name)
            assert line is not None, f"the process ended with {process.returncode}"
            right = "read 1" if name in HARMLESS else "refused: "
            assert line["ended"].startswith(right), line["ended"]
            assert line["peak"] <= MOST_BYTES, f"{line['peak'] >> 20} MB"
            assert line["seconds"] <= CASE_SECONDS, f"{line['seconds']} s"


HARMLESS = {"tar of pax records"}


def run_names(cells: Cells, folder: Path) -> None:
    stub_keys = {key: RECORD for key in KEYS.values() if key and "\udcff" not in key}
    with StubS3(stub_keys) as stub:
        for number, name in enumerate(KEYS):
            if cells.wanted(f"{name}, local"):
                with cells.case(f"{name}, local", CASE_SECONDS):
                    check_local(name, folder / f"local{number}")
            if cells.wanted(f"{name}, cached"):
                with cells.case(f"{name}, cached", CASE_SECONDS * 4):
                    check_cached(stub, name, folder / f"cached{number}")
            if cells.wanted(f"{name}, manifest"):
                with cells.case(f"{name}, manifest", CASE_SECONDS):
                    check_manifest(name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_names_archives_and_documents(request, tmp_path, aws_environment):
    with matrix("HOSTILE", request) as cells:
        run_names(cells, tmp_path)
        for number, (name, data) in enumerate(archives()):
            if cells.wanted(f"tar, {name}"):
                with cells.case(f"tar, {name}", CASE_SECONDS):
                    check_archive(data, tmp_path / f"tar{number}")
        if cells.wanted("bomb"):
            run_bombs(cells)
        for name in DOCUMENTS:
            if cells.wanted(f"document, {name}"):
                with cells.case(f"document, {name}", 60):
                    check_document(name, "read" if name in READ_WELL else "refused")

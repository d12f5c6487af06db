"""WebDataset: the real files R13, how members group, and archives that would lose data in silence."""

import gzip
import io
import pickle
import random
import re
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from webdataset.tariterators import group_by_keys, tar_file_iterator

from tests.shard_reading import CASES, case_file, in_memory, one_split, read_all, written
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.shard_format import ReadOptions
from tools_utilities.shard_formats.webdataset import _member_header, split_name

_PEERS_OWN = re.compile("__url__|__local_path__")


def archive(*entries: tuple[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def read_tar(data: bytes, options: ReadOptions | None = None) -> list[Any]:
    return read_all("webdataset", in_memory("d/x.tar", data), options=options or ReadOptions())


# R13


def test_the_real_compressed_archive() -> None:
    samples = read_all("webdataset", case_file("tar/wds_sample.tgz"))
    assert len(samples) == 90
    assert all(set(sample) == {"__key__", "cls", "png"} for sample in samples)
    assert (samples[0]["__key__"], samples[0]["cls"], len(samples[0]["png"])) == ("10", b"0", 306)


def test_the_real_messages() -> None:
    samples = read_all("webdataset", case_file("tar/wds_mpdata.tar"))
    assert [set(sample) for sample in samples] == [{"__key__", "mp"}] * 100
    assert msgspec.msgpack.decode(samples[0]["mp"]) == {"x": 0, "y": 0}
    assert msgspec.msgpack.decode(samples[-1]["mp"]) == {"x": 99, "y": 9801}


def test_the_real_folder_of_compressed_members() -> None:
    shard = case_file("tar/wds_compressed.tar")
    samples = read_all("webdataset", shard)
    assert [sample["__key__"] for sample in samples] == [f"compressed/000{i}" for i in (1, 2, 3)]
    texts = [gzip.decompress(sample["txt.gz"]) for sample in samples]
    assert [text.decode().strip() for text in texts] == ["hello", "world", "gzip"]
    assert one_split("webdataset", shard).skipped == {"not a file": 1}


@pytest.mark.parametrize("name", ["wds_sample.tgz", "wds_mpdata.tar", "wds_compressed.tar"])
def test_the_peer_reads_the_same(name: str) -> None:
    peers = peer_reads(CASES / "tar" / name)
    assert read_all("webdataset", case_file(f"tar/{name}")) == peers


def peer_reads(path: Path) -> list[Any]:
    """Read an archive with webdataset's own code."""
    with path.open("rb") as file:
        entries = [{**entry, "__url__": path.name} for entry in tar_file_iterator(file)]
    return [
        {field: value for field, value in sample.items() if not _PEERS_OWN.fullmatch(field)}
        for sample in group_by_keys(entries)
    ]


# Names and grouping


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.png", ("a", "png")),
        ("./a.PNG", ("./a", "png")),
        ("b/c/a.seg.tar.gz", ("b/c/a", "seg.tar.gz")),
        ("v1.2/a.txt", ("v1.2/a", "txt")),
        ("noext", None),
        ("v1.2/noext", None),
        (".hidden", None),
        ("d/.hidden.png", None),
        ("__info__", None),
        ("__my.meta__", None),
        ("é\n.txt", ("é\n", "txt")),
    ],
)
def test_names_become_key_and_field(name: str, expected: Any) -> None:
    assert split_name(name) == expected


def test_interleaved_members_are_one_sample() -> None:
    data = archive(("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3"), ("b.y", b"4"))
    assert read_tar(data) == [
        {"__key__": "a", "x": b"1", "y": b"3"},
        {"__key__": "b", "x": b"2", "y": b"4"},
    ]


def test_a_key_that_comes_again_is_another_sample() -> None:
    data = archive(("a.x", b"1"), ("b.x", b"2"), ("a.x", b"3"), ("a.y", b"4"))
    assert read_tar(data) == [
        {"__key__": "a", "x": b"1"},
        {"__key__": "b", "x": b"2"},
        {"__key__": "a", "x": b"3", "y": b"4"},
    ]


def test_a_field_twice_in_a_row_is_an_error() -> None:
    with pytest.raises(RecordError, match=r"d/x.tar: a.X is there twice"):
        read_tar(archive(("a.x", b"1"), ("a.X", b"2")))


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("length", [90, 99, 100, 101, 155, 256, 300, 5000])
def test_long_and_foreign_names(kind: int, length: int) -> None:
    key = "ö/" + "n" * length
    assert read_tar(archive((f"{key}.txt", b"x"), ("b.txt", b""), kind=kind)) == [
        {"__key__": key, "txt": b"x"},
        {"__key__": "b", "txt": b""},
    ]


def test_the_oldest_names_use_a_prefix() -> None:
    key = "folder/" * 20 + "name"
    assert read_tar(archive((f"{key}.t", b"x"), kind=tarfile.USTAR_FORMAT)) == [
        {"__key__": key, "t": b"x"}
    ]


def test_folders_links_and_devices_are_no_fields() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        kinds = (
            tarfile.DIRTYPE,
            tarfile.SYMTYPE,
            tarfile.LNKTYPE,
            tarfile.CHRTYPE,
            tarfile.FIFOTYPE,
        )
        for kind in kinds:
            info = tarfile.TarInfo(f"a.k{kind.decode()}")
            info.type, info.linkname = kind, "a.txt"
            tar.addfile(info)
        for name in ("a.txt", "README", "__meta__"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    shard = in_memory("d/x.tar", file.getvalue())
    opened = one_split("webdataset", shard)
    assert opened.skipped == {"not a file": 5, "not a field": 2}
    assert opened.read([0]) == [{"__key__": "a", "txt": b"abc"}]


def test_a_size_beyond_the_octal_field_is_understood() -> None:
    data = bytearray(archive(("a.txt", b"x" * 1000)))
    data[124:136] = bytes([0x80]) + (1000).to_bytes(11, "big")
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + sum(data[156:512]) + 8 * 32)
    assert read_tar(bytes(data)) == [{"__key__": "a", "txt": b"x" * 1000}]


# What would lose data in silence


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        (100, "truncated inside a header"),
        (512 + 3, "truncated: 600 bytes of data promised"),
        (512 + 1024, "truncated: no end-of-archive marker"),
        (512 + 1024 + 512 + 1024, "truncated: no end-of-archive marker"),
    ],
)
def test_a_cut_archive_is_an_error(keep: int, reason: str) -> None:
    data = archive(("a.x", b"1" * 600), ("b.x", b"2" * 600))
    with pytest.raises(RecordError, match=f"d/x.tar: {reason}"):
        read_tar(data[:keep])


def test_joined_archives_are_an_error() -> None:
    data = archive(("a.x", b"1"))
    with pytest.raises(RecordError, match="data after the end-of-archive marker"):
        read_tar(data + archive(("b.x", b"2")))


def test_a_damaged_header_and_another_format_are_errors() -> None:
    data = bytearray(archive(("a.x", b"1"), ("b.x", b"2")))
    data[1024 + 5] ^= 1
    for bad in (bytes(data), b'{"a":1}\n' * 200):
        with pytest.raises(RecordError, match="not a tar header"):
            read_tar(bad)


def test_sparse_members_are_refused_by_name() -> None:
    info = tarfile.TarInfo("a.x")
    info.pax_headers = {"GNU.sparse.major": "1"}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    with pytest.raises(RecordError, match="sparse member"):
        read_tar(file.getvalue())


# Fields


@pytest.mark.parametrize("field", ["pyd", "pkl", "pickle", "seg.pyd"])
def test_pickled_fields_are_refused_by_name(field: str) -> None:
    data = archive((f"a.{field}", pickle.dumps([1])), ("a.txt", b"x"))
    with pytest.raises(
        RecordError, match=rf"sample 1 \(a\): the field '{field}' is pickled"
    ) as failure:
        read_tar(data)
    assert failure.value.detail["index"] == 0
    assert read_tar(data, ReadOptions(columns=("txt",))) == [{"__key__": "a", "txt": b"x"}]


def test_only_wanted_fields_and_none_missing() -> None:
    data = archive(("a.x", b"1"), ("a.y", b"2"), ("b.x", b"3"))
    assert read_tar(data, ReadOptions(columns=("x",)))[0] == {"__key__": "a", "x": b"1"}
    with pytest.raises(RecordError, match=r"sample 2 \(b\): no field 'y'"):
        read_tar(data, ReadOptions(columns=("x", "y")))


def test_one_field_is_the_records_bytes() -> None:
    data = archive(("a.json", b'{"n":1}'), ("b.json", b"{}"))
    assert one_split("webdataset", in_memory("d/x.tar", data)).read_raw([1, 0]) == [
        b"{}",
        b'{"n":1}',
    ]
    several = one_split("webdataset", in_memory("d/x.tar", archive(("a.x", b"1"), ("a.y", b"2"))))
    with pytest.raises(UsageError, match="the fields x, y"):
        several.read_raw([0])


def test_the_index_takes_few_bytes_a_sample() -> None:
    data = archive(*((f"{i}.{field}", b"x") for i in range(500) for field in ("a", "b", "c")))
    opened = one_split("webdataset", in_memory("d/x.tar", data))
    assert opened.num_bytes - len(data) <= 16 * 501


# Writing


def test_the_peer_reads_what_is_written(tmp_path: Any) -> None:
    samples = [{"__key__": f"k/{i}", "txt": f"é{i}", "bin": bytes([i])} for i in range(5)]
    path = tmp_path / "x.tar"
    path.write_bytes(written("webdataset", samples))
    peers = peer_reads(path)
    assert [(peer["__key__"], peer["txt"].decode(), peer["bin"]) for peer in peers] == [
        (sample["__key__"], sample["txt"], sample["bin"]) for sample in samples
    ]


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ({"txt": b"x"}, "needs __key__"),
        ({"__key__": "a"}, "at least one field"),
        ({"__key__": "a", "n": 1}, "n is int"),
        ({"__key__": "a.b", "txt": b"x"}, "would not be read back"),
        ({"__key__": "a", "TXT": b"x"}, "would not be read back"),
    ],
)
def test_what_a_tar_cannot_hold_is_refused(sample: Any, why: str) -> None:
    with pytest.raises(RecordError, match=f"sample 0 cannot be written to a tar: .*{why}"):
        written("webdataset", [sample])


def test_headers_are_those_of_tarfile() -> None:
    chance = random.Random(0)
    for _ in range(500):
        name = "".join(chance.choices("abXZ/019._-é ", k=chance.choice([1, 20, 99, 100, 101, 300])))
        name = name.lstrip("/") or "a"
        entry = tarfile.TarInfo(name)
        entry.size = chance.choice([0, 1, 511, 512, 10**6, 8**11 - 1, 8**11, 1 << 40])

        assert _member_header(name, entry.size) == entry.tobuf(tarfile.PAX_FORMAT)


def test_an_archive_is_that_of_tarfile() -> None:
    samples: list[Any] = [
        {"__key__": f"k{at}", "txt": b"x" * at, "é": b"y"} for at in range(0, 9000, 700)
    ]
    entries = [(f"{s['__key__']}.{field}", s[field]) for s in samples for field in ("txt", "é")]

    assert written("webdataset", samples) == archive(*entries)


def test_a_key_that_is_there_already_stays_a_sample_of_its_own(tmp_path: Path) -> None:
    keys = ["a", "a", "a-2", "b", "a", "a"]
    fields = ["x", "y", "x", "x", "x", "x"]  # `a.x` and `a.y` would be one sample of two fields
    samples = [
        {"__key__": key, field: bytes([number])}
        for number, (key, field) in enumerate(zip(keys, fields, strict=True))
    ]

    data = written("webdataset", samples)

    back = read_tar(data)
    assert [row["__key__"] for row in back] == ["a", "a-2", "a-2-2", "b", "a-3", "a-4"]
    values = [next(value for name, value in row.items() if name != "__key__") for row in back]
    assert values == [bytes([number]) for number in range(6)]
    (tmp_path / "x.tar").write_bytes(data)
    assert [row["__key__"] for row in peer_reads(tmp_path / "x.tar")] == [
        row["__key__"] for row in back
    ]

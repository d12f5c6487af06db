"""What shards are made from: archives, web servers with and without TLS, every store's addresses."""

import contextlib
import datetime as dt
import gzip
import io
import ipaddress
import json
import ssl
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.cloud_credentials import point_clouds_to
from tests.fakes import Reply, Request, StubCloud, StubS3, StubServer
from tests.scripts.test_create_sharded_dataset import samples_of
from tools_utilities.scripts.create_sharded_dataset import main


def lines(first: int, count: int) -> bytes:
    return b"".join(b'{"id": %d, "text": "\xc3\xa9"}\n' % n for n in range(first, first + count))


def parquet(first: int, count: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": range(first, first + count), "text": ["é"] * count}), file)
    return file.getvalue()


def archive(count: int, *, compression: str = "") -> bytes:
    """Return a tar as other programs write it: folders, owners, times, a file that is no sample."""
    file = io.BytesIO()
    mode: Any = f"w:{compression}"
    with tarfile.open(fileobj=file, mode=mode) as tar:
        folder = tarfile.TarInfo("imgs")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        members = [("README", b"no sample")]
        for number in range(count):
            members += [
                (f"imgs/{number:03d}.JPG", bytes([255, number])),
                (f"imgs/{number:03d}.json", b'{"id": %d}' % number),
            ]
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uname = len(data), 1_700_000_000, "someone"
            tar.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def make(source: str | Path, out: Path, *flags: str) -> int:
    return main(
        ["--input_file", str(source), "--output_dir", str(out), "--num_shards", "3", *flags]
    )


def ids(out: Path) -> list[int]:
    return sorted(row["id"] for row in samples_of(out))


# tar


@pytest.mark.parametrize("name", ["in.tar", "in.tar.gz"])
@pytest.mark.parametrize("shard_format", ["webdataset", "parquet"])
def test_a_tar_is_grouped_into_samples(tmp_path, name, shard_format):
    (tmp_path / name).write_bytes(archive(10, compression="gz" if name.endswith("gz") else ""))

    assert make(tmp_path / name, tmp_path / "out", "--format", shard_format) == 0

    rows = sorted(samples_of(tmp_path / "out"), key=lambda row: str(row["__key__"]))
    assert [row["__key__"] for row in rows] == [f"imgs/{number:03d}" for number in range(10)]
    assert [bytes(row["jpg"]) for row in rows] == [bytes([255, number]) for number in range(10)]
    assert [json.loads(row["json"])["id"] for row in rows] == list(range(10))


def test_a_tars_bytes_are_refused_for_json_lines_and_nothing_is_published(tmp_path, capsys):
    (tmp_path / "in.tar").write_bytes(archive(3))

    assert make(tmp_path / "in.tar", tmp_path / "out") == 3

    assert "parquet" in capsys.readouterr().err.lower()
    assert not list(tmp_path.rglob("master_metadata.json"))


def test_a_tar_that_is_cut_is_named_with_its_place(tmp_path, capsys):
    (tmp_path / "in.tar").write_bytes(archive(5)[:6000])

    assert make(tmp_path / "in.tar", tmp_path / "out", "--format", "webdataset") == 3

    assert "in.tar" in capsys.readouterr().err


def test_a_folder_of_tars_is_one_input(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.tar").write_bytes(archive(number + 1))

    assert make(tmp_path / "in", tmp_path / "out", "--format", "webdataset") == 0

    rows = samples_of(tmp_path / "out")  # keys count from the beginning in each
    assert sorted(json.loads(row["json"])["id"] for row in rows) == [0, 0, 0, 1, 1, 2]
    assert all(row["jpg"] == bytes([255, json.loads(row["json"])["id"]]) for row in rows)


# http and https

FILES = {
    "/sets/a%20b.jsonl": lines(0, 20),
    "/sets/a.jsonl.gz": gzip.compress(lines(0, 20)),
    "/sets/a.parquet": parquet(0, 20),
    "/sets/a.tar": archive(20),
}


class Site:
    """Serves the files with ranges; needs the query that some addresses carry."""

    def __call__(self, request: Request) -> Reply:
        data = FILES.get(request.path)
        if data is None or (request.path.endswith("parquet") and request.query != {"sig": "s%/"}):
            return Reply(404 if data is None else 403)
        head = {"ETag": '"one"', "Accept-Ranges": "bytes"}
        spoken = request.headers.get("range")
        if not spoken:
            return Reply(200, head, data)
        start, _, last = spoken.removeprefix("bytes=").partition("-")
        stop = min(int(last) + 1, len(data)) if last else len(data)
        head["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return Reply(206, head, data[int(start) : stop])


@contextlib.contextmanager
def site(scheme: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of a server on loopback; with TLS one that this process trusts."""
    server = StubServer(Site())
    if scheme == "https":
        pair = certificate(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*pair)
        server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
        monkeypatch.setenv("SSL_CERT_FILE", str(pair[0]))
    with server:
        yield f"{scheme}://127.0.0.1:{server.port}"


def certificate(folder: Path) -> tuple[Path, Path]:
    """Return a new certificate of 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stub")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = (folder / "cert.pem", folder / "key.pem")
    files[0].write_bytes(made.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files[1].write_bytes(secret)
    return files


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("name", ["a b.jsonl", "a.jsonl.gz", "a.parquet?sig=s%25/"])
def test_a_web_servers_file_becomes_shards(tmp_path, monkeypatch, scheme, name):
    with site(scheme, tmp_path, monkeypatch) as url:
        assert make(f"{url}/sets/{name.replace('a b', 'a%20b')}", tmp_path / "out") == 0

    assert ids(tmp_path / "out") == list(range(20))
    for path in (tmp_path / "out").rglob("*.json"):
        assert b"sig=" not in path.read_bytes(), path  # a query may be a secret


def test_a_tar_of_a_web_server_and_a_file_that_is_not_there(tmp_path, monkeypatch, capsys):
    with site("http", tmp_path, monkeypatch) as url:
        assert make(f"{url}/sets/a.tar", tmp_path / "out", "--format", "webdataset") == 0
        assert make(f"{url}/sets/none.jsonl", tmp_path / "none") == 3

    assert len(samples_of(tmp_path / "out")) == 20
    assert "none.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_server_whose_certificate_is_not_trusted_is_refused(tmp_path, monkeypatch, capsys):
    with site("https", tmp_path, monkeypatch) as url:
        monkeypatch.delenv("SSL_CERT_FILE")
        code = make(f"{url}/sets/a.jsonl.gz", tmp_path / "out")

    assert code == 4
    assert "certificate" in capsys.readouterr().err.lower()
    assert not (tmp_path / "out").exists()


# s3, r2, gs, az

OBJECTS = {
    "sets/one/a.jsonl": lines(0, 7),
    "sets/one/b.jsonl.gz": gzip.compress(lines(7, 5)),
    "sets/one/deep/c d+%2F.parquet": parquet(12, 4),
    "sets/one/_SUCCESS": b"",
    "sets/one/.hidden.jsonl": lines(100, 1),
    "sets/one2/other.jsonl": lines(200, 1),
}


@pytest.fixture(params=["s3", "r2", "gs", "az"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, aws_environment: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Yield the scheme and endpoint of a stub that holds OBJECTS."""
    kind = StubS3 if request.param in {"s3", "r2"} else StubCloud
    with kind(OBJECTS) as stub:
        point_clouds_to(stub.url, tmp_path, aws_environment)
        yield str(request.param), stub.url


@pytest.mark.parametrize(
    ("path", "expected"),
    [("sets/one/", range(16)), ("sets/one", range(16)), ("sets/one/b.jsonl.gz", range(7, 12))],
)
def test_a_stores_prefix_or_object_becomes_shards(tmp_path, store, path, expected):
    scheme, endpoint = store

    code = make(f"{scheme}://bucket/{path}", tmp_path / "out", "--endpoint_url", endpoint)

    assert code == 0
    assert ids(tmp_path / "out") == list(expected)


@pytest.mark.parametrize("scheme", ["s3", "r2"])
def test_the_endpoint_may_be_the_environments(tmp_path, aws_environment, capsys, scheme):
    with StubS3(OBJECTS) as stub:
        if scheme == "r2":
            assert make("r2://bucket/sets/one/", tmp_path / "none") == 2
            assert "endpoint_url=https://<account id>.r2" in capsys.readouterr().err
        aws_environment.setenv("AWS_ENDPOINT_URL", stub.url)

        assert make(f"{scheme}://bucket/sets/one/a.jsonl", tmp_path / "out") == 0

    assert ids(tmp_path / "out") == list(range(7))


def test_a_stores_empty_prefix_is_named(tmp_path, store, capsys):
    scheme, endpoint = store

    assert make(f"{scheme}://bucket/none/", tmp_path / "out", "--endpoint_url", endpoint) == 3

    assert f"{scheme}://bucket/none/: no data files here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

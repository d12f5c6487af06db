"""Every fault of a store on writing to it, once, three times, always: the object is whole, or the error has a name."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import faults, servers
from tests.fault_proxy import FaultProxy, Where
from tests.reliability.fetch_cells import FINAL, TIMES, content
from tests.reliability.matrix import Cells, described, matrix
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.object_stores import _s3_clients
from tools_utilities.patient_store import PatientStore

BUCKET = "puts"
QUARTER = 0.25
"""Not less: what is not broken must be answered in it on a busy machine."""
SMALL_BYTES, PARTED_BYTES = 3_000, 9 << 20
PARTED_REQUESTS = 4
"""The upload begun, two parts, the upload completed."""
FAULTS = (
    *("503", "429", "500", "reset before", "silent", "reply lost", "applied late", "applied twice"),
    *("301 region", "400 region", "403", "expired token", "clock skew"),
)


@dataclass(frozen=True)
class Put:
    """One case: the fault begins with the request of this number."""

    fault: str
    times: str
    num_bytes: int
    request: int = 1

    @property
    def name(self) -> str:
        """Name the case."""
        return f"put {self.fault}, {self.times}, {self.num_bytes} bytes, request {self.request}"

    @property
    def key(self) -> str:
        """Return the object of this case alone."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]


def small(times: tuple[str, ...]) -> list[Put]:
    return [Put(fault, each, SMALL_BYTES) for fault in FAULTS for each in times]


def parted(times: tuple[str, ...]) -> list[Put]:
    return [
        Put(fault, each, PARTED_BYTES, request)
        for fault in FAULTS
        for each in times
        for request in range(1, PARTED_REQUESTS + 1)
    ]


def put(store: PatientStore, cell: Put, file: Path) -> QuarkError | None:
    try:
        if cell.num_bytes == SMALL_BYTES:
            store.put(cell.key, content(cell.num_bytes))
        else:
            store.put_file(cell.key, file)
    except QuarkError as error:
        return error
    return None


def check(proxy: FaultProxy, endpoint: str, cell: Put, file: Path) -> None:
    store = PatientStore(open_store(StoreSpec(uri=f"s3://{BUCKET}", endpoint_url=proxy.url)))
    store.put(f"{cell.key}-warm", b"")  # making a client takes seconds on a busy machine
    rule = proxy.inject(
        faults.FAULTS[cell.fault].make(),
        Where("PUT POST", f"^{cell.key}$"),
        times=TIMES[cell.times],
        after=cell.request - 1,
    )
    began = time.monotonic()
    error = put(store, cell, file)
    took = time.monotonic() - began
    proxy.remove(rule)
    # Of an upload in parts that went well so far, each try meets the silence of two.
    limit = 38 if cell.fault == "silent" and cell.request == 1 else 123
    assert took <= limit, f"took {took:.0f} s"
    assert rule.fired, "the fault did not strike"
    if error is not None and cell.times != "always":
        assert isinstance(error, FINAL), f"not survived: {type(error).__name__}: {error}"
    if error is not None:
        again = put(store, cell, file)
        assert again is None, f"cannot be resumed: {again}"
    time.sleep(0.6 if cell.fault == "applied late" else 0)
    found = PatientStore(open_store(StoreSpec(uri=f"s3://{BUCKET}", endpoint_url=endpoint)))
    assert b"".join(found.get(cell.key)) == content(cell.num_bytes), "WRONG BYTES"
    store.abandon_uploads(cell.key, lambda _key: True)
    client = servers.s3_client(endpoint)
    left = client.list_multipart_uploads(Bucket=BUCKET, Prefix=cell.key).get("Uploads", [])
    client.close()
    assert not left, "an upload was left unfinished"


def run(cells: Cells, endpoint: str, chosen: list[Put], folder: Path, at_once: int) -> None:
    servers.s3_client(endpoint).create_bucket(Bucket=BUCKET)
    file = folder / "file"
    file.write_bytes(content(PARTED_BYTES))
    wanted = [cell for cell in chosen if cells.wanted(cell.name)]
    with FaultProxy(endpoint) as proxy:

        def one(cell: Put) -> None:
            failure = ""
            try:
                check(proxy, endpoint, cell, file)
            except Exception as error:  # noqa: BLE001 - the other cells go on
                failure = described(error)
            cells.add(cell.name, failure)

        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(one, wanted))


@pytest.mark.slow
def test_small_objects(request, tmp_path, aws_environment, moto_endpoint):
    # Every silence is ended by the client's own limit here.
    for name in ("READ_SECONDS", "CONNECT_SECONDS", "EXACT_SECONDS"):
        aws_environment.setattr(_s3_clients, name, getattr(_s3_clients, name) * QUARTER)
    with matrix("PUTS", request) as cells:
        run(cells, moto_endpoint, small(("once", "three times")), tmp_path, at_once=6)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_objects_in_parts_too(request, tmp_path, aws_environment, moto_endpoint):
    with matrix("PUTS", request) as cells:
        chosen = [*small(tuple(TIMES)), *parted(tuple(TIMES))]
        run(cells, moto_endpoint, chosen, tmp_path, at_once=12)

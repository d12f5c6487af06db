"""Every fault of a store, in every size, cold and warm, once, three times, always: `docs/reliability.md`."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fault_proxy import FaultProxy
from tests.reliability.fetch_cells import (
    Bench,
    Cell,
    MatrixS3,
    few_of_each,
    got_cells,
    listed_cells,
    scaled,
)
from tests.reliability.matrix import Cells, described, matrix
from tools_utilities.fetch_attempt import FetchLimits
from tools_utilities.object_stores import _s3_clients

SIZES = [0, 1, 5_000, 300_000, 3_000_000]
NIGHTLY_SIZES = [0, 1, 1 << 16, (1 << 20) + 1, 8 << 20, 50 << 20]
TWENTIETH = 0.05


def run(
    cells: Cells, chosen: list[Cell], folder: Path, limits: FetchLimits, scale: float, at_once: int
) -> None:
    """Run the cases, some at once, since most of their time is waiting."""
    wanted = [cell for cell in chosen if cells.wanted(cell.name)]
    with MatrixS3(wanted) as stub, FaultProxy(stub.url) as proxy:
        bench = Bench(proxy, folder, limits, scale)

        def one(cell: Cell) -> None:
            failure = ""
            try:
                bench.run(cell)
            except Exception as error:  # noqa: BLE001 - the other cells go on
                failure = described(error)
            cells.add(cell.name, failure)

        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(one, wanted))


@pytest.mark.slow
def test_at_a_twentieth_of_the_time(request, tmp_path, aws_environment):
    for name in ("READ_SECONDS", "CONNECT_SECONDS", "EXACT_SECONDS"):
        aws_environment.setattr(_s3_clients, name, getattr(_s3_clients, name) * TWENTIETH)
    limits = scaled(TWENTIETH, parted_from_bytes=2_000_000, part_bytes=1_000_000)
    with matrix("FETCH", request) as cells:
        drawn = few_of_each(got_cells(SIZES), 4, cells.seed)
        run(cells, drawn, tmp_path, limits, TWENTIETH, at_once=8)
        # Half a second for boto3, with a thousand keys to read: few at once.
        run(cells, listed_cells("warm"), tmp_path, limits, TWENTIETH, at_once=3)


@pytest.mark.nightly
@pytest.mark.timeout(5_400)
def test_in_real_time(request, tmp_path, aws_environment):
    with matrix("FETCH", request) as cells:
        listed = [*listed_cells("cold"), *listed_cells("warm")]
        chosen = [*got_cells(NIGHTLY_SIZES), *listed]
        run(cells, chosen, tmp_path, FetchLimits(), 1.0, at_once=32)

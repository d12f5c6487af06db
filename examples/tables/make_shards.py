"""Makes a small table in Parquet shards: flats, their price, and whether they sold within a month.

python examples/tables/make_shards.py data/datasets/flats
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TRAIN_SHARDS, VAL_SHARDS, ROWS = 8, 2, 400
DISTRICTS = ("north", "south", "harbour")


def make_rows(count: int, source: np.random.Generator) -> pa.Table:
    """Return flats: what is known of them, and what is to be learned."""
    area = source.uniform(20, 160, count)
    age = source.integers(0, 120, count)
    floor = source.integers(0, 9, count)
    district = source.integers(0, len(DISTRICTS), count)
    a_metre = np.array([3000.0, 4200.0, 6500.0])[district]
    worn = 1 - 0.35 * np.sin(np.pi * age / 120)  # old houses are dear again
    price = area * a_metre * worn * (1 + 0.02 * floor) * source.normal(1, 0.05, count)
    asked = price * source.uniform(0.8, 1.25, count)
    return pa.table(
        {
            "area": area,
            "age": age,
            "floor": floor,
            "district": [DISTRICTS[number] for number in district],
            "asked": asked,
            "price": price,
            "sold_fast": asked < price,
        }
    )


def main() -> None:
    """Write the shards of both parts below the folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    source = np.random.default_rng(7)
    for part, count in (("train", TRAIN_SHARDS), ("val", VAL_SHARDS)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            path = folder / part / f"{part}-{number:05}.parquet"
            pq.write_table(make_rows(ROWS, source), path, row_group_size=100)


if __name__ == "__main__":
    main()

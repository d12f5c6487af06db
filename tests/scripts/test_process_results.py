"""What a batch function returns is written exactly, or refused: nothing is altered in silence."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from tests.scripts.test_process_shards import dataset
from tools_utilities.batch_work import FunctionError, encode_line
from tools_utilities.scripts.process_shards import ProcessOptions, process_shards

__all__ = ["dataset"]


@pytest.mark.parametrize(
    "value",
    [
        math.nan, [1.0, -math.inf], np.array([[0.5, math.nan]]), b"raw", {"deep": [b"raw"]},
        datetime(2026, 1, 1, tzinfo=UTC), Decimal("1.10"), "\ud800", object(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_json_cannot_say_is_refused_not_altered(value):
    with pytest.raises(FunctionError, match=r"a result of c\.jsonl is not JSON") as caught:
        encode_line({"id": 1, "value": value}, "c.jsonl")
    assert "parquet" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ((1, 2), [1, 2]), (np.arange(3, dtype=np.uint16), [0, 1, 2]), (np.float32(0.5), 0.5),
        (1 << 80, 1 << 80), (None, None), ("é\u2028", "é\u2028"), ({"a": ()}, {"a": []}),
    ],
)  # fmt: skip
def test_what_json_can_say_is_written_exactly(value, said):
    line = encode_line([value], "c.jsonl")

    assert json.loads(line) == [said]
    assert b"\n" not in line


def test_a_result_with_nan_fails_its_shard_as_lines_and_is_kept_as_parquet(dataset):
    import pyarrow.parquet as pq

    def broken(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"id": s["id"], "x": math.nan if s["id"] == 13 else 1.0} for s in samples]

    out = str(dataset.parent / "tables")
    lines = process_shards(str(dataset), broken)
    tables = process_shards(
        str(dataset), broken, out=out, options=ProcessOptions(output_format="parquet")
    )

    assert list(lines.failed) == [5]
    assert "not JSON" in lines.failed[5]
    states = {
        path.parent.name: json.loads(path.read_text())["state"]
        for path in dataset.glob("shard_*/claim.json")
    }
    assert [name for name, state in states.items() if state != "done"] == ["shard_005"]
    assert not tables.failed
    rows = [row for path in (dataset.parent / "tables").rglob("*.parquet")
            for row in pq.read_table(path).to_pylist()]  # fmt: skip
    assert [row["id"] for row in rows if math.isnan(row["x"])] == [13]

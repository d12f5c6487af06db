"""What a step says of waiting: by cause, over all ranks, and the cause in the live view."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brain.ml.schedule import Progress, RunLength
from brain.ml.step_report import SUMMED, WAITS, StepReport, deal_wait
from resource_manager.live_view import LiveRun
from tests.fakes import Reply, Request, StubS3
from tests.training import events, make_job, text_shards, train_here, write_shards
from tools_utilities.object_store import StoreSpec
from tools_utilities.terminal_text import plain


def report_of(tmp_path: Path, workers: int = 0) -> Callable[..., dict[str, Any]]:
    store = write_shards(tmp_path / "data", text_shards())
    job = make_job(tmp_path / "run", store, workers=workers)
    report = StepReport(job, Progress(), RunLength(source_samples=(90,)))

    def event(**stats: float) -> dict[str, Any]:
        return report.event(
            loss=1.0, rate=0.1, norm=1.0, tokens=10, seconds=1.0, waited=0.5, stats=stats
        )

    return event


def test_the_cause_is_what_grew_most_since_the_last_step(tmp_path):
    event = report_of(tmp_path)
    first = event(open_wait_seconds=5.0, wait_store_seconds=4.0, wait_retry_seconds=1.0)
    assert first["wait_cause"] == "store"
    second = event(open_wait_seconds=6.0, wait_store_seconds=4.0, wait_retry_seconds=2.0)
    assert second["wait_cause"] == "retry"
    assert second["wait_seconds"]["store"] == 4.0
    assert (
        event(open_wait_seconds=7.0, wait_store_seconds=4.0, wait_retry_seconds=2.0)["wait_cause"]
        == "open"
    )
    quiet = event(open_wait_seconds=7.0, wait_store_seconds=4.0, wait_retry_seconds=2.0)
    assert quiet["wait_cause"] is None


def test_the_live_view_names_the_cause_of_a_wait_that_matters():
    run = LiveRun("fox-1")
    run.take({"event": "step", "data_wait_share": 0.12, "wait_cause": "read_ahead"})
    assert "data wait 12% (read ahead)" in " ".join(map(plain, run.lines(200, draw=False)))
    run.take({"event": "step", "data_wait_share": 0.01, "wait_cause": "store"})
    assert "data wait 1% ·" in " ".join(map(plain, run.lines(200, draw=False)))


def test_a_run_writes_waits_and_sums(tmp_path):
    store = write_shards(tmp_path / "data", text_shards())
    assert train_here(make_job(tmp_path / "run", store, max_steps=3)) == 0
    step = events(tmp_path / "run", "step")[-1]
    assert set(step["wait_seconds"]) == set(WAITS)
    [end] = events(tmp_path / "run", "end")
    assert set(SUMMED) <= set(end["stats"])
    assert end["stats"]["objects_from_cache"] > 0
    loads = [end["stats"][f"load_{share}_seconds"] for share in ("p50", "p90", "p99", "max")]
    assert 0 < loads[0] <= loads[1] <= loads[2] <= loads[3]
    assert "requests_per_second" in end["stats"]


def test_waiting_for_workers_is_told_where_no_cause_of_theirs_is(tmp_path):
    event = report_of(tmp_path, workers=1)
    assert event(wait_workers_seconds=2.0)["wait_cause"] == "workers"
    both = event(wait_workers_seconds=4.0, wait_store_seconds=1.0, open_wait_seconds=1.0)
    assert both["wait_cause"] == "store"
    # The worker's wait for the store is part of this process's wait for the worker.
    assert (both["wait_seconds"]["workers"], both["wait_seconds"]["store"]) == (3.0, 1.0)
    assert sum(both["wait_seconds"].values()) == 4.0


@given(
    st.tuples(*[st.floats(0, 500)] * len(WAITS)).map(lambda w: dict(zip(WAITS, w, strict=True))),
    st.sampled_from(["open", "workers"]),
)
def test_the_causes_of_a_step_add_up_to_what_its_loader_waited(fresh, whole):
    """However much threads and workers waited beside each other, nothing is counted twice."""
    dealt = deal_wait(fresh, whole)
    assert sum(dealt.values()) == pytest.approx(fresh[whole], abs=1e-9)
    assert all(0 <= dealt[cause] <= fresh[cause] + 1e-9 for cause in dealt)


@pytest.mark.parametrize("workers", [0, 1])
def test_waits_of_a_run_over_a_slow_store_add_up_to_its_loaders_wait(
    tmp_path, aws_environment, workers
):
    def slow(request: Request) -> Reply | None:
        if request.method == "GET" and "/train/" in request.key:
            time.sleep(0.05)
        return None

    shards = text_shards(shards=12, records=4)
    with StubS3(shards, slow) as stub:
        spec = StoreSpec(uri="s3://bucket", endpoint_url=stub.url, region="us-east-1")
        job = make_job(
            tmp_path / "run", spec, max_steps=None, epochs=1.0, batch_size=2, val=(),
            workers=workers, prefetch=0, shuffle=False, fetch_concurrency=1,
        )  # fmt: skip
        assert train_here(job) == 0
    steps = events(tmp_path / "run", "step")
    loader = 0.0
    for step in steps:
        loader += step["data_wait_share"] * step["step_seconds"]
        assert sum(step["wait_seconds"].values()) <= loader + 1e-6
    dealt = steps[-1]["wait_seconds"]
    assert sum(dealt[cause] for cause in WAITS[2:]) > 0.1
    # All that the loader waited in this run was before its last step.
    [end] = events(tmp_path / "run", "end")
    whole = "wait_workers_seconds" if workers else "open_wait_seconds"
    assert 0.1 < sum(dealt.values()) <= end["stats"][whole] + 1e-6


def test_a_run_with_workers_writes_what_it_waited_for_them(tmp_path):
    store = write_shards(tmp_path / "data", text_shards())
    assert train_here(make_job(tmp_path / "run", store, max_steps=2, workers=1)) == 0
    [end] = events(tmp_path / "run", "end")
    assert end["stats"]["wait_workers_seconds"] > 0

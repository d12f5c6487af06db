"""The benchmark's arithmetic: medians of one run, Quark over the best peer of each column."""

import importlib.util
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent.parent / "benchmarks" / "side_by_side.py"
SPEC = importlib.util.spec_from_file_location("side_by_side", PATH)
assert SPEC is not None
assert SPEC.loader is not None
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)


def row(peer: str, speed: float, **changes: Any) -> dict[str, Any]:
    made = {"kind": "text", "workers": 0, "phase": "warm", "peer": peer, "sps": speed}
    made |= {"ttfb": 0.5, "cpu": 2.0, "samples": 1_000_000, "peak_mb": 100, "other_cores": 0.0}
    return {**made, **changes}


def test_quark_is_set_against_the_fastest_peer_by_medians():
    rows = [row("quark", speed, cpu=1.0, ttfb=0.1, peak_mb=50) for speed in (90.0, 300.0, 200.0)]
    rows += [row("slow", 50.0), row("fast", 100.0), row("failed", 900.0, error="none")]
    [line] = bench.ratios(bench.medians(rows))
    assert line == ("text", 0, "warm", "quark", "fast", 2.0, 2.0, 0.1, 0.5)


def test_columns_without_a_peer_have_no_ratio():
    assert bench.ratios(bench.medians([row("quark", 1.0), row("fast", 1.0, phase="cold")])) == []

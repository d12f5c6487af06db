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
    rows += [
        row("slow", 50.0),
        row("fast", 100.0),
        row("ideal_x", 800.0),
        row("failed", 900.0, error="none"),
    ]
    [line] = bench.ratios(bench.medians(rows))
    assert line == ("text", 0, "warm", "quark", "fast", 2.0, 2.0, 0.1, 0.5)


def test_columns_without_a_peer_have_no_ratio():
    assert bench.ratios(bench.medians([row("quark", 1.0), row("fast", 1.0, phase="cold")])) == []


def test_loaders_of_compressed_shards_are_set_against_each_other_alone():
    rows = [
        row("quark_zst", 300.0),
        row("naive_zst", 100.0),
        row("quark", 100.0),
        row("raw", 200.0),
    ]
    lines = bench.ratios(bench.medians(rows))
    assert [line[:6] for line in lines] == [
        ("text", 0, "warm", "quark", "raw", 0.5),
        ("text_zst", 0, "warm", "quark_zst", "naive_zst", 3.0),
    ]


def test_every_target_is_told_met_or_missed(capsys):
    rows = [
        row(peer, speed, kind=kind, workers=workers, phase=phase, ttfb=0.25, peak_mb=memory)
        for kind in ("text", "tok")
        for workers in (0, 2)
        for phase in ("cold", "warm")
        for peer, speed, memory in (("quark", 190, 65), ("quark_plain", 140, 65), ("litdata", 100, 100))
    ]  # fmt: skip
    far = [row(peer, speed, phase="cold") for peer, speed in (("quark", 180), ("raw", 100))]
    far += [row("quark_zst", 160, phase="cold"), row("naive_zst", 100, phase="cold")]
    resume = {"fresh": {"peak_mb": 300}, "middle": {"peak_mb": 320, "seconds": 0.4}}
    half = {"epoch 2": {"hit_rate": 0.44}}
    lines = [
        *bench.judge("nginx-fast", bench.medians(rows)),
        *bench.judge("nginx-wan", bench.medians(far)),
        *bench.targets.scale(resume, half),
    ]
    assert [(line[0], line[4]) for line in lines] == [
        ("P1", True), ("P1", False), ("P1", True), ("P1", False), ("P2", True), ("P2", True),
        ("P3", True), ("P3", False), ("P3", False), ("P3", False),
        ("P5", False), ("P5", True), ("P5", False), ("P5", True),
        ("P6", False), ("P6", True), ("P6", False), ("P6", True),
        ("P4", True), ("P4", False), ("P7", True), ("P10", False),
    ]  # fmt: skip
    bench.targets.show_targets(lines)
    shown = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" |")[0] for line in shown] == sorted(
        (f"| {line[0]}" for line in lines), key=lambda name: int(name[3:])
    )
    assert sum("**missed**" in line for line in shown) == 11

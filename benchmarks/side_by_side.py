"""Runs Quark and its peers in turn with the peers' harness and prints the ratios.

    BENCH_ROOT=… BENCH_HARNESS=… python benchmarks/side_by_side.py [--full]

BENCH_HARNESS is the folder of `bench.py`; BENCH_ROOT is where its set-up put environment and content.
Every figure is a median over the repeats of this run alone; Quark is compared with the best peer of
each column.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
QUARK = ("quark", "quark_plain")
SMALL = {
    "text": "peer_quark,peer_quark_plain,peer_litdata_raw,peer_naive",
    "tok": "peer_quark,peer_quark_plain,peer_litdata,peer_naive",
}
FULL = {
    "text": SMALL["text"]
    + ",peer_litdata,peer_litdata_parquet,peer_s3torch,peer_hf_parquet,peer_mds",
    "tok": SMALL["tok"] + ",peer_s3torch,peer_hf_parquet,peer_mds",
}


def medians(rows):
    """Return {(kind, workers, phase, peer): {figure: median}} of the rows without an error."""
    grouped = {}
    for row in rows:
        if "error" not in row:
            key = (row["kind"], row["workers"], row["phase"], row["peer"])
            us_cpu = row["cpu"] / max(1, row["samples"]) * 1e6
            grouped.setdefault(key, []).append({**row, "us_cpu": us_cpu})
    names = ("sps", "ttfb", "us_cpu", "peak_mb", "other_cores")
    return {
        key: {name: statistics.median(row[name] for row in found) for name in names}
        for key, found in grouped.items()
    }


def ratios(figures):
    """Return lines (column, Quark's loader, best peer, ratios) for every column that has both."""
    lines = []
    for column in sorted({key[:3] for key in figures}):
        peers = {key[3]: row for key, row in figures.items() if key[:3] == column}
        others = {name: row for name, row in peers.items() if name not in QUARK}
        if not others:
            continue
        best = max(others, key=lambda name: others[name]["sps"])
        for name in QUARK:
            if name in peers:
                own, peer = peers[name], others[best]
                lines.append(
                    (
                        *column, name, best,
                        own["sps"] / peer["sps"],
                        peer["us_cpu"] / own["us_cpu"],
                        own["ttfb"],
                        own["peak_mb"] / peer["peak_mb"],
                    )
                )  # fmt: skip
    return lines


def show(figures):
    print(
        "| kind | workers | phase | loader | samples/s | first batch s | CPU us/sample | peak MB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (kind, workers, phase, peer), row in sorted(figures.items()):
        cells = (
            f"{row['sps']:,.0f} | {row['ttfb']:.2f} | {row['us_cpu']:.1f} | {row['peak_mb']:.0f}"
        )
        print(f"| {kind} | {workers} | {phase} | {peer} | {cells} |")
    print()
    print("| kind | workers | phase | loader | best peer | speed | CPU | first batch s | memory |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind, workers, phase, own, best, speed, cpu, first, memory in ratios(figures):
        cells = f"{speed:.2f}x | {cpu:.2f}x | {first:.2f} | {memory:.2f}x"
        print(f"| {kind} | {workers} | {phase} | {own} | {best} | {cells} |")
    busy = [row["other_cores"] for row in figures.values()]
    print(f"\nOther processes kept {statistics.median(busy):.1f} cores busy (median).")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all peers, 0 and 2 workers, 3 repeats")
    parser.add_argument("--server", default="nginx-fast")
    parser.add_argument("--read", type=Path, help="only show a results file of the harness")
    given = parser.parse_args()
    if given.read is not None:
        show(medians(json.loads(given.read.read_text())))
        return
    root, harness = Path(os.environ["BENCH_ROOT"]), Path(os.environ["BENCH_HARNESS"])
    paths = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'benchmarks'}"
    started, peers = time.time(), FULL if given.full else SMALL
    for kind in peers:
        subprocess.run(
            [
                root / "venv/bin/python", harness / "bench.py", "loaders", "--server", given.server,
                "--kinds", kind, "--peers", peers[kind],
                "--workers", "0,2" if given.full else "0",
                "--repeats", "3" if given.full else "1",
                "--max-s", "20" if given.full else "12",
            ],
            cwd=root, env={**os.environ, "PYTHONPATH": paths}, check=True,
        )  # fmt: skip
    rows = json.loads((root / f"results/loaders-{given.server}.json").read_text())
    show(medians([row for row in rows if row["at"] >= started]))


if __name__ == "__main__":
    main()

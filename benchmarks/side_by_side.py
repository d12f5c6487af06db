"""Runs Quark and its peers in turn with the peers' harness and prints the ratios.

    BENCH_ROOT=… BENCH_HARNESS=… python benchmarks/side_by_side.py [--full] [--server NAME]

BENCH_HARNESS is the folder of `bench.py`; BENCH_ROOT is where its set-up put environment and content.
Every figure is a median over the repeats of this run alone; Quark is compared with the best peer of
each column. Both servers, near and at 25 ms, then P7 and P10 over simulated stores, then every target.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import targets

REPOSITORY = Path(__file__).resolve().parent.parent
QUARK = ("quark", "quark_plain", "quark_zst")
NEAR, FAR = "nginx-fast", "nginx-wan"
SMALL = {
    "text": "peer_quark,peer_quark_plain,peer_litdata_raw,peer_naive",
    "tok": "peer_quark,peer_quark_plain,peer_litdata,peer_naive",
}
FULL = {
    "text": SMALL["text"]
    + ",peer_litdata,peer_litdata_parquet,peer_s3torch,peer_hf_parquet,peer_mds",
    "tok": SMALL["tok"] + ",peer_s3torch,peer_hf_parquet,peer_mds",
}


FAR_PEERS = {
    # The same bytes: plain ones, and .zst against those that read .zst.
    False: {"text": "peer_quark,peer_litdata_raw,peer_quark_zst,peer_naive_zst"},
    True: {
        "text": "peer_quark,peer_quark_plain,peer_litdata,peer_litdata_raw,peer_naive,peer_s3torch,"
        "peer_quark_zst,peer_naive_zst",
        "tok": "peer_quark,peer_litdata,peer_naive,peer_s3torch",
    },
}


def kind_of(row):
    """Return what a row's loader has read: those named `…_zst` read the compressed shards."""
    return row["kind"] + ("_zst" if row["peer"].endswith("_zst") else "")


def is_peer(name):
    """Tell whether a loader is somebody's: the harness's `ideal` ones are sketches without any safety."""
    return name not in QUARK and not name.startswith("ideal")


def medians(rows):
    """Return {(kind, workers, phase, peer): {figure: median}} of the rows without an error."""
    grouped = {}
    for row in rows:
        if "error" not in row:
            key = (kind_of(row), row["workers"], row["phase"], row["peer"])
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
        others = {name: row for name, row in peers.items() if is_peer(name)}
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


def measure(server, *, full):
    """Run the loaders of one server in turn; return the rows of this run."""
    root, harness = Path(os.environ["BENCH_ROOT"]), Path(os.environ["BENCH_HARNESS"])
    paths = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'benchmarks'}"
    started = time.time()
    for kind, peers in (FAR_PEERS[full] if server == FAR else FULL if full else SMALL).items():
        subprocess.run(
            [
                root / "venv/bin/python", harness / "bench.py", "loaders", "--server", server,
                "--kinds", kind, "--peers", peers,
                "--workers", "0,2" if full and server != FAR else "0",
                "--repeats", "3" if full else "1",
                "--max-s", "20" if full else "12",
            ],
            cwd=root, env={**os.environ, "PYTHONPATH": paths}, check=True,
        )  # fmt: skip
    rows = json.loads((root / f"results/loaders-{server}.json").read_text())
    return [row for row in rows if row["at"] >= started]


def simulate(*what):
    """Return one measurement over a simulated store, made by the harness's interpreter."""
    python = Path(os.environ["BENCH_ROOT"]) / "venv/bin/python"
    command = [python, "-m", "tests.scale_child", *what]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def judge(server, figures):
    """Return the lines of the targets that one server's figures are about."""
    if server == FAR:
        return list(targets.speeds(targets.FAR, ratios(figures)))
    lines = targets.speeds(targets.SPEED, ratios(figures))
    return [*lines, *targets.first_batches(figures), *targets.memory(figures)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all peers, 0 and 2 workers, 3 repeats")
    parser.add_argument("--server", help="only this one, and nothing simulated")
    parser.add_argument("--read", type=Path, help="only show a results file of the harness")
    given = parser.parse_args()
    if given.read is not None:
        rows = json.loads(given.read.read_text())
        for server in dict.fromkeys(row["server"] for row in rows):
            figures = medians([row for row in rows if row["server"] == server])
            show(figures)
            targets.show_targets(judge(server, figures))
        return
    lines = []
    for server in [given.server] if given.server else [NEAR, FAR]:
        figures = medians(measure(server, full=given.full))
        print(f"\n{server}\n")
        show(figures)
        lines += judge(server, figures)
    if given.server is None:
        lines += targets.scale(simulate("resume"), simulate("half", "next_use"))
    print()
    targets.show_targets(lines)


if __name__ == "__main__":
    main()

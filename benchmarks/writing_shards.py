"""P12: writing the same records as shards, by Quark and by its peers, in turn; Quark's read back.

    python benchmarks/writing_shards.py --peers /path/to/venv/bin/python [--records 100000]

`--peers` is a Python that has litdata and mosaicml-streaming; without it only Quark is measured.
Each contestant runs in a process of its own, imports before the clock starts. Told are the median and
the least of the rounds, since strangers on the machine only ever add. Peers read a line, decode it with
orjson, and write it. Ratios are of the medians, and of the least.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RECORDS = 100_000
ROUNDS = 3

CLOCK = """
import json, sys, time
source, out = sys.argv[1:3]
{imports}
wall, cpu = time.perf_counter(), time.process_time()
{work}
print()
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))
"""
QUARK = CLOCK.format(
    imports="""
import awscrt.checksums, numpy, pyarrow.parquet, zstandard
from tools_utilities.chunk_publisher import Uploader
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.scripts.create_sharded_dataset import main
from tools_utilities.shard_format import shard_formats
open_store(StoreSpec(uri="file:///tmp")), shard_formats()
""",
    work='main(["--input_file", source, "--output_dir", out, "--num_shards", "4", *sys.argv[3:]])',
)
MDS = CLOCK.format(
    imports="import orjson\nfrom streaming import MDSWriter",
    work="""
columns = {"id": "int", "text": "str", "label": "int", "score": "float64"}
packed = sys.argv[3] if len(sys.argv) > 3 else None
with MDSWriter(out=out, columns=columns, size_limit=100_000_000, compression=packed) as writer:
    for line in open(source, "rb"):
        writer.write(orjson.loads(line))
""",
)
LITDATA = CLOCK.format(
    imports="import orjson\nfrom litdata.streaming.writer import BinaryWriter",
    work="""
writer = BinaryWriter(out, chunk_bytes=100_000_000)
for index, line in enumerate(open(source, "rb")):
    writer[index] = orjson.loads(line)
writer.done()
writer.merge()
""",
)


def write_records(path: Path, count: int) -> None:
    chance = random.Random(0)  # noqa: S311 - the same records every time
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 10))) for _ in range(5000)]
    with path.open("w") as file:
        for number in range(count):
            text = " ".join(chance.choices(words, k=140))
            row = {"id": number, "text": text, "label": number % 10, "score": chance.random()}
            file.write(json.dumps(row) + "\n")


def measure(command: list[str], out: Path) -> tuple[float, float]:
    """Run one contestant; returns wall and processor seconds."""
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall, cpu = json.loads(done.stdout.splitlines()[-1])
    return wall, cpu


def column(found: list[tuple[float, float]], at: int) -> tuple[float, float]:
    """Return the median and the least of wall (0) or processor (1) seconds."""
    values = [one[at] for one in found]
    return statistics.median(values), min(values)


def check(source: Path, out: Path) -> None:
    """Read Quark's shards back and compare with what was written."""
    from tools_utilities.sample_source import SourceOptions, open_source

    def rows(place: Path) -> list[Any]:
        blocks = open_source(str(place), SourceOptions()).blocks(0, None)
        return sorted((row for block in blocks for row in block.records), key=lambda row: row["id"])

    if rows(out) != rows(source):
        raise SystemExit(f"{out}: not what was written")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="a Python that has litdata and mosaicml-streaming")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    quark = [sys.executable, "-c", QUARK]
    programs: dict[str, tuple[list[str], list[str]]] = {
        "quark jsonl": (quark, []),
        "quark jsonl.zst": (quark, ["--compression", "zstd"]),
        "quark parquet": (quark, ["--format", "parquet"]),
        "quark jsonl.zst, one worker": (quark, ["--compression", "zstd", "--workers", "1"]),
        "quark parquet, one worker": (quark, ["--format", "parquet", "--workers", "1"]),
    }
    if options.peers:
        programs |= {
            "MDSWriter": ([options.peers, "-c", MDS], []),
            "MDSWriter zstd:3": ([options.peers, "-c", MDS], ["zstd:3"]),
            "LitData BinaryWriter": ([options.peers, "-c", LITDATA], []),
        }
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.jsonl", Path(folder) / "out"
        write_records(source, options.records)
        megabytes = source.stat().st_size / 1e6
        for number in range(options.rounds):
            for name, (program, more) in programs.items():
                results[name].append(measure([*program, str(source), str(out), *more], out))
                if not number and name.startswith("quark"):
                    check(source, out)
    print(f"{options.records:,} records, {megabytes:.0f} MB")
    print("| writer | wall s, least | CPU s, least | MB/s |\n| --- | --- | --- | --- |")
    shown = {name: [column(found, at) for at in (0, 1)] for name, found in results.items()}
    for name, ((wall, least), (cpu, least_cpu)) in shown.items():
        rates = f"{megabytes / wall:.0f}, {megabytes / least:.0f}"
        print(f"| {name} | {wall:.2f}, {least:.2f} | {cpu:.2f}, {least_cpu:.2f} | {rates} |")
    for name in (name for name in shown if name.startswith("quark") and options.peers):
        for peer in (peer for peer in shown if not peer.startswith("quark")):
            times, work = (
                ", ".join(f"{theirs / own:.1f}x" for theirs, own in zip(*pair, strict=True))
                for pair in zip(shown[peer], shown[name], strict=True)
            )
            print(f"{name} over {peer}: wall {times}; CPU {work}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

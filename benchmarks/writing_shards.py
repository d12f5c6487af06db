"""P12: writing the same records as shards, by Quark and by its peers, in turn; Quark's read back.

    python benchmarks/writing_shards.py --peers /path/to/venv/bin/python [--records 100000]

`--peers` is a Python that has litdata and mosaicml-streaming; without it only Quark is measured.
Each contestant runs in a process of its own, imports before the clock starts; wall and processor
seconds are the medians of the rounds. Peers read a line, decode it with json, and write it.
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
    imports="from streaming import MDSWriter",
    work="""
columns = {"id": "int", "text": "str", "label": "int", "score": "float64"}
packed = sys.argv[3] if len(sys.argv) > 3 else None
with MDSWriter(out=out, columns=columns, size_limit=100_000_000, compression=packed) as writer:
    for line in open(source):
        writer.write(json.loads(line))
""",
)
LITDATA = CLOCK.format(
    imports="from litdata.streaming.writer import BinaryWriter",
    work="""
writer = BinaryWriter(out, chunk_bytes=100_000_000)
for index, line in enumerate(open(source)):
    writer[index] = json.loads(line)
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


def check(source: Path, out: Path) -> None:
    """Read Quark's shards back and compare with what was written."""
    from tools_utilities.sample_source import SourceOptions, open_source

    def rows(place: Path) -> list[dict]:
        blocks = open_source(str(place), SourceOptions()).blocks(0, None)
        return sorted((row for block in blocks for row in block.records), key=lambda row: row["id"])

    if rows(out) != rows(source):
        raise SystemExit(f"{out}: not what was written")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="a Python that has litdata and mosaicml-streaming")
    parser.add_argument("--records", type=int, default=RECORDS)
    options = parser.parse_args()
    quark = [sys.executable, "-c", QUARK]
    programs: dict[str, tuple[list[str], list[str]]] = {
        "quark jsonl": (quark, []),
        "quark jsonl.zst": (quark, ["--compression", "zstd"]),
        "quark parquet": (quark, ["--format", "parquet"]),
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
        for number in range(ROUNDS):
            for name, (program, more) in programs.items():
                results[name].append(measure([*program, str(source), str(out), *more], out))
                if not number and name.startswith("quark"):
                    check(source, out)
    middle = {
        name: [statistics.median(one) for one in zip(*r, strict=True)]
        for name, r in results.items()
    }
    print(f"{options.records:,} records, {megabytes:.0f} MB")
    print("| writer | wall s | CPU s | MB/s |\n| --- | --- | --- | --- |")
    for name, (wall, cpu) in middle.items():
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {megabytes / wall:.0f} |")
    for name in (name for name in middle if name.startswith("quark") and options.peers):
        for peer in (peer for peer in middle if not peer.startswith("quark")):
            wall, cpu = (
                theirs / own for theirs, own in zip(middle[peer], middle[name], strict=True)
            )
            print(f"{name} over {peer}: wall {wall:.1f}x, CPU {cpu:.1f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())

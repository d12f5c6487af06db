"""P12: seconds to write the same records as shards, by Quark and by its peers; each read back.

    python benchmarks/writing_shards.py --peers /path/to/venv/bin/python [--records 200000]

`--peers` is a Python that has litdata and mosaicml-streaming; without it only Quark is measured.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORDS = 200_000
RUNS = 3

MDS = """
import json, sys
from streaming import MDSWriter
source, out = sys.argv[1:3]
with MDSWriter(out=out, columns={"id": "int", "text": "str"}, size_limit=100_000_000) as writer:
    for line in open(source):
        writer.write(json.loads(line))
"""
LITDATA = """
import json, sys
from litdata.streaming.writer import BinaryWriter
source, out = sys.argv[1:3]
writer = BinaryWriter(out, chunk_bytes=100_000_000)
for index, line in enumerate(open(source)):
    writer[index] = json.loads(line)
writer.done()
writer.merge()
"""


def write_records(path: Path, count: int) -> None:
    with path.open("w") as file:
        for number in range(count):
            text = f"record {number} " * (20 + number % 40)
            file.write(json.dumps({"id": number, "text": text}) + "\n")


def quark_command(source: Path, out: Path, *more: str) -> list[str]:
    script = (
        Path(__file__).resolve().parents[1] / "tools_utilities/scripts/create_sharded_dataset.py"
    )
    files = ("--input_file", str(source), "--output_dir", str(out))
    return [sys.executable, str(script), *files, "--num_shards", "4", *more]


def best_of(command: list[str], out: Path) -> float:
    """Return the least seconds of RUNS runs, imports and process start included."""
    seconds = []
    for _ in range(RUNS):
        shutil.rmtree(out, ignore_errors=True)
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def check(out: Path, count: int) -> None:
    """Read Quark's shards back and compare with what was written."""
    from tools_utilities.sample_source import SourceOptions, open_source

    source = open_source(str(out), SourceOptions())
    ids = sorted(row["id"] for block in source.blocks(0, None) for row in block.records)
    if ids != list(range(count)):
        raise SystemExit(f"{out}: not what was written")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="a Python that has litdata and mosaicml-streaming")
    parser.add_argument("--records", type=int, default=RECORDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.jsonl", Path(folder) / "out"
        write_records(source, options.records)
        megabytes = source.stat().st_size / 1e6
        results = {}
        for name, more in {
            "quark jsonl": (),
            "quark jsonl.zst": ("--compression", "zstd"),
            "quark parquet": ("--format", "parquet"),
        }.items():
            results[name] = best_of(quark_command(source, out, *more), out)
            check(out, options.records)
        peers = {"MDSWriter": MDS, "litdata BinaryWriter": LITDATA} if options.peers else {}
        for name, program in peers.items():
            results[name] = best_of([options.peers, "-c", program, str(source), str(out)], out)
    for name, seconds in results.items():
        rate = f"{options.records / seconds:10,.0f} records/s  {megabytes / seconds:7.1f} MB/s"
        print(f"{name:22}  {seconds:6.2f} s  {rate}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Memory and place at scale, overlap, and a cache of half the data; each in a fresh process.

    python benchmarks/scale.py            # minutes
    python benchmarks/scale.py --full     # every sample of 1,000,000 objects and of 20 GB

Stores are simulated in the process: no server, no network, no checksums to verify.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FULL = "--full" in sys.argv
MEASUREMENTS = (
    ("1,000,000 objects of 1 KB", "objects", "1000000", "10000000" if FULL else "50000"),
    ("one object of 20 GB", "huge", "20", "20000000" if FULL else "300000"),
    ("P7: the middle of 10^9 samples", "resume"),
    ("0.2 s fetch, 0.2 s step, read ahead", "overlap", "auto"),
    ("the same, not read ahead", "overlap", "0"),
    ("P10: half the data cached, next use", "half", "next_use"),
    ("P10: half the data cached, LRU", "half", "lru"),
)


def main() -> None:
    for name, *what in MEASUREMENTS:
        command = [sys.executable, "-m", "tests.scale_child", *what]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        print(f"{name}: {json.dumps(json.loads(done.stdout.splitlines()[-1]))}", flush=True)


if __name__ == "__main__":
    main()

"""One cell of the table of faults: a reader in a process of its own, and how it ended."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fault_readers import COUNT, FORMATS, KEY, PER_SHARD, REGION, SECRET, read_delivered

from tests import servers

REPOSITORY = Path(__file__).resolve().parent.parent
BUCKETS = ("summed", "plain")
READERS = Path(__file__).with_name("fault_readers.py")
VICTIM = 2 * PER_SHARD + 7
"""The sample whose text is broken; its shard is the one that is cut or removed."""
LIMIT_SECONDS = 120.0
WORKERS, OTHER_WORKERS = 2, 3
_STATUS = re.compile(
    r"\b(40[034]|412|416|50[03])\b|NoSuchKey|does not exist|Not ?Found|no such|denied",
    re.IGNORECASE,
)
_CAUSE = re.compile(
    r"checksum|hash|crc|md5|truncat|short|incomplete|unexpected end|differ|corrupt|bytes|size|content-length|"
    r"state|num_workers|workers", re.IGNORECASE,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One loader with its options."""

    loader: str
    safe: bool
    title: str

    @property
    def format(self):
        return FORMATS[self.loader]


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    code: int | None
    """None: it had to be killed."""
    said: str
    seconds: float


class Bench:
    """The servers, the data, and the way to start a reader."""

    def __init__(self, folder, endpoint, proxy, content):
        self.folder, self.endpoint, self.proxy, self.content = folder, endpoint, proxy, content
        self._cells = 0
        self.limit_seconds = LIMIT_SECONDS

    def learn_pace(self, seconds):
        """Give a reader that takes so long without any fault at least five times as much with one."""
        self.limit_seconds = max(LIMIT_SECONDS, 5 * seconds)

    def cell(self):
        """Return a fresh folder."""
        self._cells += 1
        path = self.folder / f"cell-{self._cells}"
        path.mkdir()
        return path

    def tidy(self):
        """Remove what a reader left in the buckets, such as Quark's counts: the next finds none of it."""
        client = servers.s3_client(self.endpoint)
        for bucket in BUCKETS:
            for item in client.list_objects_v2(Bucket=bucket).get("Contents", []):
                if not (self.content / item["Key"]).is_file():
                    client.delete_object(Bucket=bucket, Key=item["Key"])
        client.close()

    def config(self, row, cell, mode, **rest):
        return {
            "loader": row.loader, "safe": row.safe, "mode": mode, "endpoint": self.proxy.url,
            "bucket": "plain", "name": "a", "cache": str(cell / "cache"), "workers": WORKERS,
            "out": str(cell / "delivered"), **rest,
        }  # fmt: skip

    def victim(self, row):
        """Return the key of the shard that holds the broken sample, and where in it that is."""
        marker = f"sample-{VICTIM:06d}: ".encode()
        for path in sorted((self.content / row.format / "a").iterdir()):
            at = path.read_bytes().find(marker)
            if at >= 0:
                return f"{row.format}/a/{path.name}", at + len(marker) + 100
        raise LookupError(marker)


def start(config, **variables):
    """Start a reader in a session of its own."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "S3_"))},
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true", "OMP_NUM_THREADS": "1",
        "S3_ENDPOINT_URL": config["endpoint"], "AWS_ENDPOINT_URL": config["endpoint"],
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", **variables,
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(READERS), json.dumps(config)],
        stdout=subprocess.DEVNULL, stderr=Path(f"{config['out']}.err").open("ab"),
        env=environment, start_new_session=True, cwd=Path(config["out"]).parent,
    )  # fmt: skip


def finish(process, config, limit):
    """Wait for a reader's end; kill its whole session when it takes too long."""
    began = time.monotonic()
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = None
    kill(process)
    said = Path(f"{config['out']}.err").read_text(errors="replace")
    return Ended(code, said, time.monotonic() - began)


def kill(process):
    """End a reader with its workers, as a machine's reset does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(bench, config):
    return finish(start(config), config, bench.limit_seconds)


def verdict(ended, config, *, base=0, also=(), shared=0):
    """Return how a cell ended; `also` are files of what was delivered before or beside.

    `shared`: so many samples may be left out or repeated, where ranks must take equal steps.
    """
    numbers, wrong, told = read_delivered(Path(config["out"]))
    for path in also:
        more, more_wrong, _ = read_delivered(path)
        numbers, wrong = numbers + more, wrong + more_wrong
    if ended.code is None:
        return f"hang ({ended.seconds:.0f} s)"
    if ended.code != 0 or not told:
        return failure(ended)
    expected = set(range(base, base + COUNT))
    missing = len(expected - set(numbers))
    repeated = sum(count - 1 for number, count in numbers.items() if number in expected)
    foreign = sum(count for number, count in numbers.items() if number not in expected)
    parts = {"wrong bytes": wrong, "missing": missing, "repeated": repeated, "foreign": foreign}
    told_parts = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
    if not told_parts:
        return "right"
    if not wrong and not foreign and max(missing, repeated) < shared:
        return f"right ({told_parts}, for equal steps)"
    return f"**silent wrong** ({told_parts})"


def failure(ended):
    """Return a failure's kind and whether it names its cause."""
    lines = [
        line
        for line in ended.said.splitlines()
        if re.match(r"^[\w.]+(Error|Exception|Exit)\w*\b", line)
    ]
    last = lines[-1] if lines else ended.said.strip().rpartition("\n")[2]
    kind = last.partition(":")[0].rpartition(".")[2][:40]
    tail = "\n".join(lines[-3:])
    named = (
        re.search(r"shard|chunk|\.tar|\.jsonl|\.mds|\.bin", tail)
        or _STATUS.search(tail)
        or _CAUSE.search(tail)
    )
    return f"{'named error' if named else 'error'}: {kind}"

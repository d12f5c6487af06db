"""How Quark and its peers end under the same faults: the table of docs/reliability.md.

    BENCH_PYTHON benchmarks/peers_under_faults.py [--only quark,mds] [--faults "404 after list"]

BENCH_PYTHON is the Python of the peers' harness (docs/benchmarks.md), in which Quark can be imported
too; with `torchdata` in it the loader of Hugging Face's resume is there. Everything runs on loopback: a
moto server, the fault proxy before it, each cell in processes of its own with a time limit. Every cell
reads 421 samples in 7 shards with two loader workers, and compares all that was delivered.

right         every sample once, its bytes as they were (or the few that ranks must share out, said)
named error   a failure that names the object, or what is wrong with it
error         a failure that does not
silent wrong  the end was reached and samples are wrong, missing or repeated
hang          no end within the limit
not offered   the library has no such thing
"""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]

from fault_cells import (  # noqa: E402 - after the path
    BUCKETS,
    OTHER_WORKERS,
    READERS,
    VICTIM,
    Bench,
    Row,
    failure,
    finish,
    kill,
    run,
    start,
    verdict,
)
from fault_readers import (  # noqa: E402 - after the path
    BATCH,
    KEY,
    REGION,
    RESUMES,
    SECOND,
    SECRET,
    read_delivered,
)

from tests import faults, servers  # noqa: E402 - after the path
from tests.fault_proxy import ALWAYS, FaultProxy, Where  # noqa: E402 - after the path

ROWS = (
    ("quark", False, "Quark"),
    ("mds", False, "MosaicML Streaming"),
    ("mds", True, "MosaicML Streaming, `validate_hash`, `local` of its own"),
    ("litdata", False, "LitData"),
    ("wds", False, "WebDataset"),
    ("wds", True, "WebDataset, `cache_dir`"),
    ("hf", False, "HF datasets, `streaming=True`"),
    ("s3torch", False, "s3torchconnector"),
)
KEPT_TRIES = 3
FILLS = 3
"""Tries to fill a cache without any fault: one loader seldom fails at that."""
CACHELESS = {("wds", False), ("hf", False), ("s3torch", False)}


# The faults.


def flip_once(at):
    """Turn one bit of an object over, at one place of it, the first time that place is sent."""
    struck = []

    async def act(exchange):
        response = await exchange.forward()
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", exchange.request.headers.get("range", ""))
        begin = int(asked[1]) if asked else 0
        body = bytearray(response.body)
        if not struck and exchange.request.method == "GET" and begin <= at < begin + len(body):
            struck.append(True)
            body[at - begin] ^= 1
        await exchange.send(type(response)(response.status, response.headers, bytes(body)))

    act.fault_name = "bit flip"
    return act


def transit(bench, row, fault, bucket="plain", times=1, methods="GET"):
    cell = bench.cell()
    key, _ = bench.victim(row)
    bench.proxy.inject(fault, Where(methods, re.escape(key) + "$", listing=False), times=times)
    config = bench.config(row, cell, "epoch", bucket=bucket)
    return verdict(run(bench, config), config)


def bit_flip(bench, row, bucket):
    return transit(bench, row, flip_once(bench.victim(row)[1]), bucket, times=ALWAYS)


def truncation(bench, row):
    return transit(bench, row, faults.short_body(agreeing=True))


def gone(bench, row):
    return transit(bench, row, faults.missing(), times=ALWAYS, methods="GET HEAD")


def cache_flip(bench, row):
    """Fill the cache, turn one bit of it over, read again."""
    if (row.loader, row.safe) in CACHELESS:
        return "no cache"
    for _ in range(FILLS):
        cell = bench.cell()
        config = bench.config(row, cell, "epoch")
        told = verdict(run(bench, config), config)
        if told == "right":
            break
    else:
        return f"first pass: {told}"
    marker, flipped = f"sample-{VICTIM:06d}: ".encode(), 0
    for path in (cell / "cache").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        at = data.find(marker)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(marker) + 100)
                file.write(bytes([data[at + len(marker) + 100] ^ 1]))
            flipped += 1
    if not flipped:
        return "not kept in the cache as it was sent"
    config["out"] = str(cell / "again")
    return verdict(run(bench, config), config)


def killed(bench, row):
    """Kill a reader and its workers in the middle, twice; then read an epoch with what they left."""
    cell = bench.cell()
    for number in range(2):
        config = bench.config(row, cell, "epoch", pause=0.05, out=str(cell / f"killed-{number}"))
        process, deadline = start(config), time.monotonic() + 60
        while not sum(read_delivered(Path(config["out"]))[0].values()) >= 10 * BATCH * (number + 1):
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        kill(process)
    config = bench.config(row, cell, "epoch")
    return verdict(run(bench, config), config)


def uneven(bench, row):
    """Two ranks of a trainer over a number of samples that two cannot share."""
    cell, [port] = bench.cell(), servers.free_ports(1)
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    configs = [
        bench.config(row, cell, "ranks", out=str(cell / f"rank-{rank}")) for rank in range(2)
    ]
    processes = [
        start(config, RANK=str(rank), LOCAL_RANK=str(rank), **shared)
        for rank, config in enumerate(configs)
    ]
    ended = []
    for process, config in zip(processes, configs, strict=True):
        ended.append(finish(process, config, bench.limit_seconds if not ended else 5.0))
    worst = max(ended, key=lambda one: (one.code is None, one.code != 0))
    config = configs[ended.index(worst)]
    others = [Path(c["out"]) for c in configs if c is not config]
    return verdict(worst, config, also=others, shared=2 * BATCH)


def resumed(bench, row):
    """Save in the middle, go on with another number of workers."""
    if row.loader not in RESUMES:
        return "not offered"
    cell = bench.cell()
    first = bench.config(
        row, cell, "save", state=str(cell / "state"), batches=20, out=str(cell / "before")
    )
    ended = run(bench, first)
    if not (cell / "state").exists():
        return f"saving: {failure(ended)}"
    then = bench.config(row, cell, "resume", state=str(cell / "state"), workers=OTHER_WORKERS)
    return verdict(run(bench, then), then, also=[Path(first["out"])])


def same_names(bench, row):
    """Read two datasets whose files are called the same, with one cache folder given for both."""
    config = bench.config(row, bench.cell(), "twice")
    return verdict(run(bench, config), config, base=SECOND)


class PlainProxy(FaultProxy):
    """Ends each connection after its answer, so that a client shared by forked workers does no harm."""

    keeps_connections = False

    async def _answer(self, exchange):
        if not self.keeps_connections:
            head = exchange._head  # noqa: SLF001 - a proxy's own parts
            closing = {"Connection": "close"}
            exchange._head = lambda status, headers: head(status, {**headers, **closing})  # noqa: SLF001
            exchange.ended = True
        await super()._answer(exchange)


def kept_connections(bench, row):
    """Read from a server that keeps connections open, as all but toys do; the worst of several times.

    Workers that are forked with a client that was used already would share its connection.
    """
    bench.proxy.keeps_connections = True
    told = []
    try:
        for _ in range(KEPT_TRIES):
            config = bench.config(row, bench.cell(), "epoch")
            told.append(verdict(run(bench, config), config))
    finally:
        bench.proxy.keeps_connections = False
    failed = [one for one in told if one != "right"]
    return f"{failed[0]}, {len(failed)} of {len(told)} times" if failed else "right"


def no_fault(bench, row):
    """Read an epoch: what is wrong here is wrong with the set-up."""
    config = bench.config(row, bench.cell(), "epoch")
    ended = run(bench, config)
    bench.learn_pace(ended.seconds)
    return verdict(ended, config)


FAULTS = {
    "no fault": no_fault,
    "no fault, connections kept": kept_connections,
    "bit flip, store keeps checksums": lambda bench, row: bit_flip(bench, row, "summed"),
    "bit flip, store keeps none": lambda bench, row: bit_flip(bench, row, "plain"),
    "bit flip in the cache": cache_flip,
    "truncated, length agrees": truncation,
    "404 after list": gone,
    "killed twice, started again": killed,
    "uneven ranks": uneven,
    "resume, 2 → 3 workers": resumed,
    "same names in two prefixes": same_names,
}


@contextlib.contextmanager
def benches(folder):
    """Start the servers and put the data there."""
    content = folder / "content"
    made = subprocess.run(
        [sys.executable, str(READERS), json.dumps({"mode": "make", "out": str(content)})],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        raise SystemExit(f"the data could not be written:\n{made.stderr[-2000:]}")
    with servers.moto_server(folder) as endpoint, PlainProxy(endpoint) as proxy:
        upload(endpoint, content)
        yield Bench(folder, endpoint, proxy, content)


def upload(endpoint, content):
    """Put every object into two buckets: with the CRC that today's SDKs send, and without any."""
    import boto3
    from botocore.config import Config

    for bucket, when in zip(BUCKETS, ("when_supported", "when_required"), strict=True):
        client = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
            region_name=REGION,
            config=Config(request_checksum_calculation=when, s3={"addressing_style": "path"}),
        )  # fmt: skip
        client.create_bucket(Bucket=bucket)
        for path in sorted(content.rglob("*")):
            if path.is_file():
                key = str(path.relative_to(content))
                # Readable by all: WebDataset opens plain URLs.
                client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes(), ACL="public-read")
        client.close()


def table(results, names):
    """Return the results as markdown."""
    lines = [f"| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    lines += [
        f"| {row.title} | {' | '.join(cells[name] for name in names)} |" for row, cells in results
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", help="loaders, with commas between")
    parser.add_argument("--faults", help="a part of the names of the faults")
    parser.add_argument("--keep", action="store_true", help="keep what the cells wrote")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else None
    rows = [Row(*row) for row in ROWS if wanted is None or row[0] in wanted]
    names = [name for name in FAULTS if not given.faults or given.faults in name]
    folder = Path(tempfile.mkdtemp(prefix="peers-under-faults-"))
    results = []
    try:
        with benches(folder) as bench:
            for row in rows:
                cells = {}
                for name in names:
                    bench.proxy.clear()
                    bench.tidy()
                    began = time.monotonic()
                    cells[name] = FAULTS[name](bench, row)
                    took = time.monotonic() - began
                    print(
                        f"{row.title} · {name}: {cells[name]} ({took:.0f} s)",
                        file=sys.stderr,
                        flush=True,
                    )
                results.append((row, cells))
        versions = [sys.executable, str(READERS), json.dumps({"mode": "versions"})]
        print(subprocess.run(versions, capture_output=True, text=True, check=True).stdout)
        print(table(results, names))
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Quark and its peers, each read as its documentation says: what `peers_under_faults.py` starts.

    python fault_readers.py '{"loader": "mds", "mode": "epoch", …}'

Every sample that a training loop would get is written to a file, as its number and whether its text is
right, at the moment it is delivered: what was there before a kill or a hang can be seen too.
"""

import collections
import hashlib
import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

KEY, SECRET, REGION = "bench-key", "bench-secret", "us-east-1"
BATCH, PER_SHARD, SHARDS = 8, 60, 7
COUNT = PER_SHARD * SHARDS + 1  # one more than ranks, workers and batches can share evenly
SECOND = 100_000
"""What the numbers of the second dataset begin with."""
FORMATS = {
    "quark": "jsonl",
    "hf": "jsonl",
    "s3torch": "jsonl",
    "mds": "mds",
    "litdata": "lit",
    "wds": "wds",
}


def text_of(number):
    """Return the text of a sample; what is wrong in it shows."""
    words = hashlib.sha256(str(number).encode()).hexdigest()
    return f"sample-{number:06d}: {words * 12}"


def record(number):
    return {"id": number, "text": text_of(number)}


# The data, written by the peers' own writers.


def make(folder):
    """Write both datasets in every format."""
    for name, base in (("a", 0), ("b", SECOND)):
        numbers = range(base, base + COUNT)
        _make_jsonl(folder / "jsonl" / name, numbers)
        _make_mds(folder / "mds" / name, numbers)
        _make_wds(folder / "wds" / name, numbers)
        _make_litdata(folder / "lit" / name, numbers)


def _make_jsonl(folder, numbers):
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        mine = numbers[shard * PER_SHARD : (shard + 1) * PER_SHARD + (shard == SHARDS - 1)]
        lines = "".join(json.dumps(record(number)) + "\n" for number in mine)
        (folder / f"shard-{shard:05d}.jsonl").write_text(lines)


def _make_mds(folder, numbers):
    from streaming import MDSWriter

    columns = {"id": "int", "text": "str"}
    # The sums are there; a reader looks at them only if it is told to.
    with MDSWriter(out=str(folder), columns=columns, size_limit=58_000, hashes=["xxh64"]) as writer:
        for number in numbers:
            writer.write(record(number))


def _make_wds(folder, numbers):
    import webdataset

    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        mine = numbers[shard * PER_SHARD : (shard + 1) * PER_SHARD + (shard == SHARDS - 1)]
        with webdataset.TarWriter(str(folder / f"shard-{shard:05d}.tar")) as writer:
            for number in mine:
                data = json.dumps(record(number)).encode()
                writer.write({"__key__": f"{number:06d}", "json": data})


def _make_litdata(folder, numbers):
    import litdata

    litdata.optimize(
        fn=record, inputs=list(numbers), output_dir=str(folder), chunk_size=PER_SHARD, num_workers=1,
        reorder_files=False, verbose=False,
    )  # fmt: skip


# The loaders. Each returns what a training loop iterates over: batches, as lists of samples.


def quark(config):
    from brain.ml.dataset_shards.stream_dataset import StreamDataset
    from brain.ml.dataset_shards.stream_loader import StreamLoader
    from tools_utilities.scripts.s3_streaming_manager import StreamingManager

    manager = StreamingManager(
        config["bucket"], cache_dir=config["cache"], endpoint_url=config["endpoint"]
    )
    dataset = StreamDataset(manager, f"jsonl/{config['name']}/", batch_size=BATCH)
    return StreamLoader(dataset, batch_size=BATCH, num_workers=config["workers"], collate_fn=list)


def mds(config):
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    if config["mode"] != "ranks":
        clean_stale_shared_memory()  # as its documentation tells to do after a crash
    local = Path(config["cache"], config["name"]) if config["safe"] else Path(config["cache"])
    dataset = StreamingDataset(
        remote=f"s3://{config['bucket']}/mds/{config['name']}", local=str(local), batch_size=BATCH,
        validate_hash="xxh64" if config["safe"] else None,
    )  # fmt: skip
    # Torch's own collate: it counts what it has given by the batch's columns.
    return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=config["workers"])


def litdata(config):
    import litdata as library
    from litdata.streaming import downloader

    # It takes no http:// endpoint otherwise; only for a server on loopback.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # noqa: SLF001 - there is no public way
    access = {
        "endpoint_url": config["endpoint"], "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET, "region_name": REGION,
    }  # fmt: skip
    dataset = library.StreamingDataset(
        f"s3://{config['bucket']}/lit/{config['name']}", cache_dir=config["cache"],
        storage_options=access,
    )  # fmt: skip
    return library.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=config["workers"])


def wds(config):
    import webdataset
    from torch.utils.data import DataLoader

    keys = [f"wds/{config['name']}/shard-{shard:05d}.tar" for shard in range(SHARDS)]
    urls = [f"{config['endpoint']}/{config['bucket']}/{key}" for key in keys]
    rest = {"cache_dir": config["cache"]} if config["safe"] else {}
    Path(config["cache"]).mkdir(exist_ok=True)
    if "RANK" in os.environ:
        rest["nodesplitter"] = webdataset.split_by_node
    dataset = webdataset.WebDataset(urls, shardshuffle=False, **rest).decode()
    dataset = dataset.map(lambda sample: sample["json"])
    return DataLoader(dataset, batch_size=BATCH, num_workers=config["workers"], collate_fn=list)


def hf(config):
    import datasets
    from torch.utils.data import DataLoader

    datasets.disable_progress_bars()
    client = {"endpoint_url": config["endpoint"], "region_name": REGION}
    pattern = f"s3://{config['bucket']}/jsonl/{config['name']}/*.jsonl"
    dataset = datasets.load_dataset(
        "json", data_files=pattern, split="train", streaming=True,
        storage_options={"key": KEY, "secret": SECRET, "client_kwargs": client},
    )  # fmt: skip
    if "RANK" in os.environ:
        from datasets.distributed import split_dataset_by_node

        ranks = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        dataset = split_dataset_by_node(dataset, **ranks)
    rest = {"batch_size": BATCH, "num_workers": config["workers"], "collate_fn": list}
    if config["mode"] in {"save", "resume"}:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(dataset, **rest)
    return DataLoader(dataset, **rest)


def s3torch(config):
    from s3torchconnector import S3ClientConfig, S3IterableDataset
    from torch.utils.data import DataLoader, IterableDataset

    objects = S3IterableDataset.from_prefix(
        f"s3://{config['bucket']}/jsonl/{config['name']}/", region=REGION,
        endpoint=config["endpoint"], s3client_config=S3ClientConfig(force_path_style=True),
        enable_sharding=True,
    )  # fmt: skip

    class Lines(IterableDataset):
        def __iter__(self):
            for item in objects:
                for line in item.read().splitlines():
                    yield json.loads(line)

    return DataLoader(Lines(), batch_size=BATCH, num_workers=config["workers"], collate_fn=list)


LOADERS = {"quark": quark, "mds": mds, "litdata": litdata, "wds": wds, "hf": hf, "s3torch": s3torch}
RESUMES = {"quark", "mds", "litdata", "hf"}


# What is done with them.


class Delivered:
    """Notes every sample as it is delivered."""

    def __init__(self, path):
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - until the process ends

    def take(self, batch):
        """Note a batch: a list of samples, or columns as torch's collate makes them."""
        if isinstance(batch, dict):
            pairs = zip(batch["id"], batch["text"], strict=True)
        else:
            pairs = ((sample["id"], sample["text"]) for sample in batch)
        for number, text in pairs:
            self._file.write(f"{int(number)} {int(text == text_of(int(number)))}\n")

    def end(self):
        self._file.write("end\n")


def epoch(config, out):
    """Read one epoch, slowly enough to be killed in it where that is asked."""
    for batch in LOADERS[config["loader"]](config):
        out.take(batch)
        time.sleep(config.get("pause", 0))


def twice(config, out):
    """Read a dataset and then one whose files are called the same; only the second counts."""
    for batch in LOADERS[config["loader"]]({**config, "name": "a"}):
        del batch
    for batch in LOADERS[config["loader"]]({**config, "name": "b"}):
        out.take(batch)


def ranks(config, out):
    """Read as one of two ranks that exchange gradients after each step, and wait for all at the end."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    gradient = torch.ones(4)
    for batch in LOADERS[config["loader"]](config):
        out.take(batch)
        dist.all_reduce(gradient)
    dist.barrier()
    dist.destroy_process_group()


def save(config, out):
    """Deliver some batches, and keep the loader's state after the last of them."""
    import torch

    loader = LOADERS[config["loader"]](config)
    for number, batch in enumerate(loader, start=1):
        out.take(batch)
        if number == config["batches"]:
            torch.save(loader.state_dict(), config["state"])
            break


def resume(config, out):
    """Go on from the state, with as many workers as are asked for."""
    import torch

    loader = LOADERS[config["loader"]](config)
    loader.load_state_dict(torch.load(config["state"], weights_only=True))
    for batch in loader:
        out.take(batch)


MODES = {"epoch": epoch, "twice": twice, "ranks": ranks, "save": save, "resume": resume}


def versions():
    """Print what is compared."""
    from importlib.metadata import version

    names = ("mosaicml-streaming", "litdata", "webdataset", "datasets", "s3torchconnector", "torch")
    sys.stdout.write(", ".join(f"{name} {version(name)}" for name in names) + "\n")


def main():
    config = json.loads(sys.argv[1])
    importlib.import_module("torch").set_num_threads(1)
    if config["mode"] == "make":
        shutil.rmtree(config["out"], ignore_errors=True)
        make(Path(config["out"]))
    elif config["mode"] == "versions":
        versions()
    else:
        out = Delivered(config["out"])
        MODES[config["mode"]](config, out)
        out.end()


def read_delivered(path):
    """Return the numbers delivered (Counter), how many had a wrong text, and whether the end was told."""
    numbers, wrong, ended = collections.Counter(), 0, False
    if path.exists():
        for line in path.read_text().splitlines():
            if line == "end":
                ended = True
            elif len(line.split()) == 2:
                number, right = line.split()
                numbers[int(number)] += 1
                wrong += right == "0"
    return numbers, wrong, ended


if __name__ == "__main__":
    main()

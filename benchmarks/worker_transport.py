"""How a worker's batches may cross to the process that delivers them: ways compared, interleaved.

    python benchmarks/worker_transport.py [--rounds 5] [--batches 3000]

One worker process, batches of 32 made in advance, so that reading and decoding of shards is in no
figure: text rows of 989 bytes of five fields, and token rows of 2,048 uint16. Prints medians of
microseconds a sample: wall clock, and processor time of both processes together.
"""

import argparse
import contextlib
import json
import marshal
import multiprocessing
import pickle
import random
import resource
import statistics
import time

import msgspec
import numpy as np

from brain.ml.dataset_shards.worker_ring import (
    RING_BYTES,
    RingFile,
    RingWriter,
    aligned,
    decode_batch,
    encode_batch,
    split_segments,
)

BATCH = 32
GROUP_BYTES = 512 << 10


def text_batch(number):
    """Rows as a JSONL shard has them."""
    random.seed(number)
    words = [f"{random.getrandbits(40):x}" for _ in range(500)]
    text = " ".join(words[:82])
    return [
        {
            "id": f"doc-{number}-{row}",
            "text": f"{row} {text}",
            "source": "wiki",
            "score": row / 7,
            "n_tokens": 120 + row,
        }
        for row in range(BATCH)
    ]


def token_batch(number):
    """Rows of one array, as TokenCollate has them."""
    return np.random.default_rng(number).integers(0, 60_000, (BATCH, 2048), np.uint16)


def to_raw(batch):
    """Stand-in for shipping the records' own bytes: they are made before the clock starts."""
    return b"[" + b",".join(msgspec.json.encode(row) for row in batch) + b"]"


ENCODERS = {
    "torch's queue": (None, None),
    "pickle a batch, pipe": (lambda b: pickle.dumps(b, 5), pickle.loads),
    "pickle, ring": (encode_batch, None),
    "msgpack, ring": (msgspec.msgpack.encode, msgspec.msgpack.decode),
    "marshal, ring": (marshal.dumps, marshal.loads),
    "raw JSON, ring": (None, msgspec.json.decode),
}
TEXT_ONLY = {"msgpack, ring", "marshal, ring", "raw JSON, ring"}


def make_ready(way, kind):
    """Return 16 batches as the worker has them before it sends."""
    batches = [(text_batch if kind == "text" else token_batch)(n) for n in range(16)]
    return [to_raw(batch) for batch in batches] if way == "raw JSON, ring" else batches


def send(way, kind, number, connection, ring):
    """Be the worker."""
    ready = make_ready(way, kind)
    connection.send_bytes(b"ready")
    connection.recv_bytes()
    began = time.process_time()
    if way == "pickle a batch, pipe":
        for step in range(number):
            connection.send_bytes(pickle.dumps(ready[step % 16], 5))
    else:
        send_by_ring(way, number, connection, RingWriter(ring.map(writable=True)), ready)
    connection.send_bytes(json.dumps(time.process_time() - began).encode())


def send_by_ring(way, number, connection, writer, ready):
    """Send groups of batches."""
    encode = ENCODERS[way][0]
    group, held = [], 0
    for step in range(number):
        value = ready[step % 16]
        found = value if encode is None else encode(value)
        segments = found if isinstance(found, list) else [found]
        group.append(segments)
        held += sum(aligned(len(segment)) for segment in segments)
        if held < GROUP_BYTES and step < number - 1:
            continue
        while (place := writer.place(held)) is None:
            writer.release(int(connection.recv_bytes()))
        writer.write(place[0], [segment for segments in group for segment in segments])
        lengths = [[len(segment) for segment in segments] for segments in group]
        connection.send_bytes(pickle.dumps((*place, lengths), 5))
        group, held = [], 0


def use(batch):
    """Read every field, or widen the ids, as every delivery does."""
    if isinstance(batch, np.ndarray):
        return batch.astype(np.int64)[0, 5]
    return sum(len(row["text"]) + row["n_tokens"] for row in batch)


def receive(way, number, connection, ring):
    """Be the process that delivers; returns wall seconds and processor seconds of both."""
    decode, view, done = ENCODERS[way][1], ring.map(writable=False), 0
    connection.recv_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    connection.send_bytes(b"go")
    while done < number:
        message = connection.recv_bytes()
        if way == "pickle a batch, pipe":
            use(decode(message))
            done += 1
            continue
        offset, taken, lengths = pickle.loads(message)  # noqa: S301 - of our own worker
        flat = [length for batch in lengths for length in batch]
        segments = iter(split_segments(view, offset, flat))
        for batch in lengths:
            own = [next(segments) for _ in batch]
            use(decode_batch(own, copy=False) if decode is None else decode(own[0]))
            done += 1
        with contextlib.suppress(BrokenPipeError):  # the worker has sent its last and is gone
            connection.send_bytes(b"%d" % taken)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return wall, cpu + json.loads(connection.recv_bytes())


def torch_worker(kind, number):
    """Return a dataset of ready batches for torch's own loader."""
    from torch.utils.data import IterableDataset

    class Ready(IterableDataset):
        def __iter__(self):
            import torch

            ready = make_ready("", kind)
            yield ready[0]
            for step in range(number - 1):
                batch = ready[step % 16]
                yield torch.from_numpy(batch) if kind == "tokens" else batch

    return Ready()


def unchanged(batch):
    """Collate nothing."""
    return batch


def by_torch(kind, number):
    """Measure torch's DataLoader; the worker's time is that of a child that has ended."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        torch_worker(kind, number), batch_size=None, num_workers=1, collate_fn=unchanged,
        prefetch_factor=4, multiprocessing_context="fork",
    )  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    iterator = iter(loader)
    next(iterator)
    began, cpu = time.perf_counter(), time.process_time()
    for batch in iterator:
        use(batch if isinstance(batch, list) else batch.numpy())
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    del iterator
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worker = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu + worker


def measure(way, kind, number):
    """Run one way once."""
    if way == "torch's queue":
        return by_torch(kind, number)
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    ring = RingFile(RING_BYTES)
    process = context.Process(target=send, args=(way, kind, number, theirs, ring))
    process.start()
    theirs.close()
    try:
        return receive(way, number, mine, ring)
    finally:
        process.join()
        ring.close()


def main():
    """Interleave the ways and print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=3000)
    args = parser.parse_args()
    found = {}
    for _ in range(args.rounds):
        for kind in ("text", "tokens"):
            for way in ENCODERS:
                if kind == "tokens" and way in TEXT_ONLY:
                    continue
                wall, cpu = measure(way, kind, args.batches)
                scale = 1e6 / args.batches / BATCH
                found.setdefault((kind, way), []).append((wall * scale, cpu * scale))
    print("| kind | way | wall us/sample | CPU us/sample |\n| --- | --- | --- | --- |")
    for (kind, way), rows in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {kind} | {way} | {wall:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()

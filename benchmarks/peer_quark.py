"""Quark beside its peers: what `bench.py loaders --peers peer_quark,peer_quark_plain,…` measures.

Everything is on: shuffle at its default, exact order, the checksum of every shard, atomic publish.
`run` uses Quark's own loader, `run_plain` torch's DataLoader; both hand over plain dictionaries, or
one int64 tensor a batch for tokens, and the harness reads every field of every sample.
"""

from pathlib import Path

from common import SEQ, drive

PREFIXES = {"text": "jsonl/", "text_zst": "jsonl_zst/", "tok": "tok_bin/"}


def make_dataset(cfg):
    from brain.ml.dataset_shards.stream_dataset import StreamDataset
    from tools_utilities.scripts.s3_streaming_manager import StreamingManager
    from tools_utilities.shard_format import ReadOptions

    manager = StreamingManager(
        cfg["bucket"],
        cache_dir=Path(cfg["cache"], "quark"),
        cache_gb=20,
        endpoint_url=cfg["endpoint"],
    )
    return StreamDataset(
        manager,
        PREFIXES[cfg["kind"]],
        batch_size=cfg["batch"],
        options=ReadOptions(seq_len=SEQ),
    )


def import_all():
    """Import what a run imports lazily: the harness times no peer's imports."""
    import awscrt.checksums
    import boto3
    import obstore.store

    from brain.ml.dataset_shards import stream_loader, token_collate
    from tools_utilities.object_store import store_schemes
    from tools_utilities.scripts import dataset_discovery, s3_streaming_manager
    from tools_utilities.shard_format import shard_formats
    from tools_utilities.shard_formats import jsonl, tokens

    store_schemes(), shard_formats()  # plug-ins are modules too
    return (
        awscrt.checksums, boto3, obstore.store, stream_loader, token_collate,
        dataset_discovery, s3_streaming_manager, jsonl, tokens,
    )  # fmt: skip


def stack_tokens(batch):
    """One int64 tensor of (batch, SEQ), as every peer's collate makes."""
    from brain.ml.dataset_shards.token_collate import TokenCollate

    collate = TokenCollate()
    return collate.finish(collate(batch))


def own_loader(dataset, kw):
    from brain.ml.dataset_shards.stream_loader import StreamLoader
    from brain.ml.dataset_shards.token_collate import TokenCollate

    collate_fn = TokenCollate() if kw["collate_fn"] is stack_tokens else list
    return StreamLoader(
        dataset, kw["batch_size"], num_workers=kw["num_workers"], collate_fn=collate_fn
    )


def plain_loader(dataset, kw):
    from torch.utils.data import DataLoader

    return DataLoader(dataset, **kw)


def _drive(cfg, loader):
    import_all()

    def with_collate(dataset, kw):
        if cfg["kind"] == "tok":
            kw["collate_fn"] = stack_tokens
        return loader(dataset, kw)

    return drive(lambda: make_dataset(cfg), cfg, with_collate)


def run(cfg):
    return _drive(cfg, own_loader)

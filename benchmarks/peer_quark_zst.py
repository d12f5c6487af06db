"""Quark on the .jsonl.zst shards: see peer_quark."""

from peer_quark import _drive, own_loader


def run(cfg):
    return _drive({**cfg, "kind": "text_zst"}, own_loader)

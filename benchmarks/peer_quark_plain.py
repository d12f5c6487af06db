"""Quark's StreamDataset in torch's own DataLoader: see peer_quark."""

from peer_quark import _drive, plain_loader


def run(cfg):
    return _drive(cfg, plain_loader)

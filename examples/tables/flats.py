"""Small networks on a table: the price of a flat, and whether it sells within a month.

quark "train examples.tables.flats:build_price with data/datasets/flats for 8 epochs, lr 1e-2"
quark "train examples.tables.flats:build_sold with data/datasets/flats for 8 epochs, lr 1e-2"
"""

from typing import Any

import torch
from torch import Tensor, nn

DISTRICTS = ("north", "south", "harbour")
PRICE_UNIT = 100_000.0
Records = list[dict[str, Any]]


def features(records: Records) -> Tensor:
    """Return float32, shape (batch, 7): the numbers, each near 1, and a flag for each district."""
    rows = [
        [
            record["area"] / 100,
            record["age"] / 100,
            record["floor"] / 10,
            record["asked"] / PRICE_UNIT / 5,
            *(float(record["district"] == district) for district in DISTRICTS),
        ]
        for record in records
    ]
    return torch.tensor(rows)


def collate_price(records: Records) -> tuple[Tensor, Tensor]:
    """Return features without the price asked, and prices in 100,000, shape (batch, 1)."""
    inputs = features(records)
    inputs[:, 3] = 0
    return inputs, torch.tensor([[record["price"] / PRICE_UNIT] for record in records])


def collate_sold(records: Records) -> tuple[Tensor, Tensor]:
    """Return features, and class 1 for what sold within a month, int64."""
    return features(records), torch.tensor([int(record["sold_fast"]) for record in records])


def network(outputs: int) -> nn.Module:
    """Return two hidden layers."""
    hidden = [nn.Linear(7, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()]
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


def build_price(_config: Any) -> tuple[nn.Module, nn.Module, Any]:
    """Regression: one number a flat."""
    return network(1), nn.MSELoss(), collate_price


def build_sold(_config: Any) -> tuple[nn.Module, nn.Module, Any]:
    """Classification: one score for each class."""
    return network(2), nn.CrossEntropyLoss(), collate_sold

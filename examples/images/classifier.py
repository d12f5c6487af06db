"""A small convolutional network that names the shape in a picture.

quark "train examples.images.classifier:build with data/datasets/shapes for 3 epochs, lr 3e-3"
"""

import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

CLASSES = 4


def collate(records: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Return images as float32, shape (batch, 1, 24, 24), from 0 to 1, and classes as int64.

    A record of a WebDataset shard is `{"__key__": …, "jpg": bytes, "cls": bytes}`.
    """
    images = [np.asarray(Image.open(io.BytesIO(record["jpg"]))) for record in records]
    classes = [int(record["cls"]) for record in records]
    return torch.from_numpy(np.stack(images)).float().unsqueeze(1) / 255, torch.tensor(classes)


def build(_config: Any) -> tuple[nn.Module, nn.Module, Any]:
    """Return the model, its loss, and what makes batches of records."""
    layers: list[nn.Module] = []
    for wide, wider in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(wide, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 9, CLASSES))
    return model, nn.CrossEntropyLoss(), collate

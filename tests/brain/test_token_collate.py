from typing import Any

import numpy as np
import pytest
import torch

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from brain.ml.dataset_shards.token_collate import TokenCollate
from tools_utilities.errors import DataError


def sequences(count: int, dtype: str = "uint16") -> list[dict[str, Any]]:
    largest = np.iinfo(dtype).max
    return [{"input_ids": np.array([n, largest - n, 7], dtype)} for n in range(count)]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_ids_stay_narrow_until_they_are_delivered(dtype):
    collate, samples = TokenCollate(), sequences(5, dtype)
    sent = collate(samples)
    assert sent.dtype == getattr(torch, dtype)
    ids = collate.finish(sent)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [sample["input_ids"].tolist() for sample in samples]


def test_sequences_of_different_lengths_are_refused():
    with pytest.raises(DataError, match=r"\[2, 3\]"):
        TokenCollate()([*sequences(1), {"input_ids": np.zeros(2, np.uint16)}])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_delivers_one_wide_tensor_a_batch(num_workers):
    stream = StreamDataset.from_samples(sequences(20), seed=3)
    loader = StreamLoader(stream, 8, num_workers=num_workers, collate_fn=TokenCollate())
    batches = list(loader)
    assert [batch.shape for batch in batches] == [(8, 3), (8, 3), (4, 3)]
    assert {batch.dtype for batch in batches} == {torch.int64}
    wanted = StreamDataset.from_samples(sequences(20), seed=3)
    assert torch.cat(batches).tolist() == [sample["input_ids"].tolist() for sample in wanted]

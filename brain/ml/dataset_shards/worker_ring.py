"""Batches in memory that a worker process shares with the process that delivers them.

Each worker has one anonymous file (`memfd`): it has no name, so nothing is left of it once both
processes are gone, however they end. The worker writes, the owner reads and says how much of it may
be written again. A batch is a pickle (protocol 5) and the bytes of its arrays and tensors beside it,
which are neither copied into the pickle nor, where the collate allows it, out of the ring.
"""

import io
import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

_ALIGN = 64
RING_BYTES = 8 << 20
"""Of one worker: batches that were read and not asked for yet."""

Segment = bytes | memoryview


class RingFile:
    """The anonymous file; crosses to a process that is being started, and only so."""

    def __init__(self, num_bytes: int = RING_BYTES) -> None:
        self.num_bytes = num_bytes
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("quark-batches", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                self.fd = os.dup(file.fileno())
        os.ftruncate(self.fd, num_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {"num_bytes": self.num_bytes, "fd": reduction.DupFd(self.fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.num_bytes = state["num_bytes"]
        self.fd = state["fd"].detach()

    def map(self, *, writable: bool) -> memoryview:
        """Return its bytes, shared."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return memoryview(mmap.mmap(self.fd, self.num_bytes, prot=protection))

    def close(self) -> None:
        """Close the file; what is mapped stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class RingWriter:
    """The worker's side."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._written = 0
        self._free = len(view)

    def reset(self) -> None:
        """Forget what was written: nobody will read it any more."""
        self._written, self._free = 0, len(self._view)

    def release(self, num_bytes: int) -> None:
        """Take back what the owner has read."""
        self._free += num_bytes

    def can_ever_hold(self, num_bytes: int) -> bool:
        """Tell whether a message of this size may go through the ring at all."""
        return num_bytes <= len(self._view) // 2

    def place(self, num_bytes: int) -> tuple[int, int] | None:
        """Return where a message may be written and what it takes up; None: not now."""
        start = self._written % len(self._view)
        skipped = len(self._view) - start if start + num_bytes > len(self._view) else 0
        if skipped + num_bytes > self._free:
            return None
        self._written += skipped + num_bytes
        self._free -= skipped + num_bytes
        return (start + skipped) % len(self._view), skipped + num_bytes

    def write(self, offset: int, segments: Sequence[Segment]) -> None:
        """Copy segments, each to an aligned place."""
        for segment in segments:
            self._view[offset : offset + len(segment)] = segment
            offset += aligned(len(segment))


def aligned(num_bytes: int) -> int:
    """Return the room that a segment takes."""
    return -(-num_bytes // _ALIGN) * _ALIGN


def split_segments(view: memoryview, offset: int, lengths: Sequence[int]) -> list[memoryview]:
    """Return the segments that lie one after another from `offset`."""
    found = []
    for length in lengths:
        found.append(view[offset : offset + length])
        offset += aligned(length)
    return found


def encode_batch(batch: Any) -> list[Segment]:
    """Return a batch as a pickle and its arrays' own bytes; nothing is copied yet.

    Any value that pickles will do.
    """
    buffers: list[pickle.PickleBuffer] = []
    if "torch" in sys.modules:
        stream = io.BytesIO()
        _TensorPickler(stream, 5, buffer_callback=buffers.append).dump(batch)
        head = stream.getvalue()
    else:
        # Without torch there is no tensor, and the plain pickler is quicker to set up.
        head = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    return [head, *(buffer.raw() for buffer in buffers)]


def decode_batch(segments: Sequence[memoryview], *, copy: bool) -> Any:
    """Return the batch of `encode_batch`; without `copy` its arrays are the ring's own memory."""
    buffers = [bytearray(segment) if copy else segment for segment in segments[1:]]
    return pickle.loads(segments[0], buffers=buffers)  # noqa: S301 - written by our own worker


class _TensorPickler(pickle.Pickler):
    """Hands out the memory of tensors as arrays do; torch's own way copies it twice."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _make_tensor, (pickle.PickleBuffer(flat), value.dtype, tuple(value.shape))


def _is_plain(tensor: Any) -> bool:
    """Tell whether a tensor is nothing but its numbers in this process's memory."""
    torch = sys.modules["torch"]
    special = tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    return bool(plain and tensor.numel() and not special)


def _make_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)

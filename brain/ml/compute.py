"""Where and in which number format a model computes.

Letters: B batch, T time, V vocabulary.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from brain.ml.process_group import World
from brain.ml.token_source import Batch
from brain.ml.training_job import TrainingJob
from tools_utilities.errors import UsageError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
IGNORED = -100
"""Target of positions that do not count."""

_AVAILABLE: dict[str, Callable[[], bool]] = {
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
    "cpu": lambda: True,
}


def choose_device(job: TrainingJob, world: World) -> torch.device:
    """Return the device asked for, else cuda, else mps, else cpu; each local rank its own cuda one.

    Raises:
        UsageError: the device asked for is not there, or has too few for the ranks.
    """
    name = job.device or next(name for name, is_there in _AVAILABLE.items() if is_there())
    if not _AVAILABLE[name]():
        raise UsageError(
            f"device={name}: not available on this machine", hint="Leave it out, or device=cpu."
        )
    if name != "cuda":
        return torch.device(name)
    if world.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"gpus={job.processes}: this machine has {torch.cuda.device_count()}",
            hint="Ask for at most so many, or device=cpu.",
        )
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


def choose_precision(job: TrainingJob, device: torch.device) -> str:
    """Return the number format asked for, else bf16 on cuda and fp32 elsewhere."""
    return job.precision or ("bf16" if device.type == "cuda" else "fp32")


def make_exact(precision: str, device: torch.device) -> None:
    """Make fp32 runs on cuda the same from run to run, as they are on a cpu."""
    if device.type == "cuda" and precision == "fp32":
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.backends.cudnn.benchmark = False


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


def make_scaler(precision: str, device: torch.device) -> torch.amp.GradScaler:
    """Return the loss scaler; it does nothing but for fp16."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def loss_sum(
    model: nn.Module,
    batch: Batch,
    precision: str,
    device: torch.device,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    apart: bool = False,
) -> Tensor:
    """Return the summed loss of a batch's targets; padding does not count.

    `loss` gets (logits_NV, targets_N) of the targets that count and returns their mean, or a value for
    each; None: cross-entropy, in nats. `apart`: the model takes documents_BT and keeps them apart.
    """
    documents_BT = documents_of(batch) if apart else None
    tokens_BT = batch.tokens_BT.to(device=device, dtype=torch.int64, non_blocking=True)
    lengths_B = batch.lengths_B.to(device=device, non_blocking=True)
    inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
    positions_T = torch.arange(1, tokens_BT.shape[1], device=device)
    counted_BT = positions_T < lengths_B[:, None]
    with autocast(precision, device):
        if documents_BT is None:  # the causal mask alone has quicker kernels
            logits_BTV = model(inputs_BT)
        else:
            logits_BTV = model(inputs_BT, documents_BT.to(device, non_blocking=True))
    if loss is not None:
        found = loss(logits_BTV[counted_BT].float(), targets_BT[counted_BT])
        return summed(found, batch.num_targets, "the model")
    return functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(),
        targets_BT.masked_fill(~counted_BT, IGNORED).flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


def documents_of(batch: Batch) -> Tensor | None:
    """Return which document of its sequence each input belongs to, int32; None: one in each.

    The end token begins a document: the next one's first token is a guess from it alone. Made of the
    batch as it lies in memory, so that no device is waited for.
    """
    if batch.end_id is None:
        return None
    begins_BT = batch.tokens_BT[:, :-1] == batch.end_id
    begins_BT[:, 0] = False
    if not bool(begins_BT.any()):
        return None
    documents_BT: Tensor = begins_BT.cumsum(dim=1, dtype=torch.int32)
    return documents_BT


def summed(loss: Any, count: int, name: str) -> Tensor:
    """Return a loss summed over `count` targets, given their mean or each one's.

    Raises:
        UsageError: it is neither.
    """
    if not isinstance(loss, Tensor) or (loss.dim() and loss.numel() != count and count):
        found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            f"{name}: the loss gave {found} for {count} targets",
            hint="Return their mean as one number, or one number for each.",
        )
    if not count:
        return loss.float().sum() * 0
    return loss.float().sum() if loss.dim() else loss.float() * count

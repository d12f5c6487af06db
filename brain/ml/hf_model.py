"""`hf:FOLDER` as a model: a causal language model of transformers, whole or by LoRA adapters (`[hf]`).

Weights are read from safetensors and kept in fp32; no code of the folder is run. With `lora_rank` the
folder's weights stand still, and all that is trained, saved and loaded are the adapters.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from brain.ml.hf_folder import hf_folder
from brain.ml.training_job import TrainingJob
from tools_utilities.errors import UsageError

HF_EXTRA = "pip install 'quark-launcher[hf]'"


class HfModel(nn.Module):
    """tokens_BT → logits_BTV, with documents kept apart."""

    def __init__(self, model: Any, *, adapters_only: bool) -> None:
        super().__init__()
        self.model = model
        self._adapters_only = adapters_only

    @property
    def blocks(self) -> list[nn.Module]:
        """The layers that FSDP cuts one by one."""
        lists = [one for one in self.model.modules() if isinstance(one, nn.ModuleList) and len(one)]
        return list(lists[0]) if lists else []

    def forward(self, tokens_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        """Return logits_BTV of the token after each position."""
        more: dict[str, Any] = {}
        if documents_BT is not None:
            more["position_ids"] = positions_of(documents_BT)
            more["attention_mask"] = additive_mask(documents_BT)
        logits_BTV: Tensor = self.model(input_ids=tokens_BT, use_cache=False, **more).logits
        return logits_BTV

    def state_dict(  # type: ignore[override] # torch's overloads only type `destination`
        self, *args: Any, **options: Any
    ) -> dict[str, Any]:
        """Return what is trained: with adapters these alone, for the folder has the rest."""
        found: dict[str, Any] = super().state_dict(*args, **options)
        if not self._adapters_only:
            return found
        trained = {name for name, weight in self.named_parameters() if weight.requires_grad}
        return {name: tensor for name, tensor in found.items() if name in trained}


def positions_of(documents_BT: Tensor) -> Tensor:
    """Return each token's place in its document, from 0."""
    batch, time = documents_BT.shape
    places_T = torch.arange(time, device=documents_BT.device)
    begins_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    begins_BT[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    starts_BT = torch.where(begins_BT, places_T, 0).cummax(dim=1).values
    return places_T.expand(batch, time) - starts_BT


def additive_mask(documents_BT: Tensor) -> Tensor:
    """Return shape (B, 1, T, T): 0 where a position sees another, else the least number there is."""
    same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    seen_BTT = same_BTT.tril()
    mask_BTT = torch.zeros(seen_BTT.shape, device=documents_BT.device)
    return mask_BTT.masked_fill(~seen_BTT, torch.finfo(torch.float32).min).unsqueeze(1)


def load_hf(job: TrainingJob) -> HfModel:
    """Return the job's model with the folder's weights, adapters as the job says.

    Raises:
        DataNotFoundError: there is no such folder.
        UsageError: a library is not installed, or the folder holds something else.
    """
    folder = hf_folder(job.model)
    model = base_model(folder, job.model)
    if job.lora_rank is not None:
        model = _with_adapters(model, job)
    return HfModel(model, adapters_only=job.lora_rank is not None).train()


def base_model(folder: Path, name: str) -> Any:
    """Return the model of a folder in fp32.

    Raises:
        UsageError: transformers is not installed, or cannot make a causal model of it.
    """
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise UsageError(
            f"model {name}: the transformers library is not installed", hint=HF_EXTRA
        ) from error
    disable_progress_bar()  # type: ignore[no-untyped-call] # a log is no terminal
    try:
        return AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False,
            dtype=torch.float32, attn_implementation="sdpa",
        )  # fmt: skip
    except (ValueError, KeyError, OSError) as error:
        raise UsageError(
            f"model {name}: no causal language model: {error}",
            hint="The folder must be one that AutoModelForCausalLM loads without code of its own.",
        ) from error


def _with_adapters(model: Any, job: TrainingJob) -> Any:
    try:
        import peft
    except ImportError as error:
        raise UsageError(
            f"lora_rank={job.lora_rank}: the peft library is not installed", hint=HF_EXTRA
        ) from error
    rank = job.lora_rank or 0
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if job.lora_alpha is None else job.lora_alpha,  # type: ignore[arg-type] # any number will do
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):  # every rank begins with the same adapters
        torch.manual_seed(job.seed)
        return peft.get_peft_model(model, config)

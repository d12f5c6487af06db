"""`hf:FOLDER` on several ranks: whole and by adapters, with all weights on each and cut over them (FSDP2)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from brain.ml.checkpoint import load_weights
from brain.ml.hf_model import load_hf
from brain.ml.training_job import TrainingJob
from tests.end_to_end.test_hf_models import WORDS, checkpoint, digest, logits, save_model
from tests.end_to_end.test_own_models import again
from tests.end_to_end.test_training_ranks import free_port
from tests.projects import write_group
from tests.training import ForkServer, events, losses, make_job, train_here
from tools_utilities.object_store import StoreSpec

transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
peft = pytest.importorskip("peft", reason="the extra [hf] is not installed")
pytestmark = [
    pytest.mark.filterwarnings("default"),  # the libraries' own
    pytest.mark.timeout(300),
]

WHOLE: dict[str, Any] = {"schedule": "constant", "lr": 2e-3, "max_steps": 8}
ADAPTERS: dict[str, Any] = {**WHOLE, "lora_rank": 8, "lr": 1e-2}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_group(folder / "d/train")
    for kind in ("llama", "gpt2"):
        save_model(folder / "models" / kind, kind)
    return folder


RUNS = {"whole": ("llama", WHOLE), "adapters": ("llama", ADAPTERS), "tied": ("gpt2", WHOLE)}


def _alone(project: Path, name: str) -> TrainingJob:
    """Return one of `RUNS`, made by a single process."""
    kind, settings = RUNS[name]
    model, run_dir = project / "models" / kind, project / "runs" / name
    tokens = {"vocab_size": WORDS, "eos_id": 1, "tokenizer": str(model / "tokenizer.json")}
    store = StoreSpec(uri=f"file://{project}")
    made = (run_dir / "checkpoints/latest").exists()
    job = make_job(run_dir, store, model=f"hf:{model}", val=(), **tokens, **settings)
    assert made or train_here(job) == 0
    return job


def _run(forks: ForkServer, job: TrainingJob, ranks: int) -> None:
    pids = forks.start_ranks(job, ranks, free_port())
    codes = [forks.wait(pid, 150) for pid in pids]  # each imports transformers
    assert codes == [0] * ranks, (Path(job.run_dir) / "log").read_text()


@pytest.mark.parametrize(
    ("name", "parallel"),
    [
        ("adapters", "fsdp"),
        pytest.param("adapters", "ddp", marks=pytest.mark.nightly),
        pytest.param("whole", "fsdp", marks=pytest.mark.nightly),
        pytest.param("tied", "fsdp", marks=pytest.mark.nightly),
    ],
)
def test_ranks_train_as_one_process_does_and_their_checkpoint_is_a_whole_one(
    project: Path, training_forks: ForkServer, name: str, parallel: str
):
    """Cut, of one model whose head is its embedding; saved half way, and resumed by a single process."""
    single = _alone(project, name)
    folder = Path(single.model.removeprefix("hf:"))
    before = digest(folder)
    job = again(single, f"{name}-{parallel}", parallel=parallel, max_steps=5, grad_accum=2)
    _run(training_forks, job, 2)
    assert losses(Path(job.run_dir)) == pytest.approx(losses(Path(single.run_dir))[:5], abs=1e-5)
    started = [events(Path(one.run_dir), "start")[0]["parameters"] for one in (job, single)]
    assert started[0] == started[1]
    assert train_here(again(job, job.name, max_steps=8, grad_accum=1, resume="latest")) == 0
    assert losses(Path(job.run_dir)) == pytest.approx(losses(Path(single.run_dir)), abs=1e-5)
    assert digest(folder) == before


@pytest.mark.nightly
def test_adapters_of_ranks_are_exported_merged_and_resumed_exactly(
    project: Path, tmp_path: Path, training_forks: ForkServer
):
    """A checkpoint of cut adapters holds these alone; on the same ranks it goes on bit for bit."""
    from safetensors import safe_open

    from brain.ml.export_weights import main

    whole = again(_alone(project, "adapters"), "cut", parallel="fsdp")
    _run(training_forks, whole, 2)
    names: list[str] = []
    for path in checkpoint(whole).glob("model-*.safetensors"):
        with safe_open(path, "pt") as file:
            names += list(file.keys())
    assert names
    assert all("lora_" in name for name in names)
    parts = again(whole, "cut-parts", max_steps=3)
    _run(training_forks, parts, 2)
    _run(training_forks, again(parts, "cut-parts", max_steps=8, resume="latest"), 2)
    assert losses(Path(parts.run_dir)) == losses(Path(whole.run_dir))

    trained = load_hf(whole)
    load_weights(checkpoint(whole), trained)
    assert main([whole.run_dir, str(tmp_path / "merged"), "--merged"]) == 0
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(trained), atol=1e-4, rtol=0)

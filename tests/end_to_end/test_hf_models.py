"""`hf:FOLDER`: a tiny model made on the spot, trained whole and by adapters, resumed, exported, refused."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from brain.ml.checkpoint import load_weights
from brain.ml.hf_folder import count_parameters
from brain.ml.hf_model import HfModel, load_hf
from brain.ml.training_job import TrainingJob
from knowledge_hub.hub import KnowledgeHub
from tests.end_to_end.test_own_models import again, job_of
from tests.projects import RecordingTarget, make_manager, write_group
from tests.resource_manager.test_model_sizes import save_tokenizer
from tests.training import events, losses, train_here
from tools_utilities.errors import DataNotFoundError, UsageError

transformers = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
peft = pytest.importorskip("peft", reason="the extra [hf] is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # the libraries' own

WORDS = 90
SENTENCE = "train hf:models/tiny with data/datasets/words for 25 steps, context 32, lr 1e-2"


def save_model(folder: Path, kind: str = "llama") -> Path:
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            eos_token_id=1, pad_token_id=0, bos_token_id=1, initializer_range=0.2,
        )  # fmt: skip
    else:
        config = transformers.GPT2Config(
            vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=64, eos_token_id=1,
            bos_token_id=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    save_tokenizer(folder / "tokenizer.json", "<pad>", "</s>")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "quark.yaml").write_text("device: cpu\n")
    write_group(folder / "data/datasets/words/train")
    save_model(folder / "models/tiny")
    return folder


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def logits(model: Any) -> torch.Tensor:
    tokens = torch.arange(4, 20).reshape(1, 16)
    with torch.no_grad():
        found = model.eval()(tokens)
    return found if isinstance(found, torch.Tensor) else found.logits


def checkpoint(job: TrainingJob) -> Path:
    folder = Path(job.run_dir) / "checkpoints"
    return folder / (folder / "latest").read_text().strip()


def fallen(job: TrainingJob) -> float:
    found = losses(Path(job.run_dir))
    return 1 - found[-1] / found[0]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_documents_are_kept_apart_and_their_positions_begin_anew(tmp_path: Path, kind: str):
    save_model(tmp_path / kind, kind)
    job = TrainingJob(name="n", run_dir="/r", train=(), model=f"hf:{tmp_path / kind}")
    model: HfModel = load_hf(job).eval()
    first, second = torch.tensor([[1, 5, 6, 7]]), torch.tensor([[1, 8, 9, 10, 11]])
    documents = torch.tensor([[0] * 4 + [1] * 5])
    together = model(torch.cat((first, second), dim=1), documents)
    torch.testing.assert_close(together[:, :4], model(first), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together[:, 4:], model(second), atol=1e-5, rtol=1e-5)


def test_all_weights_are_trained_and_the_folder_stays(project: Path, tmp_path: Path):
    from brain.ml.export_weights import main

    before = digest(project / "models/tiny")
    job = job_of(project, SENTENCE)
    assert job.model == f"hf:{project / 'models/tiny'}"
    assert (job.eos_id, job.pad_id, job.vocab_size) == (1, 0, WORDS)
    assert train_here(job) == 0
    assert fallen(job) >= 0.3
    assert digest(project / "models/tiny") == before
    start = events(Path(job.run_dir), "start")[0]
    assert start["parameters"] == count_parameters(project / "models/tiny")

    assert main([job.run_dir, str(tmp_path / "out")]) == 0
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    trained = load_hf(job)
    load_weights(checkpoint(job), trained)
    torch.testing.assert_close(logits(exported), logits(trained), atol=1e-5, rtol=1e-5)
    assert (tmp_path / "out/tokenizer.json").exists()
    assert main([job.run_dir, str(tmp_path / "out")]) == UsageError.exit_code


def test_adapters_alone_are_trained_saved_resumed_and_merged(project: Path, tmp_path: Path):
    from safetensors import safe_open

    from brain.ml.export_weights import main

    folder = project / "models/tiny"
    before = digest(folder)
    whole = job_of(project, f"fine{SENTENCE.replace('train', 'tune')} --override lora_rank=16")
    whole = again(whole, "whole", schedule="constant", lr=3e-2)
    assert train_here(whole) == 0
    assert fallen(whole) >= 0.3
    with safe_open(checkpoint(whole) / "model.safetensors", "pt") as file:
        names = list(file.keys())
    assert names
    assert all("lora_" in name for name in names)
    assert digest(folder) == before

    parts = again(whole, "parts", max_steps=9)
    assert train_here(parts) == 0
    parts = again(parts, "parts", max_steps=25, resume="latest")
    assert train_here(parts) == 0
    assert losses(Path(parts.run_dir)) == losses(Path(whole.run_dir))

    trained = load_hf(whole)
    frozen = {
        name: one.clone() for name, one in trained.named_parameters() if not one.requires_grad
    }
    load_weights(checkpoint(whole), trained)
    assert all(
        one.equal(frozen[name]) for name, one in trained.named_parameters() if name in frozen
    )
    adapted = logits(trained)
    assert main([whole.run_dir, str(tmp_path / "adapter")]) == 0
    assert sorted(path.name for path in (tmp_path / "adapter").glob("*.safetensors")) == [
        "adapter_model.safetensors"
    ]
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    untouched = logits(base)
    read = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    torch.testing.assert_close(logits(read), adapted, atol=1e-4, rtol=0)
    assert main([whole.run_dir, str(tmp_path / "merged"), "--merged"]) == 0
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), adapted, atol=1e-4, rtol=0)
    assert not torch.allclose(untouched, adapted, atol=1e-2)


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        (
            "train hf:models/none with data/datasets/words",
            DataNotFoundError,
            "no folder with a config",
        ),
        ("train hf:models/tiny with data/datasets/words, context 4k", UsageError, "made for 64"),
        (
            "train hf:models/tiny with data/datasets/words, context 32 layers=3",
            UsageError,
            "layers=3: for",
        ),
        ("train quark with data/datasets/words lora_rank=3", UsageError, "lora_rank=3: for hf:"),
        ("train hf:models/pickled with data/datasets/words", DataNotFoundError, "no .safetensors"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    project: Path, said: str, error: type[Exception], message: str
):
    pickled = project / "models/pickled"
    pickled.mkdir(exist_ok=True)
    (pickled / "config.json").write_text((project / "models/tiny/config.json").read_text())
    (pickled / "pytorch_model.bin").write_bytes(b"pickle")
    manager, target, _, _ = make_manager(project, RecordingTarget())
    with pytest.raises(error, match=message):
        manager.train(KnowledgeHub().read(said))
    assert not target.jobs


@pytest.mark.parametrize(
    "content", [b"\x05\0\0\0\0\0\0\0{nope", b"\xff" * 9, b"\x02\0\0\0\0\0\0\0[]"]
)
def test_a_damaged_file_of_weights_is_named_in_the_plan(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        count_parameters(tmp_path)

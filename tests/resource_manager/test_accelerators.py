"""Which device a run will use: by torch's build and the machine's device files, before anything starts."""

import platform
import shlex

import pytest

from brain.ml.training_job import DataSource, TrainingJob
from knowledge_hub.hub import KnowledgeHub
from resource_manager.accelerators import (
    BEST,
    Accelerators,
    accelerators_here,
    device_notes,
    device_problem,
    find_accelerators,
    planned_device,
    planned_precision,
)
from resource_manager.manager import CommandOptions
from tests.projects import Said, make_manager
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec

ONE = ["data/datasets/one"]
CPU = "__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA = "__version__ = '2.9.0'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
ROCM = "__version__ = '2.9.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4.4'\n"
NO_GPU = Accelerators(cuda=False, cards=0, mps=False, why="PyTorch 2.9.0+cpu is built without it")
TWO_GPUS = Accelerators(cuda=True, cards=2, mps=False)


@pytest.mark.parametrize(
    ("torch", "files", "visible", "cuda", "cards"),
    [
        (CPU, ["nvidia0"], None, False, 0),
        (CUDA, [], None, False, 0),
        (CUDA, ["nvidiactl", "nvidia-uvm"], None, False, 0),
        (CUDA, ["nvidia0", "nvidia1", "nvidiactl"], None, True, 2),
        (CUDA, ["nvidia0", "nvidia1"], "1", True, 1),
        (CUDA, ["nvidia0", "nvidia1"], "0,1,2", True, 2),
        (CUDA, ["nvidia0", "nvidia1"], "0,-1,1", True, 1),
        (CUDA, ["nvidia0"], "", False, 0),
        (CUDA, ["nvidia0"], "-1", False, 0),
        (CUDA, ["nvidia0"], "NoDevFiles", False, 0),
        (CUDA, ["nvidia0"], "MIG-1f2e", True, 1),
        (CUDA, ["dxg"], None, True, None),
        (CUDA, ["nvhost-gpu"], "0", True, 1),
        (ROCM, ["kfd"], None, True, None),
        (ROCM, [], None, False, 0),
        ("", ["nvidia0"], None, None, None),
        ("nothing of torch's", [], None, None, None),
    ],
)
def test_what_linux_has(tmp_path, torch, files, visible, cuda, cards):
    for name in files:
        (tmp_path / name).write_text("")
    found = find_accelerators(
        torch, visible=visible, devices=tmp_path, system="Linux", machine="x86_64"
    )
    assert (found.cuda, found.cards, found.mps) == (cuda, cards, False)
    assert bool(found.why) is (cuda is False)


@pytest.mark.parametrize(
    ("torch", "system", "machine", "device"),
    [
        (CPU, "Darwin", "arm64", "mps"),
        (CPU, "Darwin", "x86_64", BEST),
        (CPU, "Windows", "AMD64", "cpu"),
        (CUDA, "Windows", "AMD64", BEST),
    ],
)
def test_other_systems(tmp_path, torch, system, machine, device):
    found = find_accelerators(torch, devices=tmp_path, system=system, machine=machine)
    assert planned_device(make_job(), found) == device


def test_this_machine_is_told_as_torch_tells_it():
    import torch

    here = accelerators_here()
    assert here.cuda is not None or platform.system() != "Linux"
    assert here.cuda in (torch.cuda.is_available(), None)


def make_job(**fields) -> TrainingJob:
    data = (DataSource(store=StoreSpec(uri="s3://bucket"), prefix="d/"),)
    return TrainingJob(**{"name": "fox-1", "run_dir": "/runs/fox-1", "train": data, **fields})


@pytest.mark.parametrize(
    ("job", "here", "device", "precision"),
    [
        ({}, NO_GPU, "cpu", "fp32"),
        ({"precision": "bf16"}, NO_GPU, "cpu", "bf16"),
        ({}, TWO_GPUS, "cuda", "bf16"),
        ({"device": "cpu"}, TWO_GPUS, "cpu", "fp32"),
        ({}, Accelerators(), BEST, "bf16 on cuda, else fp32"),
        ({}, Accelerators(cuda=False, cards=0, mps=True), "mps", "fp32"),
    ],
)
def test_device_and_precision_are_those_of_the_run(job, here, device, precision):
    made = make_job(**job)
    assert planned_device(made, here) == device
    assert planned_precision(made, device) == precision
    assert device_problem(made, here, None) is None


def refused(job: TrainingJob, here: Accelerators, command: str | None, flags: str = ""):
    problem = device_problem(job, here, command, flags)
    assert isinstance(problem, UsageError)
    assert problem.exit_code == 2
    return problem


def test_a_refusal_names_a_command_that_is_understood():
    command = "train with s3://b/a[1] --override device=cuda --groups 1"
    problem = refused(make_job(device="cuda"), NO_GPU, command, " --groups 1")
    assert str(problem) == f"device=cuda: not available on this machine ({NO_GPU.why})"
    assert problem.hint is not None
    lead, _, typed = problem.hint.partition(": ")
    assert lead == "On the cpu"
    program, sentence, *flags = shlex.split(typed)
    assert (program, flags) == ("quark", ["--groups", "1"])
    reading = KnowledgeHub().read(sentence)
    assert reading.status == "ok"
    assert reading.slots == {"data": ["s3://b/a[1]"], "device": "cpu"}


def test_more_cards_than_there_are():
    job = make_job(processes=4)
    problem = refused(job, TWO_GPUS, "train with d/x --override gpus=4")
    assert str(problem) == "gpus=4: this machine has 2"
    assert problem.hint == "On what there is: quark train with d/x --override gpus=2"
    assert device_problem(job, Accelerators(cuda=True), None) is None  # how many is not known
    assert refused(job, TWO_GPUS, None).hint == "Say gpus=2."
    assert "mps" in str(refused(make_job(device="mps"), NO_GPU, None))


def test_ranks_without_cards_share_the_cpu_and_the_plan_says_so():
    [note] = device_notes(make_job(processes=2), NO_GPU)
    assert note == f"gpus=2: no GPU here ({NO_GPU.why}); 2 processes share the cpu"
    for job, here in (
        ({}, NO_GPU), ({"processes": 2, "device": "cpu"}, NO_GPU), ({"processes": 2}, TWO_GPUS),
    ):  # fmt: skip
        assert device_notes(make_job(**job), here) == ()


def test_a_run_is_refused_before_anything_is_made(project):
    manager, target, _, _ = make_manager(project, accelerators=lambda: NO_GPU)
    with pytest.raises(UsageError, match="device=cuda: not available on this machine") as caught:
        manager.train(Said(data=ONE, device="cuda", precision="bf16", max_steps=2))
    assert caught.value.hint == "On the cpu: quark canonical words --override device=cpu"
    assert target.jobs == []
    assert not (project / "runs").exists()


def test_a_plan_says_what_is_used_or_that_it_is_refused(project):
    options = CommandOptions(plan_only=True)
    for slots, here, said in (
        ({}, NO_GPU, "local · cpu · 1 process · fp32"),
        ({}, TWO_GPUS, "local · cuda · 1 process · bf16"),
        ({"gpus": 2}, NO_GPU, "note: gpus=2: no GPU here"),
        ({"device": "cuda"}, NO_GPU, "warning: device=cuda: not available on this machine"),
        ({"gpus": 4}, TWO_GPUS, "warning: gpus=4: this machine has 2"),
    ):
        manager, _, out, _ = make_manager(
            project, options=options, accelerators=lambda here=here: here
        )
        assert manager.train(Said(data=ONE, max_steps=2, **slots)) == 0
        assert said in out.getvalue()


def test_a_resume_is_refused_too(project):
    manager, *_ = make_manager(project, accelerators=lambda: TWO_GPUS)
    assert manager.train(Said(data=ONE, name="fox-1", device="cuda", max_steps=2)) == 0
    manager, target, _, _ = make_manager(project, accelerators=lambda: NO_GPU)
    with pytest.raises(UsageError, match="device=cuda"):
        manager.resume(Said(run="fox-1", max_steps=4))
    assert target.jobs == []
    assert manager.resume(Said(run="fox-1", max_steps=4, device="cpu")) == 0
    assert [job.device for job in target.jobs] == ["cpu"]

"""Which device a run will use on this machine, told before it starts and without importing torch.

What torch was built for stands in its `version.py`, what the machine has in its drivers' device
files. Where these do not decide it (another system, a build that says nothing), the answer is that
it is not known, and the run finds out by itself.
"""

import importlib.util
import platform
import re
from pathlib import Path

import msgspec

from brain.ml.training_job import TrainingJob
from tools_utilities.errors import UsageError
from tools_utilities.reading_hints import typed
from tools_utilities.settings import read_environment

BEST = "best of this machine"
BEST_PRECISION = "bf16 on cuda, else fp32"
_BUILT_FOR = re.compile(r"^(cuda|hip)\b[^=\n]*= *(?:None|['\"](.*)['\"])", re.MULTILINE)
_VERSION = re.compile(r"^__version__ *= *['\"](.*)['\"]", re.MULTILINE)
_CARD_NAME = re.compile(r"\d+|(?:GPU|MIG)-.+")


class Accelerators(msgspec.Struct, frozen=True, kw_only=True):
    """What there is beside the cpu."""

    cuda: bool | None = None
    """None: not known, as for the rest."""
    cards: int | None = None
    """Devices for `cuda`."""
    mps: bool | None = None
    why: str = ""
    """Why there is no cuda."""


def accelerators_here() -> Accelerators:
    """Return what this machine and its torch have."""
    spec = importlib.util.find_spec("torch")  # finds it; imports nothing
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    version = Path(folders[0], "version.py") if folders else None
    return find_accelerators(
        version.read_text(encoding="utf-8") if version is not None and version.is_file() else "",
        visible=read_environment().visible_gpus,
    )


def find_accelerators(
    torch_version: str,
    *,
    visible: str | None = None,
    devices: Path = Path("/dev"),
    system: str = "",
    machine: str = "",
) -> Accelerators:
    """Return what a torch with this `version.py` finds on a machine.

    `visible` is CUDA_VISIBLE_DEVICES; `system` and `machine` are as `platform` names them.
    """
    built = dict(_BUILT_FOR.findall(torch_version))
    system, machine = system or platform.system(), machine or platform.machine()
    mac = system == "Darwin"
    mps = (machine == "arm64" or None) if mac else False
    if not built:
        return Accelerators(mps=mps)
    if not any(built.values()):
        found = _VERSION.search(torch_version)
        why = f"PyTorch {found[1] if found else ''} is built without it"
        return Accelerators(cuda=False, cards=0, mps=mps, why=why)
    if system != "Linux":
        return Accelerators(mps=mps)
    cards = _cards(devices)
    if visible is not None:
        named = _visible(visible)
        cards = named if cards is None else min(cards, named)
        if not cards:
            why = f"CUDA_VISIBLE_DEVICES={visible} shows none"
            return Accelerators(cuda=False, cards=0, mps=mps, why=why)
    if cards == 0:
        return Accelerators(cuda=False, cards=0, mps=mps, why="no GPU driver shows a device")
    return Accelerators(cuda=True, cards=cards, mps=mps)


def _cards(devices: Path) -> int | None:
    """Return the cards by their device files; None where there are some, but not how many."""
    nvidia = [path for path in devices.glob("nvidia*") if path.name[6:].isdigit()]
    if nvidia:
        return len(nvidia)
    # AMD; Windows' cards seen from its Linux; NVIDIA's boards with the GPU built in.
    others = ("kfd", "dxg", "nvhost-gpu", "nvgpu")
    return None if any((devices / name).exists() for name in others) else 0


def _visible(text: str) -> int:
    """Return how many devices the variable names; CUDA stops at the first that is none."""
    count = 0
    for name in text.split(","):
        if not _CARD_NAME.fullmatch(name.strip()):
            break
        count += 1
    return count


def planned_device(job: TrainingJob, here: Accelerators) -> str:
    """Return the device that the run will use; in words where that is not known."""
    if job.device:
        return job.device
    if here.cuda:
        return "cuda"
    if here.cuda is None or here.mps is None:
        return BEST
    return "mps" if here.mps else "cpu"


def planned_precision(job: TrainingJob, device: str) -> str:
    """Return the number format that the run will use on a device; in words where it depends."""
    if job.precision:
        return job.precision
    return BEST_PRECISION if device == BEST else "bf16" if device == "cuda" else "fp32"


def device_notes(job: TrainingJob, here: Accelerators) -> tuple[str, ...]:
    """Return what the person must know of GPUs that were asked for where there are none."""
    if job.processes == 1 or job.device or planned_device(job, here) != "cpu":
        return ()
    why = f" ({here.why})" if here.why else ""
    return (f"gpus={job.processes}: no GPU here{why}; {job.processes} processes share the cpu",)


def device_problem(
    job: TrainingJob, here: Accelerators, command: str | None, flags: str = ""
) -> UsageError | None:
    """Return why a run cannot have the device it is to use; None when it can, or nobody knows.

    `command` is the sentence that says the same, `flags` what of it is no sentence; the hint is
    the nearest command that this machine can carry out.
    """
    device = planned_device(job, here)
    if (device == "cuda" and here.cuda is False) or (device == "mps" and here.mps is False):
        why = f" ({here.why})" if device == "cuda" and here.why else ""
        return UsageError(
            f"device={device}: not available on this machine{why}",
            hint=_hint("On the cpu", command, "device=cpu", flags),
        )
    if device == "cuda" and here.cards is not None and job.processes > here.cards:
        return UsageError(
            f"gpus={job.processes}: this machine has {here.cards}",
            hint=_hint("On what there is", command, f"gpus={here.cards}", flags),
        )
    return None


def _hint(lead: str, command: str | None, setting: str, flags: str) -> str:
    if command is None:
        return f"Say {setting}."
    name = setting.partition("=")[0]
    sentence = re.sub(rf" --override {name}=\S+", "", command.removesuffix(flags))
    return f"{lead}: {typed(f'{sentence} --override {setting}')}{flags}"

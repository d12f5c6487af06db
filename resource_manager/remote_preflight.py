"""Before a run starts on another machine: whether it can work there, and what the plan says of it.

Looks only. The machine is asked over ssh; that the data can be read with the credentials that are
sent has been proven here: they are those that listed it and decoded its first records.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.accelerators import Accelerators, find_accelerators
from resource_manager.launch_target import Machine
from resource_manager.plan import parameters_of
from resource_manager.remote_credentials import Sent, expiry_warning
from tools_utilities.errors import MachineError, UsageError
from tools_utilities.terminal_text import human_bytes

SYSTEMS = ("Linux", "Darwin")
BYTES_PER_PARAMETER = 12
"""A checkpoint: weights and AdamW's two moments, in 32 bits."""
ENVIRONMENT_BYTES = 8_000_000_000
"""What PyTorch with CUDA and the rest take."""
INHERITED_BYTES = 100_000_000


def machine_of(
    job: TrainingJob, found: Mapping[str, Any], sent: Sent, *, wheel_bytes: int, run: str
) -> Machine:
    """Return what a look has found, checked; `found` is the answer of `remote_helper`'s look.

    Raises:
        MachineError: the machine lacks something, or cannot reach a store.
        UsageError: its disk is too small.
    """
    remote = job.remote
    if remote is None:
        raise UsageError("a job of this machine needs no look at another one")
    check_installer(remote.where, remote.packages, found)
    check_reach(remote.where, found)
    warnings = [*_check_disk(job, found)]
    expiry = expiry_warning(sent, job.max_seconds)
    warnings += [expiry] if expiry else []
    return Machine(
        accelerators=accelerators_of(found, remote.packages, remote.where),
        facts=(
            ("machine", _machine_line(found)),
            ("sends", _sent_line(sent, wheel_bytes)),
            ("at the end", _end_line(job, run, remote.where)),
        ),
        warnings=tuple(warnings),
    )


def accelerators_of(found: Mapping[str, Any], packages: str, where: str) -> Accelerators:
    """Return what beside the cpu a run will have there."""
    mac = found["system"] == "Darwin"
    mps = (found["machine"] == "arm64" or None) if mac else False
    none = Accelerators(cuda=False, cards=0, mps=mps, why=f"{where}: no GPU driver shows a device")
    cards = int(found["nvidia"])
    if packages == "inherit":
        # What its torch was built for; of the devices the helper tells.
        built = find_accelerators(
            found["torch_version"], system=found["system"], machine=found["machine"]
        )
        if not found["torch_version"] or built.why.startswith("PyTorch"):
            return msgspec.structs.replace(built, why=f"{where}: {built.why}" if built.why else "")
    if not cards:
        return none
    return Accelerators(cuda=True, cards=cards, mps=mps)


def check_installer(where: str, packages: str, found: Mapping[str, Any]) -> None:
    """Raise MachineError where nothing can be installed with what there is."""
    if found["system"] not in SYSTEMS:
        raise MachineError(f"{where}: {found['system']} is not supported", hint="Linux or macOS.")
    can_install = found["uv"] or found["venv"] if packages == "install" else found["pip"]
    if not can_install:
        raise MachineError(
            f"{where}: neither uv nor "
            + ("venv with pip" if packages == "install" else "pip in its Python")
            + " is there to install with",
            hint="Install uv, or your system's python3-venv, over there.",
        )


def check_reach(where: str, found: Mapping[str, Any]) -> None:
    """Raise MachineError where a store cannot be reached from there."""
    for address, problem in found["reach"].items():
        if problem:
            raise MachineError(
                f"{where} cannot reach the store at {address}: {problem}",
                hint="Use an address that means the same there; localhost is another machine.",
            )


def _check_disk(job: TrainingJob, found: Mapping[str, Any]) -> list[str]:
    """Return warnings; raises where the run cannot have room for its checkpoints."""
    where = job.remote.where if job.remote else ""
    if not found["writable"]:
        raise MachineError(
            f"{where}: nothing can be written below {found['folder']}",
            hint="Name another place: remote_folder=PATH.",
        )
    installs = job.remote is not None and job.remote.packages == "install"
    packages = ENVIRONMENT_BYTES if installs else INHERITED_BYTES
    saved = 0
    if job.checkpoints is None and not job.evaluate_only:
        saved = (job.keep + 1) * BYTES_PER_PARAMETER * (parameters_of(job) or 0)
    free = int(found["free_bytes"])
    if free < saved + INHERITED_BYTES:
        raise UsageError(
            f"{where}: {human_bytes(free)} free below {found['folder']}, and {job.keep} checkpoints"
            f" with one on its way take {human_bytes(saved)}",
            hint="Make room there, keep fewer (keep=1), or name another place: remote_folder=PATH.",
        )
    warnings = []
    if free < saved + packages:
        warnings.append(
            f"{human_bytes(free)} free below {found['folder']} on {where}; a first installation of"
            f" the packages takes about {human_bytes(packages)}"
        )
    if job.cache_dir is not None and free < saved + packages + job.cache_bytes:
        warnings.append(
            f"the cache of {human_bytes(job.cache_bytes)} does not fit beside the rest on {where};"
            " it takes what is free"
        )
    return warnings


def _machine_line(found: Mapping[str, Any]) -> str:
    cards = list(found["cards"]) or [f"{found['nvidia']} GPUs"] * bool(found["nvidia"])
    return " · ".join(
        [
            f"{found['host']}, {found['system']} {found['machine']}, {found['cores']} cores",
            *cards,
            f"Python {found['python']}",
            f"{human_bytes(found['free_bytes'])} free below {found['folder']}",
        ]
    )


def _sent_line(sent: Sent, wheel_bytes: int) -> str:
    facts = [f"Quark ({human_bytes(wheel_bytes)}) and the job"]
    facts += sorted(sent.variables)
    if sent.long_lived:
        facts.append(f"long-lived: {', '.join(sent.long_lived)}")
    return " · ".join(facts)


def _end_line(job: TrainingJob, run: str, where: str) -> str:
    brought = "metrics and log" if job.checkpoints is not None else "metrics, log and checkpoints"
    return f"{brought} come into the run folder here; {run} stays on {where}"

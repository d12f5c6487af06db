"""`python -m brain.ml.export_weights RUN OUT.safetensors`: a run's weights as one plain file.

RUN is a run's folder (its newest whole checkpoint is taken, from wherever its checkpoints go) or a
checkpoint's. Whatever number of ranks wrote it, the file holds whole tensors under the model's own
names, and in its metadata what model they are of. The optimizer's state is left out.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from brain.ml.checkpoint import MODEL, read_state
from brain.ml.checkpoint_files import sync_file
from brain.ml.checkpoint_place import checkpoint_of, choose_checkpoint, place_of_run
from brain.ml.model_name import is_hf
from brain.ml.sharded_tensors import ShardReader, dtype_of, read_into
from tools_utilities.errors import DataNotFoundError, QuarkError, UsageError
from tools_utilities.redaction import guard_process


def export_weights(path: Path, out: Path) -> int:
    """Write the weights of a run or checkpoint; returns how many tensors there are.

    Raises:
        DataNotFoundError: there is no whole checkpoint.
        DataError: the checkpoint named is damaged.
        UsageError: `out` is no name for such a file.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"{out}: the file's name ends in .safetensors")
    folder = checkpoint_of(path)
    state, reader = read_state(folder), ShardReader(folder)
    tensors: dict[str, Tensor] = {
        name: torch.empty(saved.shape, dtype=dtype_of(saved.dtype))
        for name, saved in reader.index.tensors.items()
        if name.startswith(MODEL)
    }
    read_into(reader, tensors)
    about = {"format": "pt", "model": state.model, "step": str(state.progress.step)}
    about |= {name: str(getattr(state.shape, name)) for name in state.shape.__struct_fields__}
    temporary = out.with_name(f".{out.name}.tmp")
    save_file({name.removeprefix(MODEL): one for name, one in tensors.items()}, temporary, about)
    sync_file(temporary)
    temporary.replace(out)
    return len(tensors)


def best_of(run: Path) -> Path:
    """Return the folder of the checkpoint with the best validation loss of a run.

    Raises:
        DataNotFoundError: there is no whole checkpoint, or none was evaluated.
    """
    step = read_state(checkpoint_of(run)).progress.best_step
    if step < 0:
        raise DataNotFoundError(f"{run}: nothing was evaluated", hint="Leave --best out.")
    place = place_of_run(run)
    name, _ = choose_checkpoint(place, from_step=step)
    return place.path_of(str(name))


def export_hf(path: Path, out: Path, *, merged: bool) -> bool:
    """Write the weights of a run on an `hf:` model as a folder; False: it is of another model.

    Raises:
        QuarkError: there is no whole checkpoint, or `out` exists.
    """
    folder = checkpoint_of(path)
    model = read_state(folder).model
    if not is_hf(model):
        return False
    from brain.ml.hf_export import export_folder, job_of_checkpoint

    export_folder(folder, job_of_checkpoint(path, folder, model), out, merged=merged)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Export as the arguments say; returns the exit code."""
    guard_process(sys.argv[1:] if arguments is None else arguments)
    parser = ArgumentParser(prog="python -m brain.ml.export_weights", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--best", action="store_true", help="of the best validation loss")
    parser.add_argument("--merged", action="store_true", help="add LoRA adapters to the weights")
    given = parser.parse_args(arguments)
    try:
        if given.best:
            given.run = best_of(given.run)
        if given.out.suffix != ".safetensors" and export_hf(
            given.run, given.out, merged=given.merged
        ):
            sys.stdout.write(f"{given.out}: written\n")
            return 0
        count = export_weights(given.run, given.out)
    except QuarkError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return type(error).exit_code
    sys.stdout.write(f"{given.out}: {count} tensors\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

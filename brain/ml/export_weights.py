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
from brain.ml.checkpoint_files import COMPLETE_FILE, check, sync_file
from brain.ml.checkpoint_place import choose_checkpoint, place_of_run
from brain.ml.sharded_tensors import ShardReader, dtype_of, read_into
from tools_utilities.errors import DataNotFoundError, QuarkError, UsageError


def export_weights(path: Path, out: Path) -> int:
    """Write the weights of a run or checkpoint; returns how many tensors there are.

    Raises:
        DataNotFoundError: there is no whole checkpoint.
        DataError: the checkpoint named is damaged.
        UsageError: `out` is no name for such a file.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"{out}: the file's name ends in .safetensors")
    folder = _checkpoint_of(path)
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


def _checkpoint_of(path: Path) -> Path:
    if (path / COMPLETE_FILE).is_file():
        check(path)
        return path
    place = place_of_run(path)
    name, rejected = choose_checkpoint(place) if path.is_dir() else (None, [])
    if name is None:
        reasons = "".join(f"; {one.name}: {one.reason}" for one in rejected)
        raise DataNotFoundError(
            f"{path}: no whole checkpoint there{reasons}",
            hint="Give a run's folder (runs/NAME) or one of its checkpoints.",
        )
    return place.path_of(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Export as the arguments say; returns the exit code."""
    parser = ArgumentParser(prog="python -m brain.ml.export_weights", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args(arguments)
    try:
        count = export_weights(given.run, given.out)
    except QuarkError as error:
        sys.stderr.write(f"{error}\n{error.hint}\n")
        return type(error).exit_code
    sys.stdout.write(f"{given.out}: {count} tensors\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

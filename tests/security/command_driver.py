"""Carries out commands, one after the other, in one process; what it printed and its codes go to files.

    python command_driver.py FOLDER < commands.json

A command is `["quark", …]`, `["script", module, …]` or `["stream", …]`, see `ACTS`. A signal or a crash
of one is the driver's end.
"""

import contextlib
import importlib
import json
import logging
import pickle
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path


def quark(arguments: Sequence[str]) -> int:
    """Run the program as its entry point does."""
    program = importlib.import_module("tools_utilities.scripts.quark_cli")
    return _ended(program.main, arguments)


def script(arguments: Sequence[str]) -> int:
    """Run another program by its module."""
    module = importlib.import_module(arguments[0])
    return _ended(module.main, arguments[1:])


def _ended(main: object, arguments: Sequence[str]) -> int:
    sys.argv = ["program", *arguments]
    try:
        code = main()  # type: ignore[operator] # a module's main
    except SystemExit as error:
        code = error.code
    return int(code or 0)


def stream(arguments: Sequence[str]) -> int:
    """Stream a prefix of a bucket, keep the dataset pickled, and what it raised with its traceback."""
    folder, bucket, prefix, workers = Path(arguments[0]), *arguments[1:3], int(arguments[3])
    from torch.utils.data import DataLoader

    from brain.ml.dataset_shards.stream_dataset import StreamDataset
    from tools_utilities.redaction import guard_process
    from tools_utilities.scripts.s3_streaming_manager import StreamingManager

    guard_process()
    try:
        manager = StreamingManager(bucket)
        dataset = StreamDataset(manager, prefix=prefix, deserialize=json.loads)
        _keep(folder, dataset)
        count = sum(1 for _ in DataLoader(dataset, batch_size=None, num_workers=workers))
        _keep(folder, dataset, manager)
        sys.stdout.write(f"{count} samples\n")
    except Exception as error:
        logging.getLogger("a.user").exception("the stream failed")
        _keep(folder, error)
        # As a user's own program that prints what it caught, unguarded.
        (folder / f"traceback-{len(list(folder.iterdir()))}").write_text(traceback.format_exc())
        return 1
    return 0


def _keep(folder: Path, *objects: object) -> None:
    for item in objects:
        number = len(list(folder.iterdir()))
        with contextlib.suppress(AttributeError, TypeError):
            (folder / f"pickle-{number}").write_bytes(pickle.dumps(item))


ACTS = {"quark": quark, "script": script, "stream": stream}


def main() -> None:
    """Carry out what stdin says."""
    folder = Path(sys.argv[1])
    codes: list[int] = []
    for kind, *arguments in json.load(sys.stdin):
        code = ACTS[kind](arguments)
        for out in (sys.stdout, sys.stderr):
            out.write(f"\n===== {len(codes)} ended with {code}\n")
            out.flush()
        codes.append(code)
        (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()

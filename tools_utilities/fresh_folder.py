"""A new, empty folder in the place of what an earlier try left there."""

import shutil
from contextlib import suppress
from pathlib import Path


def fresh_folder(folder: Path) -> Path:
    """Remove what is there, make the folder anew and return it.

    Raises:
        OSError: why it cannot be removed or made; nothing is ignored, or a full table of open files would
            be told as a folder that exists.
    """
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder

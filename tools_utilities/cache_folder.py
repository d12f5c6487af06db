"""The folder of a cache: which one, whether it can be used, and the modes of what is made in it."""

import os
import stat
from pathlib import Path

from tools_utilities.errors import CacheError

DEFAULT_CACHE_DIR = "~/.cache/quark_stream"
COUNTS_FOLDER = "counts"
"""Below a cache folder: what was learned of datasets, local ones too."""


def cache_folder(cache_dir: str) -> Path:
    """Return the folder as an absolute path, `~` expanded."""
    return Path(cache_dir).expanduser().absolute()


def is_default(folder: Path) -> bool:
    """Say whether this is the folder used when nobody names one."""
    return folder == cache_folder(DEFAULT_CACHE_DIR)


def check_folder(folder: Path) -> None:
    """Check, changing nothing, that a cache could be kept in `folder`, which may not exist yet.

    Raises:
        CacheError: it is no folder, or may not be written.
    """
    nearest = folder
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        raise CacheError(
            f"the cache folder {folder} (CACHE_DIR): {nearest} is not a directory",
            hint="Name a folder that can be written.",
            path=str(folder),
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise CacheError(
            f"the cache folder {folder} (CACHE_DIR): {nearest} is not writable",
            hint="Name a folder that can be written.",
            path=str(folder),
        )


class SharedModes:
    """File modes as open as the cache folder itself: who may write there shares the cache."""

    def __init__(self, folder: Path) -> None:
        mode = stat.S_IMODE(folder.stat().st_mode)
        # Not sticky: everyone who shares the budget must be able to make room.
        self.folder = mode & ~stat.S_ISVTX
        self.file = mode & 0o666

    def make_folder(self, path: Path) -> None:
        """Create a folder if there is none."""
        try:
            path.mkdir()
        except FileExistsError:
            return
        path.chmod(self.folder)

    def apply(self, fd: int) -> None:
        """Set the mode of a file just made, whatever the umask took away."""
        if stat.S_IMODE(os.fstat(fd).st_mode) != self.file:
            try:
                os.fchmod(fd, self.file)
            except PermissionError:
                return  # somebody else's file that was there already; its mode is theirs to set


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

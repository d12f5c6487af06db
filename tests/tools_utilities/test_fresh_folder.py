"""A folder made anew, and the reason when it cannot be."""

import errno
import os
from pathlib import Path

import pytest

from tools_utilities.fresh_folder import fresh_folder


def test_what_was_there_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    assert fresh_folder(folder) == folder
    (folder / "left").write_text("of an earlier try")
    assert list(fresh_folder(folder).iterdir()) == []


def test_the_reason_is_that_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fresh_folder(tmp_path / "a")

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        fresh_folder(folder)

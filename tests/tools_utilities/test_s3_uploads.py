"""Uploads in parts that fail."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools_utilities.errors import StoreError
from tools_utilities.object_stores._s3_uploads import upload_in_parts


class FailingCalls:
    """Begins an upload, takes one part and fails from then on."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def once(self, phase: str, key: str, ask: Callable[..., Any]) -> str:
        del key, ask
        self.asked.append(phase)
        return "an-upload"

    def retried(self, phase: str, key: str, ask: Callable[..., Any]) -> dict[str, Any]:
        del key, ask
        self.asked.append(phase)
        if self.asked.count("put") > 2 and phase == "put":
            raise StoreError("it broke")
        return {}


def open_paths() -> list[str]:
    links = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are enough
        try:
            links.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        except FileNotFoundError:  # the listing's own
            continue
    return links


def test_a_part_that_fails_leaves_no_file_open_while_the_error_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    calls: Any = FailingCalls()
    with pytest.raises(StoreError) as kept:
        upload_in_parts(calls, {}, "k", path, part_bytes=10)
    assert calls.asked == ["put", "put", "put", "delete"]  # begun, a part, a part, given up
    assert str(path) not in open_paths()
    assert kept.value.__traceback__ is not None

"""A `datasets` package that streams given rows: what `hf://` sources ask of the real one."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Hub:
    """Datasets by (name, configuration, split); remembers what was asked of it."""

    def __init__(self, datasets: Mapping[tuple[str, str | None, str], Sequence[dict[str, Any]]]):
        self.datasets = datasets
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        self.rows_read = 0

    def load_dataset_builder(self, name: str, config: str | None, **arguments: Any) -> Any:
        """Answer as the real one does: a builder, or OSError for what is not there."""
        self.asked.append((name, config, arguments))
        if not any(key[:2] == (name, config) for key in self.datasets):
            raise FileNotFoundError(f"no dataset {name} ({config})")
        return SimpleNamespace(
            hash="1",
            config=None,
            as_streaming_dataset=lambda split: Stream(self, self.datasets[name, config, split]),
        )


class Stream:
    """An iterable dataset."""

    info = SimpleNamespace(version="1.0.0")

    def __init__(self, hub: Hub, rows: Sequence[dict[str, Any]]) -> None:
        self._hub = hub
        self._rows = rows

    def skip(self, count: int) -> "Stream":
        """Return what comes after the first `count` rows."""
        return Stream(self._hub, self._rows[count:])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            self._hub.rows_read += 1
            yield row


def stand_in(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    """Make `hub` the installed `datasets` package."""
    module = ModuleType("datasets")
    module.load_dataset_builder = hub.load_dataset_builder  # type: ignore[attr-defined] # a module made here
    monkeypatch.setitem(sys.modules, "datasets", module)

"""Tensors of all ranks to files and back, by torch.distributed.checkpoint (DCP).

DCP's planner decides which rank writes which piece: a tensor that all ranks have is written once,
the ranks taking turns by size; of a DTensor each rank writes its own part. Here is its storage: a
rank's pieces go into one safetensors file a part (`model`, `optimizer`), the index is JSON. Reading
needs no other rank, and a tensor may be cut otherwise than it was written.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from brain.ml.checkpoint_files import sync_file
from brain.ml.tensor_index import Piece, SavedTensor, TensorIndex, read_index
from tools_utilities.errors import DataError, StoreError


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has put into one file."""

    file: str
    pieces: tuple[tuple[str, Piece], ...]
    """By the name of the tensor they are of."""


class ShardWriter(StorageWriter):
    """Writes one rank's pieces into a folder.

    DCP calls it on every rank; `begin` and `finish` on rank 0 alone, before the first byte and
    after the last one of all ranks. An error on any rank keeps `finish` from being called.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        world_size: int,
        *,
        begin: Callable[[], str],
        after_files: Callable[[str, list[Path]], dict[str, Any]],
        end: Callable[[str, TensorIndex, list[dict[str, Any]]], None],
    ) -> None:
        """Take the folder, and what happens around the writing.

        Args:
            folder: Where files are written; may be another one on each machine.
            rank: This process's.
            world_size: Of the run.
            begin: Prepares; returns a token that every rank's `after_files` gets.
            after_files: Called with the token and the files that this rank has written; returns
                what `end` shall know of them.
            end: Publishes, from the token, the index and what each rank's `after_files` returned.
        """
        self._folder, self._rank, self._world_size = folder, rank, world_size
        self._begin, self._after_files, self._end = begin, after_files, end
        self._token = ""

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing to forget: a writer writes one checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001 - DCP's signature
        """Nothing to prepare here."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Take DCP's plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Prepare the place; give every rank its token."""
        self._token = self._begin()
        return [
            SavePlan(items=plan.items, storage_data=self._token, planner_data=plan.planner_data)
            for plan in plans
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's pieces; what it returns travels to rank 0."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            written = self._write_parts(plan, planner)
            about = self._after_files(
                plan.storage_data, [self._folder / one.file for one in written]
            )
        except (OSError, SafetensorError) as error:
            if isinstance(error, StoreError):
                raise
            reason = getattr(error, "strerror", None) or str(error)
            raise StoreError(
                f"a checkpoint could not be written: {reason}",
                hint="What was saved before is untouched; make room, then resume.",
            ) from error
        result = WriteResult(
            index=MetadataIndex(f"rank-{self._rank}"),
            size_in_bytes=0,
            storage_data=(written, about),
        )
        future: Future[list[WriteResult]] = Future()
        future.set_result([result])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Put the index together and publish; rank 0."""
        pieces: dict[str, list[Piece]] = {}
        about = []
        for [result] in results:
            written, of_rank = result.storage_data
            about.append(of_rank)
            for one in written:
                for name, piece in one.pieces:
                    pieces.setdefault(name, []).append(piece)
        tensors = {}
        for name, found in metadata.state_dict_metadata.items():
            if not isinstance(found, TensorStorageMetadata):
                raise TypeError(f"{name}: only tensors are saved")
            tensors[name] = SavedTensor(
                dtype=str(found.properties.dtype).removeprefix("torch."),
                shape=tuple(found.size),
                pieces=tuple(pieces[name]),
            )
        self._end(self._token, TensorIndex(tensors=tensors), about)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """No checkpoint is named by an id here."""
        return checkpoint_id is None

    def _write_parts(self, plan: SavePlan, planner: SavePlanner) -> list[Written]:
        parts: dict[str, list[WriteItem]] = {}
        for item in plan.items:
            parts.setdefault(item.index.fqn.partition("/")[0], []).append(item)
        written = []
        for part, items in sorted(parts.items()):
            file = part_file(part, self._rank, self._world_size)
            tensors, pieces = {}, []
            for item in items:
                piece = _piece(item, file)
                data: Any = planner.resolve_data(item)
                tensors[piece.key] = data.detach().contiguous()
                pieces.append((item.index.fqn, piece))
            save_file(tensors, self._folder / file)
            sync_file(self._folder / file)
            written.append(Written(file=file, pieces=tuple(pieces)))
        return written


def part_file(part: str, rank: int, world_size: int) -> str:
    """Return the name of one rank's file of a part; a single one is called as the part is."""
    number = "" if world_size == 1 else f"-{rank + 1:05d}-of-{world_size:05d}"
    return f"{part}{number}.safetensors"


def write_alone(tensors: Mapping[str, Tensor], writer: ShardWriter) -> None:
    """Save as the only rank: DCP's own sequence, without the exchanges."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(tensors), is_coordinator=True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    [plan] = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plan), planner).wait()
    writer.finish(metadata, [results])


class ShardReader(StorageReader):
    """Reads pieces of a checkpoint folder; nothing is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.index = read_index(folder)

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing to forget."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002 - DCP's signature
        """Return the index as DCP knows it.

        Raises:
            DataError: it names what is no number format.
        """
        found: dict[str, Any] = {}
        for name, tensor in self.index.tensors.items():
            chunks = [
                ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes))
                for piece in tensor.pieces
            ]
            properties = TensorProperties(dtype=dtype_of(tensor.dtype))
            found[name] = TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
        return Metadata(found)

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: FBT001 - DCP's signature
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Nothing to prepare."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Take DCP's plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Take DCP's plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what the plan names into the tensors it names.

        Raises:
            DataError: a file does not hold what the index says.
        """
        by_file: dict[str, list[tuple[Piece, Any]]] = {}
        for item in plan.items:
            piece = self._piece_at(item.storage_index)
            by_file.setdefault(piece.file, []).append((piece, item))
        for file, wanted in by_file.items():
            try:
                with safe_open(self._folder / file, framework="pt") as opened:
                    for piece, item in wanted:
                        _copy(opened, piece, item, planner)
            except (SafetensorError, OSError) as error:
                where = f"checkpoint {self._folder.name}: {file}"
                raise DataError(f"{where} does not hold what the index says: {error}") from error
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """No checkpoint is named by an id here."""
        return checkpoint_id is None

    def _piece_at(self, index: MetadataIndex) -> Piece:
        offsets = tuple(index.offset or ())
        for piece in self.index.tensors[index.fqn].pieces:
            if piece.offsets == offsets:
                return piece
        raise DataError(f"checkpoint {self._folder.name}: no piece of {index.fqn} at {offsets}")


def read_into(reader: ShardReader, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, whole or DTensors, with what the checkpoint holds under their names.

    Each rank reads what it needs by itself. Names and shapes must have been compared before.
    """
    metadata = reader.read_metadata()
    planner = DefaultLoadPlanner()
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    reader.read_data(plan, planner).wait()


def dtype_of(name: str) -> torch.dtype:
    """Return a number format by name.

    Raises:
        DataError: there is none of that name.
    """
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(dtype, torch.dtype):
        raise DataError(f"{name}: no number format of a tensor")
    return dtype


def _piece(item: WriteItem, file: str) -> Piece:
    data = item.tensor_data
    if data is None:
        raise TypeError(f"{item.index.fqn}: only tensors are saved")
    offsets, sizes = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
    name = item.index.fqn.partition("/")[2]
    whole = sizes == tuple(data.size)
    key = name if whole else f"{name}@{','.join(str(offset) for offset in offsets)}"
    return Piece(file=file, key=key, offsets=offsets, sizes=sizes)


def _copy(opened: Any, piece: Piece, item: Any, planner: LoadPlanner) -> None:
    target = planner.resolve_tensor(item).detach()
    if piece.sizes:
        box = tuple(
            slice(start, start + length)
            for start, length in zip(item.storage_offsets, item.lengths, strict=True)
        )
        found = opened.get_slice(piece.key)[box]
    else:
        found = opened.get_tensor(piece.key)
    if found.shape != target.shape:  # `copy_` would repeat it
        raise SafetensorError(f"{piece.key} is {tuple(found.shape)}, not {tuple(target.shape)}")
    target.copy_(found)
    planner.commit_tensor(item, target)

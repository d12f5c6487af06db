"""Writes the small MDS and LitData data sets beside this file, with the peers' own libraries.

    python make_fixtures.py FOLDER

Needs mosaicml-streaming, litdata, torch and Pillow; README.md says which versions wrote what is here.
What sample `i` of each set must be is told by the tests that read them.
"""

import shutil
import sys
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

MDS_COLUMNS = {
    "text": "str",
    "raw": "bytes",
    "int": "int",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "big": "str_int",
    "real": "str_float",
    "price": "str_decimal",
    "any": "ndarray",
    "typed": "ndarray:int16",
    "fixed": "ndarray:float32:2,3",
    "tags": "json",
    "picture": "png",
    "photo": "jpeg",
    "pixels": "pil",
    "photos": "list[jpeg]",
    "frames": "jpeg_array",
}


def picture(i: int) -> Any:
    """Return a 2 x 2 picture of one colour."""
    from PIL import Image

    return Image.new("RGB", (2, 2), (i, 2 * i, 3 * i))


def jpeg(i: int) -> bytes:
    """Return that picture as JPEG."""
    from io import BytesIO

    out = BytesIO()
    picture(i).save(out, format="JPEG")
    return out.getvalue()


def mds_sample(i: int) -> dict[str, Any]:
    """Return sample `i` of every encoding."""
    return {
        "text": f"é{i}\u2028" * i,
        "raw": bytes(range(i)),
        "int": -i,
        "u8": 255 - i,
        "u16": 65535 - i,
        "u32": 2**32 - 1 - i,
        "u64": 2**64 - 1 - i,
        "i8": -128 + i,
        "i16": -32768 + i,
        "i32": -(2**31) + i,
        "i64": -(2**63) + i,
        "f16": i / 4,
        "f32": i / 3,
        "f64": i / 3,
        "big": 10**30 + i,
        "real": i / 7,
        "price": Decimal(i) / Decimal(8),
        "any": np.arange(2 * (i + 1), dtype=np.uint32).reshape(2, i + 1),
        "typed": np.arange(i + 1, dtype=np.int16),
        "fixed": np.full((2, 3), i, np.float32),
        "tags": ["a", i, None, {"k": [i / 2]}],
        "picture": picture(i),
        "photo": picture(i),
        "pixels": picture(i),
        "photos": [picture(i)] * (i % 3),
        "frames": [jpeg(i), jpeg(i + 1)],
    }


def write_mds(folder: Path) -> None:
    """Write every encoding, the same compressed, many small shards, and a pickled column."""
    from streaming import MDSWriter  # type: ignore[import-not-found]  # a peer

    def write(
        name: str, columns: dict[str, str], samples: list[dict[str, Any]], **how: Any
    ) -> None:
        with MDSWriter(out=str(folder / name), columns=columns, **how) as out:
            for sample in samples:
                out.write(sample)

    write("mds", MDS_COLUMNS, [mds_sample(i) for i in range(1, 7)])
    small = {"id": "int", "text": "str"}
    rows = [{"id": i, "text": f"text {i}"} for i in range(40)]
    write("mds_zstd", small, rows, compression="zstd:3", hashes=["xxh64"])
    write("mds_shards", small, rows, size_limit=420)
    write("mds_pickled", {"id": "int", "thing": "pkl"}, [{"id": 1, "thing": {"a": 1}}])


def leaves(i: int) -> dict[str, Any]:
    """Return an item of every plain serializer, nested."""
    import torch

    return {
        "i": i,
        "s": f"é{i}",
        "f": i / 3,
        "b": i % 2 == 0,
        "raw": bytes(range(i)),
        "v": np.arange(i, dtype=np.int32),
        "m": np.full((2, i + 1), i / 2, np.float16),
        "t": torch.arange(i),
        "tt": torch.full((2, 2), i, dtype=torch.uint8),
        "half": torch.full((2, 1), i / 2, dtype=torch.float16),
        "photo": picture(i),
        "n": {"x": (i, f"y{i}"), "z": i + 1},
    }


def pair(i: int) -> tuple[int, str]:
    """Return an item that is no dict."""
    return i, f"x{i}"


def nested(i: int) -> dict[str, Any]:
    """Return an item of lists and dicts: litdata keeps it as an Arrow row."""
    return {"id": i, "tags": ["a"] * i, "more": {"k": i / 2}, "turns": [{"from": "u", "n": i}]}


def mixed(i: int) -> dict[str, Any]:
    """Return an item of lists beside an array: litdata packs the lists in its compact form."""
    return {
        "a": np.arange(3, dtype=np.int64) + i,
        "strs": ["p", f"q{i}"],
        "ints": [i, -i],
        "floats": [i / 2],
        "bools": [True, False],
        "records": [{"k": i, "v": None, "s": "t", "f": 0.5, "b": True}],
        "odd": [1, "two", None],
    }


def tokens(i: int) -> Any:
    """Return token ids."""
    import torch

    return torch.arange(3 * i, 3 * i + 5, dtype=torch.int32)


def pickled(i: int) -> dict[str, Any]:
    """Return an item that litdata pickles."""
    return {"i": i, "thing": {1, 2, i}, "odd": complex(i)}


def write_litdata(folder: Path) -> None:
    """Write every layout of chunk."""
    from litdata import optimize  # type: ignore[import-not-found]  # a peer
    from litdata.streaming.item_loader import TokensLoader  # type: ignore[import-not-found]  # a peer

    write = partial(optimize, inputs=list(range(1, 8)), num_workers=1)
    for name, make, how in (
        ("litdata", leaves, {"chunk_size": 4}),
        ("litdata_pairs", pair, {"chunk_size": 4}),
        ("litdata_arrow", nested, {"chunk_size": 4}),
        ("litdata_mixed", mixed, {"chunk_size": 4}),
        ("litdata_tokens", tokens, {"chunk_size": 20, "item_loader": TokensLoader()}),
        ("litdata_pickled", pickled, {"chunk_size": 4}),
        ("litdata_batch", leaves, {"chunk_size": 4, "compression": "zstd"}),
        ("litdata_sample", leaves,
         {"chunk_size": 4, "compression": "zstd", "compression_level": "sample"}),
        ("litdata_chunk", leaves,
         {"chunk_size": 4, "compression": "zstd", "compression_level": "chunk"}),
    ):  # fmt: skip
        try:
            write(fn=make, output_dir=str(folder / name), **how)
        except TypeError:
            if "compression_level" not in how:
                raise
            write_with_cache(folder / name, make, how)


def write_with_cache(folder: Path, make: Any, how: dict[str, Any]) -> None:
    """Write through the cache, for what optimize() does not pass on."""
    from litdata.streaming.cache import Cache  # type: ignore[import-not-found]  # a peer

    cache = Cache(str(folder), **how)
    for number, i in enumerate(range(1, 8)):
        cache._add_item(number, make(i))
    cache.done()
    cache.merge()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for old in target.glob("*data*"):
        shutil.rmtree(old)
    for old in target.glob("mds*"):
        shutil.rmtree(old)
    write_mds(target)
    write_litdata(target)

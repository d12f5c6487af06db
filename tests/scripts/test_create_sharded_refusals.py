"""What a careless command or an odd input meets: one clear line, nothing lost in silence."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.scripts.test_create_sharded_dataset import samples_of, write_tasks
from tools_utilities.dataset_creation import OutputOptions, create_sharded_dataset
from tools_utilities.errors import UsageError
from tools_utilities.sample_source import (
    Source,
    SourceOptions,
    is_hub,
    open_source,
    open_sources,
    sample_sources,
)
from tools_utilities.scripts.create_sharded_dataset import main
from tools_utilities.sharding_lock import LOCK, only_run
from tools_utilities.sharding_plan import ShardingPlan


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    """Run the program, which must end with `code`; returns its one line of error."""
    assert main([str(argument) for argument in arguments]) == code
    told, *hint = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ")
    assert len(hint) <= 1
    return told


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--workers", "0"], "workers=0: at least 1"),
        (["--workers", "-1"], "workers=-1: at least 1"),
        (["--workers", "0", "--format", "mds"], "workers=0: at least 1"),
        (["--chunk_size_mb", "nan"], "chunk_size_mb=nan: a number"),
        (["--chunk_size_mb", "inf"], "chunk_size_mb=inf: a number"),
        (["--max_samples", "0"], "max_samples=0: at least 1"),
        (["--format", "mds", "--compression", "zstd"], "compression zstd with mds"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(tmp_path, capsys, flags, said):
    source = write_tasks(tmp_path / "in.jsonl", 5)

    told = refused(capsys, 2, "--input_file", source, "--output_dir", tmp_path / "out", *flags)

    assert said in told
    assert not (tmp_path / "out").exists()


def test_words_of_a_hub_are_refused_of_files(tmp_path, capsys):
    source = write_tasks(tmp_path / "in.jsonl", 5)
    files = ["--input_file", source, source, "--output_dir", tmp_path / "out"]
    flags = {"split": ["--split", "val"], "config": ["--config", "en"]}
    flags["split and config"] = [*flags["split"], *flags["config"]]

    for said, given in flags.items():
        for some in (files, [files[0], *files[2:]]):
            told = refused(capsys, 2, *some, *given)
            assert f"{source}: {said} would have no effect: only hf:// datasets have" in told

    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="load_kwargs would have no effect"):
        open_source(str(source), SourceOptions(load_kwargs={"revision": "main"}))


def test_words_of_a_hub_are_of_its_datasets_among_several_inputs(tmp_path, monkeypatch):
    opened = []

    class Hub:
        takes = staticmethod(is_hub)

        def open(self, uri: str, options: SourceOptions) -> Source:
            opened.append((uri, options.split, options.config))
            return open_source(str(tmp_path / "in.jsonl"), SourceOptions())

    write_tasks(tmp_path / "in.jsonl", 5)
    monkeypatch.setitem(sample_sources(), "huggingface", Hub())

    found = open_sources(
        [str(tmp_path / "in.jsonl"), "hf://a/b"], SourceOptions(split="val", config="en")
    )

    assert opened == [("hf://a/b", "val", "en")]
    assert sum(len(block.records) for block in found.blocks(0, None)) == 10


@pytest.mark.parametrize("name", ["", "_x", ".x", "../x", "a/b", "a\nb"])
def test_files_that_nobody_would_find_again_are_refused(tmp_path, capsys, name):
    source = write_tasks(tmp_path / "in.jsonl", 5)
    flags = ["--layout", "flat", "--name", name]

    told = refused(capsys, 2, "--input_file", source, "--output_dir", tmp_path / "out", *flags)

    assert told.startswith(f"error: name={name!a}: ")
    assert os.listdir(tmp_path) == ["in.jsonl"]  # noqa: PTH208 - hidden names too


def test_held_out_files_are_never_those_of_the_other_side(tmp_path, capsys):
    source = write_tasks(tmp_path / "in.jsonl", 50)
    flags = ["--layout", "flat", "--num_shards", "1", "--val_fraction", "0.5", "--name", "val"]

    told = refused(capsys, 2, "--input_file", source, "--output_dir", tmp_path / "out", *flags)

    assert "name=val with val_fraction" in told  # both would be val-00000-of-00001.jsonl


@pytest.mark.parametrize("inputs", [[""], ["in.jsonl", ""]])
def test_a_place_without_a_name_is_refused(tmp_path, monkeypatch, capsys, inputs):
    monkeypatch.chdir(tmp_path)
    write_tasks(tmp_path / "in.jsonl", 5)

    assert "without a name" in refused(capsys, 2, "--input_file", *inputs, "--output_dir", "out")
    assert "without a name" in refused(capsys, 2, "--input_file", "in.jsonl", "--output_dir", "")

    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("inside", ["", "sharded", "a/b"])
def test_an_output_in_its_input_is_refused(tmp_path, capsys, inside):
    folder = tmp_path / "data"
    folder.mkdir()
    source = write_tasks(folder / "in.jsonl", 5)

    told = refused(capsys, 2, "--input_file", folder, "--output_dir", folder / inside)

    assert "lies in the input" in told
    assert [path.name for path in folder.iterdir()] == ["in.jsonl"]
    # Named files, a place beside, and one file are no trouble.
    for target in (folder / "sharded", tmp_path / "data-sharded"):
        assert main(["--input_file", str(source), "--output_dir", str(target)]) == 0
    one = str(folder / "all.jsonl")
    assert main(["--input_file", str(tmp_path / "data-sharded"), "--output_dir", one]) == 0


def test_an_output_in_its_inputs_prefix_is_refused(tmp_path):
    plan, output = ShardingPlan(num_shards=2), OutputOptions(state_dir=tmp_path)
    for target in ("memory://b/in", "memory://b/in/deeper"):
        with pytest.raises(UsageError, match="lies in the input"):
            create_sharded_dataset("memory://b/in/", target, plan, output=output)


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("file", 1, "file/"),
        ("file/below", 1, "file/below: Not a directory"),
        ("file/below.jsonl", 1, "Not a directory"),
        ("http://127.0.0.1:9/x", 2, "cannot be written to"),
    ],
)
def test_a_place_that_cannot_be_written_is_told(tmp_path, monkeypatch, capsys, target, code, said):
    monkeypatch.chdir(tmp_path)
    source = write_tasks(tmp_path / "in.jsonl", 5)
    (tmp_path / "file").write_text("x")

    told = refused(capsys, code, "--input_file", source, "--output_dir", target)

    assert said in told
    assert (tmp_path / "file").read_text() == "x"


def test_a_file_of_no_known_format_is_refused_before_anything_is_written(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    write_tasks(folder / "a.jsonl", 5)
    (folder / "b.xml").write_text("<x/>")

    told = refused(
        capsys, 2, "--input_file", folder, "--output_dir", tmp_path / "out",
        "--chunk_size_mb", "0.0001",
    )  # fmt: skip

    assert "b.xml: no format reads this name" in told
    assert not (tmp_path / "out").exists()


def test_a_link_has_the_format_of_its_own_name(tmp_path):
    # As the caches of hubs lay files out.
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots/one").mkdir(parents=True)
    write_tasks(tmp_path / "blobs/2f7a", 5)
    link = tmp_path / "snapshots/one/train.jsonl"
    link.symlink_to("../../blobs/2f7a")

    assert main(["--input_file", str(link), "--output_dir", str(tmp_path / "out")]) == 0

    assert len(samples_of(tmp_path / "out")) == 5


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_rows_of_arrays_may_be_compressed(tmp_path, compression):
    np.save(tmp_path / "in.npy", np.arange(12).reshape(4, 3))
    files = ["--input_file", str(tmp_path / "in.npy"), "--output_dir", str(tmp_path / "out")]

    assert main([*files, "--format", "npy", "--compression", compression]) == 0

    assert sorted(row["input_ids"][0] for row in samples_of(tmp_path / "out")) == [0, 3, 6, 9]


def test_what_of_a_tar_is_no_sample_is_told(tmp_path, caplog):
    for number in range(8):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            for name, kind in (("a.txt", tarfile.REGTYPE), ("b", tarfile.REGTYPE),
                               ("c.txt", tarfile.LNKTYPE), ("d.txt", tarfile.FIFOTYPE)):  # fmt: skip
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = kind, "a.txt" if kind == tarfile.LNKTYPE else ""
                tar.addfile(entry, io.BytesIO())
    files = sorted(str(path) for path in tmp_path.glob("*.tar"))
    (tmp_path / "in").mkdir()
    for path in files:
        Path(path).rename(tmp_path / "in" / Path(path).name)

    places = ["--input_file", str(tmp_path / "in"), "--output_dir", str(tmp_path / "out")]
    assert main([*places, "--format", "webdataset"]) == 0

    told = [record.getMessage() for record in caplog.records]
    said = "left out, as they are no samples: 1 not a field, 2 not a file"
    assert told[:5] == [f"{number}.tar: {said}" for number in range(5)]
    assert len(told) == 6  # of a thousand tars not a thousand lines
    assert "further ones are not told" in told[5]


@pytest.mark.parametrize(
    ("shard_format", "more"),
    [
        ("parquet", []),
        ("litdata", []),
        ("mds", ["--chunk_size_mb", "0.01"]),
        ("mds", ["--val_fraction", "0.2"]),
    ],
)
def test_a_record_that_does_not_fit_is_named_by_its_place_in_the_input(
    tmp_path, capsys, shard_format, more
):
    rows = [{"a": number, "t": "x" * 40} for number in range(3000)]
    rows[2934]["a"] = "bad"
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--num_shards", "7", "--format", shard_format, *more]
    place = ["--input_file", tmp_path / "in.jsonl", "--output_dir", tmp_path / "out"]

    for _ in range(2):  # the second begins after the chunks that the first finished
        told = refused(capsys, 3, *place, *flags)

        if "--val_fraction" in more:  # the sides are counted apart: the chunk alone is told
            assert "/shard_00" in told
            assert "input" not in told
        else:
            assert "shard_001/chunk" in told  # 2934 = 419 * 7 + 1
            assert told.endswith("is the input's 2934, from 0)")


@pytest.mark.parametrize("name", ["out", "out.jsonl"])
def test_a_second_run_leaves_the_first_alone(tmp_path, capsys, name):
    source = write_tasks(tmp_path / "in.jsonl", 50)
    arguments = ["--input_file", str(source), "--output_dir", str(tmp_path / name)]
    work = tmp_path / {"out": "out", "out.jsonl": ".quark-out.jsonl"}[name]

    with only_run(work, "the first"):
        (work / ".quark-staging").mkdir()
        (work / ".quark-staging/00000.tmp").write_text("being written")
        told = refused(capsys, 2, *arguments)
        assert (work / ".quark-staging/00000.tmp").exists()
    assert "another run is writing it (process " + str(os.getpid()) in told

    (work / LOCK).write_text("1")  # what a killed run leaves is locked by nobody
    assert main(arguments) == 0
    assert len(samples_of(tmp_path / name)) == 50
    assert not (work / LOCK).exists()


def test_a_lock_that_goes_with_its_run_is_made_anew(tmp_path):
    with only_run(tmp_path / "a/b", "x"):
        shutil.rmtree(tmp_path / "a/b")  # as a run does with its work folder at its end
        with (
            only_run(tmp_path / "a/b", "x"),
            pytest.raises(UsageError),
            only_run(tmp_path / "a/b", "x"),
        ):
            pass
    assert not (tmp_path / "a").exists()

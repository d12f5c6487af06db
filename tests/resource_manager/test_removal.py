"""`delete_run` and `clean_cache`: shown, asked, and nothing that is not theirs."""

import io
import json
from typing import Any

import pytest

from resource_manager.manager import CommandOptions, ResourceManager
from tests.projects import Said, make_manager
from tools_utilities.cache_cleaning import cache_contents
from tools_utilities.cache_entry import entry_id
from tools_utilities.console import Console, Surroundings
from tools_utilities.disk_cache import DiskCache
from tools_utilities.errors import DataNotFoundError, InputNeededError, UsageError
from tools_utilities.object_store import ObjectInfo


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_terminal(project, typed: str, **about):
    err, out = Terminal(), io.StringIO()
    console = Console(Surroundings(**about), stdin=Terminal(typed), stdout=out, stderr=err)
    return ResourceManager(console=console, start_dir=project), out, err


@pytest.fixture
def run(project):
    manager, *_ = make_manager(project)
    manager.train(Said(data=["data/datasets/one"], name="fox-1", max_steps=1))
    return project / "runs/fox-1"


def test_delete_needs_an_answer_and_names_what_would_go(project, run):
    manager, _, _, err = make_manager(project)
    with pytest.raises(InputNeededError) as caught:
        manager.delete_run(Said(run="fox-1"))
    assert str(run) in str(caught.value)
    assert "--yes" in caught.value.hint
    assert "4 files" in err.getvalue()
    assert run.is_dir()


@pytest.mark.parametrize("typed", ["\n", "n\n", ""])
def test_delete_defaults_to_no(project, run, typed):
    manager, _, err = at_terminal(project, typed)
    assert manager.delete_run(Said(run="fox-1")) == 2
    assert "[y/N]" in err.getvalue()
    assert "Nothing done." in err.getvalue()
    assert run.is_dir()


def test_delete(project, run):
    manager, out, _ = at_terminal(project, "y\n")
    assert manager.delete_run(Said(run="latest")) == 0
    assert out.getvalue().startswith("deleted fox-1: 4 files")
    assert not run.exists()
    with pytest.raises(DataNotFoundError):
        manager.delete_run(Said(run="fox-1"))


def test_delete_never_takes_what_runs_or_a_link_or_everything(project, run, tmp_path):
    manager, _, _ = at_terminal(project, "", yes=True)
    with pytest.raises(UsageError, match="one run at a time"):
        manager.delete_run(Said(run="all"))
    moved = tmp_path / "elsewhere"
    run.rename(moved)
    run.symlink_to(moved)
    with pytest.raises(UsageError, match="a link"):
        manager.delete_run(Said(run="fox-1"))
    run.unlink()
    moved.rename(run)
    (run / "metrics.jsonl").unlink()  # as if it had just been launched
    with pytest.raises(UsageError, match="is running"):
        manager.delete_run(Said(run="fox-1"))
    assert run.is_dir()


def test_a_link_inside_a_run_is_not_followed(project, run, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("mine")
    (run / "plots").symlink_to(kept)
    manager, _, _ = at_terminal(project, "", yes=True)
    assert manager.delete_run(Said(run="fox-1")) == 0
    assert (kept / "file").read_text() == "mine"


def fill(folder, count: int = 3) -> DiskCache:
    cache = DiskCache(folder, 1_000_000)
    for number in range(count):
        info = ObjectInfo(key=f"k{number}", size_bytes=100, etag=f"e{number}")
        entry = entry_id("store", info)
        assert entry is not None
        reservation = cache.reserve(entry)
        assert reservation is not None
        reservation.write(0, b"x" * 100)
        from tools_utilities.checksum import crc32c

        reservation.publish(crc32c(b"x" * 100)).close()
    return cache


def test_the_cache_is_shown_then_removed_and_other_files_stay(project, tmp_path):
    folder = tmp_path / "cache"
    cache = fill(folder)
    own = folder / "mine.txt"
    own.write_text("mine")
    beside = cache._layout.objects / "0" / "notes"
    beside.write_text("mine")
    manager, _, _, err = make_manager(project)
    with pytest.raises(InputNeededError, match="3 cached objects, 300 B"):
        manager.clean_cache(Said(cache_dir=str(folder)))
    assert str(folder) in err.getvalue()
    assert cache_contents(folder).num_files == 3
    manager, out, _ = at_terminal(project, "", yes=True, json=True)
    assert manager.clean_cache(Said(cache_dir=str(folder))) == 0
    told = json.loads(out.getvalue())
    assert (told["files"], told["bytes"], told["in_use"]) == (3, 300, 0)
    assert cache_contents(folder).num_files == 0
    assert own.read_text() == beside.read_text() == "mine"
    with cache._locked() as ledger:
        assert ledger.used_bytes < 100  # the count went down with the files
    cache.close()


def test_what_was_learned_of_datasets_goes_with_the_cache(project, tmp_path):
    counts = tmp_path / "cache/counts"
    counts.mkdir(parents=True)
    name = "0" * 32
    ours = [f"{name}-{name}.counts", f"{name}.listing", f"{name}-{name}-{name[:16]}.labels"]
    for file in (*ours, "mine.counts"):
        (counts / file).write_bytes(b"x")
    manager, out, _ = at_terminal(project, "", yes=True, json=True)
    assert manager.clean_cache(Said(cache_dir=str(tmp_path / "cache"), plan_only=True)) == 0
    assert json.loads(out.getvalue())["learned"] == 3
    manager, out, _ = at_terminal(project, "y\n")
    assert manager.clean_cache(Said(cache_dir=str(tmp_path / "cache"))) == 0
    assert "removed 0 cached objects, 0 B, and 3 files of counts" in out.getvalue()
    assert [path.name for path in counts.iterdir()] == ["mine.counts"]
    manager, out, _ = at_terminal(project, "")
    assert manager.clean_cache(Said(cache_dir=str(tmp_path / "cache"))) == 0
    assert "nothing is cached" in out.getvalue()


def test_what_is_being_read_stays(project, tmp_path):
    folder = tmp_path / "cache"
    cache = fill(folder)
    entry = entry_id("store", ObjectInfo(key="k0", size_bytes=100, etag="e0"))
    assert entry is not None
    held = cache.open(entry)
    assert held is not None
    manager, out, _ = at_terminal(project, "y\n")
    assert manager.clean_cache(Said(cache_dir=str(folder))) == 0
    assert "removed 2 cached objects, 200 B" in out.getvalue()
    assert "1 are being read" in out.getvalue()
    held.close()
    assert cache_contents(folder).num_files == 1
    cache.close()


def test_an_empty_cache_makes_no_folder(project, tmp_path):
    manager, out, _ = at_terminal(project, "")
    assert manager.clean_cache(Said(cache_dir=str(tmp_path / "none"))) == 0
    assert "nothing is cached" in out.getvalue()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("slots", [{"plan_only": True}, {}])
def test_a_plan_is_shown_and_nothing_goes_even_with_yes(project, run, tmp_path, slots):
    options = CommandOptions(plan_only=not slots)
    out = io.StringIO()
    console = Console(Surroundings(yes=True), stdin=Terminal("y\n"), stdout=out, stderr=Terminal())
    manager: Any = ResourceManager(console=console, start_dir=project, options=options)
    assert manager.delete_run(Said(run="fox-1", **slots)) == 0
    assert "would delete fox-1: 4 files" in out.getvalue()
    assert run.is_dir()
    folder = tmp_path / "cache"
    fill(folder).close()
    assert manager.clean_cache(Said(cache_dir=str(folder), **slots)) == 0
    assert "would remove 3 cached objects, 300 B" in out.getvalue()
    assert cache_contents(folder).num_files == 3

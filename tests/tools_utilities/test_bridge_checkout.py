"""A checkout that a pipeline runs from: any branch, tag or commit, by real git from a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.git_server import commit, git_server
from tools_utilities.bridge.checkout import (
    PIPELINE_FILE,
    check_out,
    folder_name,
    install_needs,
    needs_of,
)
from tools_utilities.bridge.rented_process import ORDER_VARIABLE, Order, taken_order
from tools_utilities.errors import MachineError, UsageError
from tools_utilities.process_environment import environment_now, take_environment

PROJECT = """
[project]
name = "quark-launcher"
version = "0"
dependencies = ["torch>=2", "msgspec>=0.1", "Torch [cpu]>=1"]
optional-dependencies = {hf = ["datasets>=1", "peft>=0.1", "msgspec"]}
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    with git_server(tmp_path / "served") as (folder, url):
        repository = folder / "quark.git"
        (repository / PIPELINE_FILE).parent.mkdir(parents=True)
        (repository / PIPELINE_FILE).write_text("first\n")
        yield repository, f"{url}/quark.git"


def test_a_branch_a_tag_and_a_commit_are_checked_out(tmp_path, served):
    repository, url = served
    first = commit(repository, "first", tag="v1")
    (repository / PIPELINE_FILE).write_text("second\n")
    second = commit(repository, "second")
    said: list[str] = []
    for ref, text in (
        (None, "second"),
        ("v1", "first"),
        ("main", "second"),
        (first, "first"),
        (first[:9], "first"),
    ):
        folder = check_out(url, ref, tmp_path / 'odd $HOME "dir"', said.append)
        assert folder.name == "quark"
        assert (folder / PIPELINE_FILE).read_text() == f"{text}\n"
    assert said[0] == f"checked out {url} at HEAD ({second[:7]})\n"
    with pytest.raises(UsageError, match=r"vast.repo_ref v2: .* has no such branch"):
        check_out(url, "v2", tmp_path / "w", said.append)
    with pytest.raises(MachineError, match=r"git -C .* ended with 128"):
        check_out(f"{url}-none", None, tmp_path / "w", said.append)


def test_a_repository_that_is_none_of_quarks_is_refused(tmp_path, served):
    repository, url = served
    (repository / PIPELINE_FILE).rename(repository / "other.py")
    commit(repository, "first")
    said: list[str] = []
    with pytest.raises(UsageError, match="no checkout of Quark"):
        check_out(url, None, tmp_path / "w", said.append)


def test_what_a_checkout_needs_is_read_without_what_no_pipeline_loads(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert needs_of(tmp_path / "pyproject.toml", hub=False) == ["msgspec>=0.1"]
    wanted = ["msgspec>=0.1", "datasets>=1", "msgspec"]
    assert needs_of(tmp_path / "pyproject.toml", hub=True) == wanted
    (tmp_path / "pyproject.toml").write_text("[tool]\n")
    with pytest.raises(UsageError, match=r"pyproject.toml cannot be read"):
        needs_of(tmp_path / "pyproject.toml", hub=False)


@pytest.mark.nightly
def test_an_installer_that_fails_is_told(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    install_needs(tmp_path, hub=False)  # all of it is here: nothing is fetched
    (tmp_path / "constraints.txt").write_text("msgspec ==== 1\n")
    with pytest.raises(MachineError, match="pip install"):
        install_needs(tmp_path, hub=False)


def test_a_folder_is_named_as_git_names_it():
    assert folder_name("https://e.org/me/quark.git/") == "quark"
    assert folder_name("git://e.org/quark") == "quark"


def test_an_order_is_not_handed_on_to_what_is_started(monkeypatch):

    with pytest.raises(UsageError, match=ORDER_VARIABLE):
        taken_order({})
    text = '{"settings":{"pipeline":{"name":"jsonl","input_uri":"s3://b/in"}},"workdir":"/w"}'
    before = environment_now()
    try:
        order = taken_order({**before, ORDER_VARIABLE: text})
        assert isinstance(order, Order)
        assert order.workdir == "/w"
        assert environment_now() == before
    finally:
        take_environment(before)

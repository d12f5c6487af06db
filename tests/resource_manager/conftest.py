"""A project folder with two datasets, one of them with several groups."""

import pytest

from tests.projects import write_group


@pytest.fixture
def project(tmp_path, aws_environment):
    folder = tmp_path / "quark"
    (folder / "data/datasets").mkdir(parents=True)
    (folder / "quark.yaml").write_text("datasets:\n  mine: data/datasets/one\n")
    write_group(folder / "data/datasets/one")
    write_group(folder / "data/datasets/one", "val-", 3)
    write_group(folder / "data/datasets/two/a")
    write_group(folder / "data/datasets/two/b")
    aws_environment.chdir(folder)
    return folder

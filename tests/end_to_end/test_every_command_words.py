"""B46, B47 and B49 for every command that takes data: words, values and paths mean the same in all."""

import json
from typing import Any

import pytest

from knowledge_hub.hub import KnowledgeHub
from tests.projects import write_group
from tools_utilities.scripts.quark_cli import run_program

HUB = KnowledgeHub()
SAID = {
    "train": "train quark with {}",
    "finetune": "finetune quark on {} starting from fox-1",
    "evaluate": "evaluate fox-1 on {}",
    "discover": "find datasets in {}",
    "inspect": "inspect {}",
    "estimate": "estimate train on {} for 2 steps",
    "process": "process {} with pkg.mod:embed",
    "shard_status": "shard status of {}",
}
QUOTES = ['"{}"', "'{}'", "\u201c{}\u201d"]


@pytest.mark.parametrize("intent", SAID)
def test_b46_paths_as_people_type_them(intent):
    for quote in QUOTES:
        for tail in ("", "\n", "\t", "\u00a0"):
            reading = HUB.read(SAID[intent].format(quote.format("/repo/data/my set/x")) + tail)
            assert (reading.status, reading.intent) == ("ok", intent), reading
            assert reading.slots["data"] == ["/repo/data/my set/x"]
    for path, unsaid in (("/repo/data/my set/x", "set/x"), ("/repo/data/bob's set", "set")):
        reading = HUB.read(SAID[intent].format(path))
        assert reading.status == "unaccounted", reading
        assert unsaid in " ".join(item.text for item in reading.unaccounted)
    reading = HUB.read(SAID[intent].format("C:\\Users\\me\\quark\\data\\x"))
    assert reading.slots["data"] == ["C:\\Users\\me\\quark\\data\\x"]


@pytest.mark.parametrize("intent", SAID)
@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train_prefix=data/year=2019/month=10/", "data/year=2019/month=10/"),
        ('name="x # y @ z"', "x # y @ z"),
        ("name=no", "no"),
        ("name=1:30", "1:30"),
        ("lr=1e-4", 0.0001),
        ("lr=.0001", 0.0001),
        ("seed=010", 10),
        ("seed=1_000", 1000),
        ("shuffle=on", True),
    ],
)
def test_b47_values_are_typed_by_their_key(intent, override, value):
    reading = HUB.read(f"{SAID[intent].format('data/x')} --override {override}")
    key = override.partition("=")[0]
    if reading.status != "ok":
        # A setting that this command has no use for is not taken and forgotten: it is stopped.
        assert intent != "train"
        assert [item.text for item in reading.unaccounted] == [override]
        return
    assert reading.overrides[key] == value
    assert type(reading.overrides[key]) is type(value)


@pytest.mark.parametrize("intent", SAID)
@pytest.mark.parametrize("override", ["=x", "lr", "lr=", "lr=abc", "epochs=two:three", "bukcet=x"])
def test_b47_what_cannot_be_a_value_is_stopped(intent, override):
    reading = HUB.read(f"{SAID[intent].format('data/x')} --override {override}")
    assert reading.status != "ok"


@pytest.fixture
def repo(tmp_path, aws_environment):
    """A project with blanks in its path, also reached through a link."""
    folder = tmp_path / "my repo/quark"
    write_group(folder / "data/datasets/x")
    (folder / "quark.yaml").write_text("layers: 1\n")
    (tmp_path / "link").symlink_to(folder)
    (folder / "data/datasets/out").symlink_to("/usr")
    write_group(tmp_path / "my repo/quark-old/data/x")
    aws_environment.setenv("HOME", str(tmp_path))
    aws_environment.chdir(folder / "data")
    return folder


LOOKS = {
    "discover": 'find datasets in "{}"',
    "inspect": 'inspect "{}"',
    "train": 'train quark with "{}" for 2 steps',
    "estimate": 'estimate train quark with "{}" for 2 steps',
}


def prefix_told(told: Any, intent: str) -> Any:
    """Where each command's JSON says what data it means."""
    if intent == "discover":
        return told["root"]
    return (told["plan"] if intent == "train" else told)["data"][0]["prefix"]


@pytest.mark.parametrize("intent", ["discover", "inspect", "train"])
def test_b49_every_spelling_is_the_same_folder(repo, capsys, intent):
    spellings = (
        f"{repo}/data/datasets/x", "~/my repo/quark/data/datasets/x", "datasets/x",
        "./datasets//x/", "datasets/../datasets/x", f"{repo.parents[1]}/link/data/datasets/x",
        f"file://{repo}/data/datasets/x",
    )  # fmt: skip
    for spelling in spellings:
        assert run_program([LOOKS[intent].format(spelling), "--plan", "--json"]) == 0, spelling
        told = json.loads(capsys.readouterr().out)
        assert prefix_told(told, intent) == "data/datasets/x/", (spelling, told)


@pytest.mark.parametrize("intent", LOOKS)
@pytest.mark.parametrize("path", ["/etc", "../..", "{old}/data/x", "datasets/out"])
def test_b49_outside_the_project_nothing_is_looked_at(repo, capsys, intent, path):
    text = path.format(old=f"{repo}-old")
    assert run_program([LOOKS[intent].format(text), "--plan"]) in (2, 3)
    done = capsys.readouterr()
    assert "error: " in done.err
    assert done.out == ""

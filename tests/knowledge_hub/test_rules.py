"""Rules of the language that a table of sentences cannot hold."""

import msgspec
import pytest

from knowledge_hub.hub import KnowledgeHub, intents
from knowledge_hub.sentence import join_arguments

HUB = KnowledgeHub()


# B46: sentences as people type and drag them
def test_b46_quoted_paths_are_read_without_their_quotes():
    for text in [
        '"/repo/data/my set/x"',
        "'/repo/data/my set/x'",
        "\u201c/repo/data/my set/x\u201d",
    ]:
        reading = HUB.read(f"train quark with {text}")
        assert (reading.status, reading.slots["data"]) == ("ok", ["/repo/data/my set/x"])


def test_b46_a_path_with_blanks_is_stopped():
    reading = HUB.read("train quark with /repo/data/my set/x")
    assert reading.status == "unaccounted"
    assert [item.text for item in reading.unaccounted] == ["set/x"]


def test_b46_an_apostrophe_between_letters_is_no_quote():
    reading = HUB.read("train quark with /repo/data/bob's set")
    assert (reading.status, reading.slots["data"]) == ("unaccounted", ["/repo/data/bob's"])
    assert [item.text for item in reading.unaccounted] == ["set"]


def test_b46_backslashes_are_kept():
    reading = HUB.read("train quark with C:\\Users\\me\\quark\\data\\x")
    assert (reading.status, reading.slots["data"]) == ("ok", ["C:\\Users\\me\\quark\\data\\x"])


@pytest.mark.parametrize("tail", ["\n", "\t", "\u00a0", ".", " .", "?\n", " please"])
def test_b46_what_closes_the_sentence_is_not_part_of_the_path(tail):
    reading = HUB.read(f"Train Quark WITH /repo/data/x{tail}")
    assert (reading.status, reading.slots) == (
        "ok", {"model": "quark", "data": ["/repo/data/x"]},
    )  # fmt: skip


def test_b46_no_data_no_words_no_verb():
    assert HUB.read("train quark").status == "incomplete"
    assert HUB.read("").status == "incomplete"
    assert HUB.read("").intent is None
    reading = HUB.read("with with /repo/data/with/x")
    assert (reading.status, reading.intent) == ("incomplete", None)
    assert reading.slots == {"data": ["/repo/data/with/x"]}


# B47: the grammar of overrides
@pytest.mark.parametrize(
    ("text", "slots"),
    [
        (
            "train_prefix=data/year=2019/month=10/",
            {"set": {"train_prefix": "data/year=2019/month=10/"}},
        ),
        ("ranges=a:1,b:2", {"set": {"ranges": ["a:1", "b:2"]}}),
        ('template="x # y @ z"', {"set": {"template": "x # y @ z"}}),
        ("lr=1e-4", {"lr": 0.0001}),
        ("lr=1E-4", {"lr": 0.0001}),
        ("lr=.0001", {"lr": 0.0001}),
        ("epochs=1e1", {"epochs": 10}),
        ("max_steps=1e1", {"max_steps": 10}),
        ("seed=010", {"seed": 10}),
        ("seed=1_000", {"seed": 1000}),
        ("name=no", {"name": "no"}),
        ("name=on", {"name": "on"}),
        ("name=1:30", {"name": "1:30"}),
        ("name=~", {"name": "~"}),
        ("name=null", {"name": "null"}),
        ("shuffle=on", {"shuffle": True}),
        ("shuffle=TRUE", {"shuffle": True}),
        ("profile=", {"set": {"profile": ""}}),
        ('" lr = 0.1 "', {"lr": 0.1}),
    ],
)
def test_b47_values_are_typed_by_their_key(text, slots):
    reading = HUB.read(f"train on s3://b/x --override {text}")
    assert reading.status == "ok"
    assert reading.slots == {"data": ["s3://b/x"], **slots}


@pytest.mark.parametrize(
    "text", ["seed=0x10", "lr=", "=x", "lr", "epochs=many", "lr=nan", "lr=inf"]
)
def test_b47_a_bad_override_is_stopped_by_its_own_name(text):
    reading = HUB.read(f"train on s3://b/x --override {text}")
    assert reading.status == "unaccounted"
    assert text in [item.text for item in reading.unaccounted]


def test_b47_an_unknown_key_names_the_nearest():
    reading = HUB.read("train on s3://b/x --override learnin_rate=1e-4")
    assert reading.unaccounted[0].suggest == "learning_rate=1e-4"


def test_b47_the_later_of_two_wins_with_a_warning():
    reading = HUB.read("train on s3://b/x --override lr=1 --override lr=2")
    assert (reading.status, reading.slots["lr"]) == ("ok", 2)
    assert "lr" in reading.warnings[0]


def test_an_override_beats_the_sentence_without_a_conflict():
    reading = HUB.read("train on s3://b/x for 1 epoch for 2 epochs --override epochs=3")
    assert (reading.status, reading.slots["epochs"]) == ("ok", 3)
    assert reading.overrides == {"epochs": 3}


# Arguments of a shell
@pytest.mark.parametrize(
    ("argv", "data"),
    [
        (["train quark with /a/b"], ["/a/b"]),
        (["train", "quark", "with", "/My Disk/b"], ["/My Disk/b"]),
        (["train", "with", "/Bob's Disk/b"], ["/Bob's Disk/b"]),
        (["train", "with", '/The "Disk" of Bob\'s/b'], ['/The "Disk" of Bob\'s/b']),
        (["train with '/My Disk/b'", "--override", "lr=1"], ["/My Disk/b"]),
    ],
)
def test_arguments_are_joined_and_blanks_quoted(argv, data):
    reading = HUB.read(join_arguments(argv))
    assert (reading.status, reading.slots["data"]) == ("ok", data)


def test_the_value_of_an_override_keeps_its_blanks():
    sentence = join_arguments(["train on s3://b/x", "--override", 'name=my "big" run', "lr=1"])
    reading = HUB.read(sentence)
    assert (reading.slots["name"], reading.slots["lr"]) == ('my "big" run', 1)


def test_the_canonical_sentence_says_the_model_before_the_run():
    for sentence in ("evaluate quark fox-12 on ./d", "rerun fox-12 model=big", "again model=big"):
        reading = HUB.read(sentence)
        again = HUB.read(str(reading.canonical))
        assert (reading.status, again.status) == ("ok", "ok")
        assert (again.intent, again.slots) == (reading.intent, reading.slots)


# Aliases
def test_a_dataset_alias_is_a_literal():
    aliases = {"Genomes": "s3://b/g"}
    assert HUB.read("train on genomes").status == "unaccounted"
    for sentence in ("train quark on genomes", "train quark genomes for 1 epoch"):
        assert HUB.read(sentence, aliases=aliases).slots["data"] == ["Genomes"]
    reading = HUB.read("train quark on GENOMES", aliases=aliases)
    assert HUB.read(str(reading.canonical), aliases=aliases).slots == reading.slots


def test_an_alias_never_takes_a_word_of_the_language_from_it():
    aliases = {"train": "s3://b/t", "epochs": "s3://b/e"}
    reading = HUB.read("train on train for 3 epochs", aliases=aliases)
    assert (reading.status, reading.slots) == ("ok", {"data": ["train"], "epochs": 3})


@pytest.mark.parametrize("word", ["please", "the", "with", "only", "runs", "spot"])
def test_an_alias_never_takes_glue_connectors_or_nouns_either(word):
    aliases = {word: "s3://b/w"}
    for sentence in ("please train the quark on ./d with two gpus, spot", "show runs"):
        assert HUB.read(sentence, aliases=aliases).slots == HUB.read(sentence).slots
        assert HUB.read(sentence, aliases=aliases).status == "ok"


def test_an_alias_is_a_name_where_a_name_is_due():
    aliases = {"genomes": "s3://b/g"}
    reading = HUB.read("train on genomes named genomes on ssh host genomes", aliases=aliases)
    assert reading.status == "ok"
    assert reading.slots == {"data": ["genomes"], "name": "genomes", "where": "ssh:genomes"}
    reading = HUB.read("train on everything under ./d except genomes", aliases=aliases)
    assert reading.slots["groups"] == {"rule": "all", "exclude": ["genomes"]}


def test_an_alias_of_several_words_needs_quotes():
    aliases = {"my set": "s3://b/m"}
    assert HUB.read("train on my set", aliases=aliases).status == "unaccounted"
    reading = HUB.read("train on 'my set' for 2 epochs", aliases=aliases)
    assert (reading.status, reading.slots) == ("ok", {"data": ["my set"], "epochs": 2})
    assert HUB.read(str(reading.canonical), aliases=aliases).slots == reading.slots


def test_an_alias_joins_other_data_and_follows_the_verb():
    aliases = {"genomes": "s3://b/g", "wiki-2": "s3://b/w"}
    reading = HUB.read("train on genomes and ./d", aliases=aliases)
    assert reading.slots["data"] == ["genomes", "./d"]
    reading = HUB.read("train on ./d, genomes and wiki-2", aliases=aliases)
    assert reading.slots["data"] == ["./d", "genomes", "wiki-2"]
    assert HUB.read("inspect genomes", aliases=aliases).slots == {"data": ["genomes"]}
    assert HUB.read("shard wiki-2 into 3 shards", aliases=aliases).slots["source"] == "wiki-2"
    assert HUB.read("train on genomez", aliases=aliases).status == "unaccounted"


def test_a_bare_word_as_data_gets_a_hint():
    reading = HUB.read("train on imagenet")
    assert reading.unaccounted[1].suggest == "./imagenet or hf://imagenet"


# Spans, questions, explain
def test_spans_are_offsets_into_the_sentence_as_typed():
    sentence = "  Train “é ü” with  EIGHT gpus"
    reading = HUB.read(sentence)
    assert reading.slots == {"data": ["é ü"], "gpus": 8}
    assert [sentence[span.start : span.end] for span in reading.spans] == [
        "Train", "“é ü”", "EIGHT gpus",
    ]  # fmt: skip


def test_questions_name_the_slot_and_the_readings():
    assert HUB.read("train").questions[0].slot == "data"
    assert HUB.read("train with 8").questions[0].choices == ("8 gpus", "8 workers", "batch size 8")
    conflict = HUB.read("train on s3://b/x for 3 epochs for 5 epochs").questions[0]
    assert (conflict.slot, conflict.choices) == ("epochs", (3, 5))


def test_explain_shows_and_does_not_act():
    reading = HUB.read("explain train on s3://b/x")
    assert reading.is_explanation
    assert not HUB.read("train on s3://b/x").is_explanation


def test_a_refused_sentence_asks_for_nothing_and_says_why():
    reading = HUB.read("don't stop fox-12")
    assert (reading.intent, reading.slots, reading.confirm) == (None, {}, False)
    assert reading.questions[0].text == "the command is negated"


@pytest.mark.parametrize(
    "sentence", ["stop", "stop fox-12 quickly", "stpo fox-12", "stop fox-12 and owl-3"]
)
def test_confirm_holds_at_every_status(sentence):
    assert HUB.read(sentence).confirm


def test_help_prints_what_can_be_said(capsys):
    assert HUB.handle_command("help train") == 0
    assert "train quark with" in capsys.readouterr().out


def test_a_command_that_cannot_be_read_exits_2(capsys):
    assert HUB.handle_command("train on s3://b/x with extra sparkle") == 2
    assert "sparkle" in capsys.readouterr().err


def test_an_explanation_is_drawn(capsys):
    assert HUB.handle_command("explain train on s3://b/x for 3 epochs") == 0
    assert "epochs" in capsys.readouterr().out


def test_an_intent_without_its_part_exits_2(capsys, monkeypatch):
    later = msgspec.structs.replace(intents()["offers"], run=None)
    monkeypatch.setitem(intents(), "offers", later)
    assert HUB.handle_command("prices on vast") == 2
    assert "offers" in capsys.readouterr().err
